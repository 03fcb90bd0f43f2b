"""Tapered Off-Policy REINFORCE (arXiv 2503.14286) as an experiment framework; start reading at `pipeline.py`."""

__version__ = "0.1.0"
