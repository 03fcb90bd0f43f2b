"""Stage 1: problems with gold answers, their splits, and the prompts that ask them."""
