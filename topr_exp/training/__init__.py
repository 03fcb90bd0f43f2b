"""Training: log-probabilities, optimizer, checkpoints and the one loop, which knows no algorithm by name."""
