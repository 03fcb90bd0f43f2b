"""Hardware, driver and compilers of this machine; what is missing is one line with its remedy."""

import contextlib
import ctypes
import os
import re
import shutil
import socket
import sys
import sysconfig
from pathlib import Path

from topr_exp.config.sampler_choice import DRIVER
from topr_exp.types import ConfigError, TOPRError

CPU_INFO = Path("/proc/cpuinfo")
CPU_FLAG_ROWS = ("flags", "Features")  # on x86, on Arm
BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16"}
SLOW_BFLOAT16 = (
    "this CPU has no instructions for bfloat16 (AMX or AVX512-BF16): model.dtype=float32 is faster and more accurate"
)
SLOW_BFLOAT16_GPU = (
    "this GPU has no arithmetic for bfloat16 (compute capability 8.0 has): model.dtype=float32 may be faster"
)
FIRST_BFLOAT16_GPU = (8, 0)  # compute capability
OLDEST_DRIVER = {12: 525, 13: 580}  # by CUDA's major version


# ---- compilers


def c_compiler() -> str | None:
    """Return the path of the C compiler with which Triton would build GPU kernels; None for none."""
    return find_program([os.environ.get("CC") or "gcc", "gcc", "clang"])


def cxx_compiler() -> str | None:
    """Return the path of the C++ compiler with which torch.compile would build CPU kernels; None for none."""
    return find_program([os.environ.get("CXX") or "g++", "g++", "clang++"])


def python_header() -> Path:
    """Return where the kernels that torch.compile builds find Python.h, or would look for it first."""
    folders = [sysconfig.get_path("include"), sysconfig.get_path("include", "posix_prefix")]  # unlike on Debian
    headers = [Path(folder) / "Python.h" for folder in folders]
    return next(filter(Path.is_file, headers), headers[0])


def find_program(names: list[str]) -> str | None:
    """Return the path of the first of these programs that is on PATH; None for none."""
    return next(filter(None, map(shutil.which, names)), None)


# ---- CPU


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use; only Linux tells of fewer than there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe_slow_precision(device: str, precision: str, cpu_info: Path = CPU_INFO) -> str:
    """Return the line for a precision that CPU or GPU compute more slowly than float32; "" for others or if unknown."""
    if precision != "bfloat16":
        return ""
    if device == "cuda":
        import torch

        return SLOW_BFLOAT16_GPU if torch.cuda.get_device_capability() < FIRST_BFLOAT16_GPU else ""
    flags = cpu_flags(cpu_info)
    if not flags or flags & BFLOAT16_FLAGS:
        return ""
    return SLOW_BFLOAT16


def cpu_flags(cpu_info: Path) -> set[str]:
    """Return the flags of the first processor; none where the system lists none."""
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    for line in lines:
        row, _, flags = line.partition(":")
        if row.strip() in CPU_FLAG_ROWS:
            return set(flags.split())
    return set()


# ---- GPU


def check_device(device: str) -> str | None:
    """Raise ConfigError for a GPU that can't be used; return a warning where the CPU computes beside a GPU."""
    if device == "cpu" or (device == "auto" and driver_version() is None):
        return None
    import torch

    no_cuda = describe_torch_without_cuda(torch.__version__, torch.version.cuda)
    if device == "auto" and no_cuda is not None:
        return f"this runs on the CPU: {no_cuda}"
    reason = no_cuda or describe_old_driver(torch.version.cuda)
    if reason is None and device == "cuda" and not torch.cuda.is_available():
        reason = "torch sees no GPU here; allowed: auto, cpu"
    if reason is not None:
        raise ConfigError(f"cluster.device={device}: {reason}")
    return None


def refuse_unusable_gpu() -> None:
    """Raise ConfigError for a GPU that computes nothing: older than torch's kernels, broken or taken by others."""
    import torch

    try:
        torch.ones(1, device="cuda").sum().item()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"cluster.device: torch {torch.__version__} can't compute on this GPU ({reason}); take another GPU, a "
            "torch with kernels for this one, or cluster.device=cpu"
        ) from error


def refuse_missing_gpu() -> None:
    """Raise TOPRError on a node whose GPU has failed: a job that asked for one would compute on the CPUs for days."""
    import torch

    if not torch.cuda.is_available():
        node = socket.gethostname()
        raise TOPRError(
            f"cluster.gpus_per_node asks for a GPU, but torch sees none on {node}; exclude this node by "
            f"'cluster.additional_parameters={{exclude: {node}}}', or set cluster.device=cpu"
        )


def driver_version() -> int | None:
    """Return the major version of NVIDIA's driver; None for no driver."""
    try:
        text = DRIVER.read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"Kernel Module.*?\s(\d+)\.\d", text)
    return int(version[1]) if version is not None else None


def supported_cuda() -> int:
    """Return the major CUDA version of the driver's library, which may be newer than the driver (cuda-compat)."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def describe_old_driver(cuda: str | None) -> str | None:
    """Return the line for a driver that is too old for a CUDA version; None for others or no driver."""
    cuda_major = int((cuda or "0").partition(".")[0])
    oldest_driver = OLDEST_DRIVER.get(cuda_major, 0)
    driver = driver_version()
    if driver is None or driver >= oldest_driver or supported_cuda() >= cuda_major:
        return None
    remedy = "update it, install a torch for its CUDA, or set cluster.device=cpu"
    return f"NVIDIA's driver is {driver}, CUDA {cuda} needs {oldest_driver} or newer: {remedy}"


def describe_torch_without_cuda(torch_version: str, cuda: str | None) -> str | None:
    """Return the line for a torch that can't use this machine's GPU; None for others or no driver.

    cuda: the version with which torch was built; None for a build without CUDA.
    """
    driver = driver_version()
    if driver is None or cuda is not None:
        return None
    return (
        f"a GPU is here (NVIDIA's driver {driver}), but torch {torch_version} has no CUDA: "
        "pip install -c constraints-gpu.txt torch (docs/gpu.md), or set cluster.device=cpu"
    )
