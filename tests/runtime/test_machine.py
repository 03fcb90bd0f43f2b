"""What is said of a precision that the CPU has no instructions for."""

from pathlib import Path

import pytest

from topr_exp.runtime import machine
from topr_exp.runtime.machine import SLOW_BFLOAT16, slow_precision

X86 = "processor\t: 0\nmodel name\t: any\nflags\t\t: fpu sse avx2 avx512f{}\n\nprocessor\t: 1\nflags\t\t: amx_bf16\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd{}\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (X86.format(""), SLOW_BFLOAT16),
        (X86.format(" avx512_bf16"), ""),
        (X86.format(" amx_bf16 amx_tile"), ""),
        (X86.format(" not_amx_bf16"), SLOW_BFLOAT16),
        (ARM.format(""), SLOW_BFLOAT16),
        (ARM.format(" bf16"), ""),
        ("processor : 0\n", ""),
    ],
)
def test_bfloat16_is_slow_on_a_cpu_without_its_instructions(text, line, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    assert slow_precision("cpu", "bfloat16") == line
    assert slow_precision("cpu", "float32") == slow_precision("cuda", "bfloat16") == ""


def test_nothing_is_said_where_no_flags_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "none")
    assert slow_precision("cpu", "bfloat16") == ""
