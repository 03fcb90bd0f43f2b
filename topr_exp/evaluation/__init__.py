"""Stage 7: statistics of graded completions, apart from sampling and plotting."""
