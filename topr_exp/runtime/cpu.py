"""What the CPU of this machine computes fast, by the flags that Linux lists."""

from pathlib import Path

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
