"""Hardware of this machine: a precision without instructions, a driver or torch that can't use the GPU."""

import re
from unittest.mock import Mock

import pytest
import torch

from tests.conftest import config_of, each_row, refused
from topr_exp.models.policy import load_policy
from topr_exp.runs.preflight import check_machine
from topr_exp.runtime import machine
from topr_exp.runtime.machine import SLOW_BFLOAT16, SLOW_BFLOAT16_GPU, check_device, describe_slow_precision
from topr_exp.types import ConfigError

# /proc/cpuinfo | whether bfloat16 is slow there
CPUS = r"""
"flags\t\t: fpu sse avx2 avx512f\n\nprocessor\t: 1\nflags\t\t: amx_bf16\n" | True
"flags : avx512f avx512_bf16\n" | False
"flags : amx_bf16 amx_tile\n" | False
"flags : not_amx_bf16\n" | True
"Features\t: fp asimd\n" | True
"Features\t: fp asimd bf16\n" | False
"processor : 0\n" | False
"""  # of the first the first processor counts, of the last nothing is known


@each_row("cpu_info is_slow", CPUS, literals=True)
def test_bfloat16_is_slow_on_a_cpu_without_its_instructions(cpu_info, is_slow, tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(cpu_info)

    assert describe_slow_precision("cpu", "bfloat16", path) == (SLOW_BFLOAT16 if is_slow else "")
    assert describe_slow_precision("cpu", "float32", path) == ""


@pytest.mark.parametrize("capability, line", [((7, 5), SLOW_BFLOAT16_GPU), ((8, 0), "")])
def test_bfloat16_is_slow_on_a_gpu_before_ampere(capability, line, monkeypatch):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)

    assert describe_slow_precision("cuda", "bfloat16") == line
    assert describe_slow_precision("cuda", "float32") == ""


# ---- GPU

NEW_DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
OLD_DRIVER = "NVRM version: NVIDIA Kernel Module  550.54.15\n"
NO_CUDA = (
    f"a GPU is here (NVIDIA's driver 580), but torch {torch.__version__} has no CUDA: "
    "pip install -c constraints-gpu.txt torch (docs/gpu.md), or set cluster.device=cpu"
)


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The file in which NVIDIA's driver shows its version."""
    path = tmp_path / "version"
    path.write_text(NEW_DRIVER)
    monkeypatch.setattr(machine, "DRIVER", path)
    return path


@pytest.fixture
def build_torch(monkeypatch):
    """A function: have torch be built for this version of CUDA."""
    return lambda version: monkeypatch.setattr("torch.version.cuda", version)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_driver_that_torch_is_too_new_for_is_refused(device, driver, build_torch):
    driver.write_text(OLD_DRIVER)
    build_torch("13.0")

    with refused(f"cluster.device={device}: NVIDIA's driver is 550, CUDA 13.0 needs 580", ConfigError):
        check_device(device)
    check_device("cpu")


def test_a_torch_without_cuda_beside_a_gpu_is_one_line(driver, build_torch, capsys):
    """On a machine with a GPU a run that computes on the CPU, a hundred times more slowly, is seldom meant."""
    build_torch(None)
    words = ["experiment=smoke", f"output_dir={driver.parent}/out"]

    check_machine([config_of(*words)])
    assert capsys.readouterr().err == f"warning: this runs on the CPU: {NO_CUDA}\n"
    with refused(f"^cluster.device=cuda: {re.escape(NO_CUDA)}$", ConfigError):
        check_device("cuda")

    check_machine([config_of(*words, "cluster.device=cpu")])
    driver.unlink()  # no GPU
    check_machine([config_of(*words)])
    assert capsys.readouterr().err == ""


def test_a_gpu_that_torch_has_no_kernels_for_is_one_line(driver, build_torch, monkeypatch):
    """As CUDA 13 has none for a V100, which its driver still knows."""
    build_torch("13.0")
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nSearch for its name")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.ones", Mock(side_effect=error))

    with refused(
        r"^cluster\.device: torch .* can't compute on this GPU \(CUDA error: no kernel image .*\); ", ConfigError
    ):
        load_policy(config_of().model, "auto")
