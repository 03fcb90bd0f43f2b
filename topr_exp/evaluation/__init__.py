"""Stage 7: what a model can do. Statistics of graded completions, apart from sampling and from plotting."""
