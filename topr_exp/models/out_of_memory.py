"""Memory that runs out, on a GPU or in torch's CPU allocator, as a line with the settings to lower."""

import contextlib
import gc
from collections.abc import Iterator

import torch

from topr_exp.types import TOPRError

# Messages of torch's other errors: on a CPU, and on a GPU outside its allocator.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@contextlib.contextmanager
def memory_for(work: str, remedy: str) -> Iterator[None]:
    """While the block runs, an allocation that fails becomes a TOPRError that names the work and the settings."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TOPRError(f"out of memory {work}; {remedy}; what was finished before is kept") from error


def is_out_of_memory(error: RuntimeError) -> bool:
    """True for an allocation that failed, on a GPU or by torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError) or any(message in str(error) for message in OUT_OF_MEMORY)


def release_gpu_memory() -> None:
    """Give back the GPU memory that torch caches in this process."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
