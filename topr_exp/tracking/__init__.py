"""Trackers of a run's metrics: W&B and TensorBoard."""
