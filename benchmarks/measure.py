"""Peak memory, medians, and results as JSON with the machine's conditions: the common parts of the benchmarks."""

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
    """Measure the bytes that `work` needs at its peak beyond those held at its start (a model's weights, no gradients).

    On a GPU by torch's allocator, on the CPU by the growth of the resident set (Linux).
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        bytes_at_start = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - bytes_at_start
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    bytes_at_start = process_status("VmRSS")
    work()
    return process_status("VmHWM") - bytes_at_start


def process_status(name: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    kibibytes = field_of(Path("/proc/self/status"), name)
    assert kibibytes is not None, name
    return int(kibibytes.split()[0]) * 1024


def field_of(path: Path, name: str) -> str | None:
    """Return the value of the first line "name: value" of a file."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


def conditions() -> dict[str, Any]:
    """Return hardware, threads and versions, to stand beside every result."""
    import transformers

    gpu = None
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_name()
    return {
        "cpu": field_of(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }


def write(name: str, result: dict[str, Any]) -> None:
    """Write a result with its conditions into OUT."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}.json"
    text = json.dumps({**result, "conditions": conditions()}, indent=1)
    path.write_text(f"{text}\n")
    print(f"written to {path}")
