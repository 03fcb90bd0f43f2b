"""Tapered Off-Policy REINFORCE (arXiv 2503.14286) as an experiment framework; start reading at `pipeline.py`."""

import os

# torch.cuda.is_available() then counts GPUs without taking one, so that each process of a run can still choose its own.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

__version__ = "0.1.0"
