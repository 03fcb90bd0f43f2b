"""Running out of memory, told to the user as one line with the settings that decide how much is needed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from topr_exp.types import TOPRError


@contextlib.contextmanager
def memory_for(work: str, way_out: str) -> Iterator[None]:
    """While the block runs, an allocation that fails becomes a TOPRError: what was tried, and what to set instead."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out(error):
            raise
        raise TOPRError(f"out of memory {work}; {way_out}; what was finished before is kept") from error


def ran_out(error: RuntimeError) -> bool:
    """Recognize an allocation that failed, on a GPU or by torch's CPU allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def release_gpu_memory() -> None:
    """Give back the GPU memory that torch keeps for later in this process."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
