"""Tapered Off-Policy REINFORCE (arXiv 2503.14286) as an experiment framework; start reading at `pipeline.py`."""

import os

# torch.cuda.is_available() then counts GPUs without taking one, so that each process of a run can still choose its own.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

# OpenMP's threads wait for each other by spinning, for milliseconds: on cores that others use too that takes five times
# the time of the computation. After a few turns they sleep instead; the results are the same. (Read when torch loads.)
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
    os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}

__version__ = "0.1.0"
