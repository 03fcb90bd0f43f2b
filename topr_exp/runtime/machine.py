"""Hardware and compilers of this machine; each lack is one line with its remedy."""

import contextlib
import ctypes
import os
import re
import shutil
from pathlib import Path

from topr_exp.config.sampler_choice import DRIVER
from topr_exp.types import ConfigError


def c_compiler() -> str | None:
    """The path of the C compiler that Triton would call for kernels on a GPU; None where there is none."""
    return first_program([os.environ.get("CC") or "gcc", "gcc", "clang"])


def cxx_compiler() -> str | None:
    """The path of the C++ compiler that torch.compile would call for kernels on a CPU; None where there is none."""
    return first_program([os.environ.get("CXX") or "g++", "g++", "clang++"])


def first_program(names: list[str]) -> str | None:
    """The path of the first of these programs that is on PATH."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


CPU_INFO = Path("/proc/cpuinfo")
FLAG_ROWS = ("flags", "Features")  # on x86, on Arm
BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}
SLOW_BFLOAT16 = (
    "this CPU has no instructions for bfloat16 (AMX or AVX512-BF16): model.dtype=float32 is faster and more accurate"
)


def cpu_flags() -> set[str]:
    """The flags of the first processor; none where the system does not list them."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    for line in lines:
        row, _, flags = line.partition(":")
        if row.strip() in FLAG_ROWS:
            return set(flags.split())
    return set()


def slow_precision(device: str, precision: str) -> str:
    """The line for a precision that this CPU computes more slowly than float32; "" where nothing tells so."""
    flags = cpu_flags() if (device, precision) == ("cpu", "bfloat16") else set()
    if not flags or flags & BFLOAT16_FLAGS:
        return ""
    return SLOW_BFLOAT16


def check_device(device: str) -> str | None:
    """Raise ConfigError for a GPU that can't be used; return what to warn of where the CPU computes beside one."""
    if device == "cpu" or (device == "auto" and driver_version() is None):
        return None
    import torch

    no_cuda = torch_without_cuda(torch.__version__, torch.version.cuda)
    if device == "auto" and no_cuda is not None:
        return f"this runs on the CPU: {no_cuda}"
    reason = no_cuda or old_driver(torch.version.cuda)
    if reason is None and device == "cuda" and not torch.cuda.is_available():
        reason = "torch sees no GPU here; allowed: auto, cpu"
    if reason is not None:
        raise ConfigError(f"cluster.device={device}: {reason}")
    return None


OLDEST_DRIVER = {12: 525, 13: 580}  # by CUDA's major version


def driver_version() -> int | None:
    """The major version of NVIDIA's driver; None where there is none."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+)\.\d", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None


def supported_cuda() -> int:
    """The major version of CUDA that the driver's library has, which may be newer than the driver (cuda-compat)."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def old_driver(cuda: str | None) -> str | None:
    """The line for a driver that is older than this CUDA needs; None where there is nothing to say."""
    major = int((cuda or "0").partition(".")[0])
    found, least = driver_version(), OLDEST_DRIVER.get(major, 0)
    if found is None or found >= least or supported_cuda() >= major:
        return None
    remedy = "update it, install a torch for its CUDA, or set cluster.device=cpu"
    return f"NVIDIA's driver is {found}, CUDA {cuda} needs {least} or newer: {remedy}"


def torch_without_cuda(version: str, cuda: str | None) -> str | None:
    """The line for a torch that can't use the GPU whose driver is here; None where there is nothing to say.

    version, cuda: of torch, the second None for a build without CUDA.
    """
    found = driver_version()
    if found is None or cuda is not None:
        return None
    return (
        f"a GPU is here (NVIDIA's driver {found}), but torch {version} has no CUDA: "
        "pip install -c constraints-gpu.txt torch (docs/gpu.md), or set cluster.device=cpu"
    )
