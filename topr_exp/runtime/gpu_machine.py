"""What vLLM needs of a machine beside its GPU, looked at in seconds: each lack is one line with its remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from topr_exp.types import ConfigError

DRIVER = Path("/proc/driver/nvidia/version")
SHARED_MEMORY = Path("/dev/shm")
OLDEST_DRIVER = {12: 525, 13: 580}  # by CUDA's major version
LEAST_SHARED_GIB = 1.0
IMPORT_SECONDS = 180.0
PROBE = (
    "import json, sysconfig, torch, vllm;"
    "print(json.dumps([sysconfig.get_path('include'), torch.version.cuda, torch.__version__, vllm.__version__]))"
)


def driver_version() -> int | None:
    """The major version of NVIDIA's driver; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+)\.\d", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None


def old_driver(cuda: str | None) -> str | None:
    """The line for a driver that is older than this CUDA needs; None where there is nothing to say."""
    found, least = driver_version(), OLDEST_DRIVER.get(int((cuda or "0").partition(".")[0]), 0)
    if found is None or found >= least:
        return None
    remedy = "update it, install a torch for its CUDA, or set cluster.device=cpu"
    return f"NVIDIA's driver is {found}, CUDA {cuda} needs {least} or newer: {remedy}"


def examine(python: str) -> tuple[dict[str, str], list[str]]:
    """Look at this machine with the environment that samples: what was found by name, and a line for each lack."""
    found, lacks = dict[str, str](), list[str]()

    def note(name: str, value: str, lack: str | None) -> None:
        found[name] = value
        if lack:
            lacks.append(lack)

    include, cuda, torch, vllm, failure = probe(python)
    note("vLLM", vllm, failure)
    if not failure:
        built = None if cuda else f"torch {torch} of {python} has no CUDA: install constraints-gpu.txt (docs/gpu.md)"
        note("torch", f"{torch}, CUDA {cuda}", built)
        headers = (Path(include) / "Python.h").is_file()
        note("Python.h", include, None if headers else f"{include} has no Python.h, with which Triton compiles: "
             "install python3-dev, or let uv install Python")  # fmt: skip
    note("driver", str(driver_version()), old_driver(cuda))
    compiler = next(
        (path for name in (os.environ.get("CC"), "gcc", "clang") if name and (path := shutil.which(name))), None
    )
    note(
        "C compiler",
        str(compiler),
        None if compiler else "no C compiler, with which Triton builds kernels: install gcc",
    )
    free = free_gib(SHARED_MEMORY)
    small = f"{SHARED_MEMORY} has {free:.1f} GiB free, {LEAST_SHARED_GIB} are needed: docker run --shm-size=8g"
    note("shared memory", f"{free:.1f} GiB free", small if free < LEAST_SHARED_GIB else None)
    return found, lacks


def probe(python: str) -> tuple[str, str | None, str, str, str | None]:
    """Headers' folder, CUDA, torch and vLLM of an environment, and the line that says why it imports no vLLM."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=IMPORT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", None, "", "", f"{python}: import vllm: {error}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return "", None, "", "", f"{python}: import vllm: {last[:300]}"
    include, cuda, torch, vllm = json.loads(done.stdout.splitlines()[-1])
    return include, cuda, torch, vllm, None


def free_gib(folder: Path) -> float:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0.0
    return status.f_bavail * status.f_frsize / 2**30


def attention_kernel() -> str:
    """The kernel that torch's attention takes on this GPU for bfloat16 with 128 a head."""
    import torch

    query = torch.zeros(1, 8, 128, 128, dtype=torch.bfloat16, device="cuda")
    choice: Callable[..., int] = torch._fused_sdp_choice
    return {0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}.get(
        choice(query, query, query, is_causal=True), "?"
    )


def check_gpu_machine(python: str) -> None:
    """Raise ConfigError for the first lack of a machine on whose GPU vLLM is to sample."""
    _, lacks = examine(python)
    if lacks:
        raise ConfigError(f"sampler=vllm: {lacks[0]}")
