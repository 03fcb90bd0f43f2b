"""Hardware of this machine: a precision without instructions, a driver or torch that can't use the GPU."""

from pathlib import Path

import pytest

from tests.conftest import config_of
from topr_exp.runs.preflight import check_machine
from topr_exp.runtime import machine
from topr_exp.runtime.machine import SLOW_BFLOAT16, check_device, old_driver, slow_precision
from topr_exp.types import ConfigError

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


# ---- GPU

NEW_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
OLD_DRIVER = "NVRM version: NVIDIA Kernel Module  550.54.15\n"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which NVIDIA's driver shows its version."""
    path = tmp_path / "version"
    path.write_text(NEW_DRIVER)
    monkeypatch.setattr(machine, "DRIVER", path)
    return path


def test_no_driver_and_no_cuda_are_nothing_to_say(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert old_driver(None) is None
    driver.write_text(OLD_DRIVER)
    monkeypatch.setattr(machine, "supported_cuda", lambda: 13)  # by compatibility libraries
    assert old_driver("13.0") is None
    monkeypatch.setattr(machine, "supported_cuda", lambda: 12)
    assert "driver is 550" in str(old_driver("13.0"))
    driver.unlink()
    assert old_driver("13.0") is None


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_driver_that_torch_is_too_new_for(driver: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.write_text(OLD_DRIVER)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(ConfigError, match=f"cluster.device={device}: NVIDIA's driver is 550, CUDA 13.0 needs 580"):
        check_device(device)
    check_device("cpu")


NO_CUDA = (
    "a GPU is here (NVIDIA's driver 580), but torch 2.13.0+cpu has no CUDA: pip install -c constraints-gpu.txt torch "
    "(docs/gpu.md), or set cluster.device=cpu"
)


def test_a_torch_without_cuda_beside_a_gpu_is_one_line(driver, monkeypatch, capsys):
    """On a machine with a GPU a run that computes on the CPU, a hundred times more slowly, is seldom meant."""
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.__version__", "2.13.0+cpu")
    check_machine([config_of("experiment=smoke", f"output_dir={driver.parent}/out")])
    assert capsys.readouterr().err == f"warning: this runs on the CPU: {NO_CUDA}\n"
    with pytest.raises(ConfigError) as error:
        check_device("cuda")
    assert str(error.value) == f"cluster.device=cuda: {NO_CUDA}"
    check_machine([config_of("experiment=smoke", f"output_dir={driver.parent}/out", "cluster.device=cpu")])
    driver.unlink()  # no GPU
    check_machine([config_of("experiment=smoke", f"output_dir={driver.parent}/out")])
    assert capsys.readouterr().err == ""
