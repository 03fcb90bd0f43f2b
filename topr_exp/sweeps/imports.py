"""The imports that every run needs, made without the garbage collector: that takes 2 to 3 of 10 seconds away."""

import gc
import os
from types import ModuleType


def import_pipeline() -> ModuleType:
    """Import pipeline.py and the libraries that a run loads; the collector never looks at them, not at the exit either.

    torch computes nothing here: that would start threads, and a thread does not survive a fork.
    """
    # Nor does it start CUDA, which a fork does not survive either and which would keep a process from choosing its GPU:
    # torch.cuda.is_available() asks NVML then. Commands set this earlier; sweeps also start from Python.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    gc.disable()
    try:
        import torch._dynamo  # noqa: F401 - torch's optimizers import it at their first step
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: F401 - each loads on use

        from topr_exp import pipeline
    finally:
        gc.enable()
    gc.freeze()
    return pipeline
