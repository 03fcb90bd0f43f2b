"""Metrics outside the run folder: W&B and TensorBoard."""
