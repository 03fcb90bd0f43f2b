"""What the benchmarks share: peak memory of a piece of work, and results as JSON beside a printed line."""

from __future__ import annotations

import ctypes
import gc
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

OUT = Path(__file__).resolve().parent.parent / "outputs" / "benchmarks"


def peak_memory(work: Callable[[], Any], device: torch.device) -> int:
    """Bytes that `work` needs at its peak beyond what is held when it begins (a model's weights, not its gradients).

    On a GPU what torch's allocator counted, on the CPU the growth of the resident set (Linux).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def status(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


def conditions() -> dict[str, Any]:
    """Hardware, threads and versions, to stand beside every result."""
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.processor())  # fmt: skip
    versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
    return {"cpu": model, "gpu": gpu, "threads": torch.get_num_threads(), **versions}


def write(name: str, result: dict[str, Any]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps({**result, "conditions": conditions()}, indent=1) + "\n")
    print(f"written to {path}")
