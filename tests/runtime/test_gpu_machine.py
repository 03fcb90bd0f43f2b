"""What a bare GPU machine lacks is one line each, before any weights are loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import config_of
from topr_exp.runs.preflight import check_machine
from topr_exp.runtime import gpu_machine
from topr_exp.runtime.distributed import check_device
from topr_exp.runtime.gpu_machine import check_gpu_machine, examine, old_driver
from topr_exp.types import ConfigError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with all that is needed; its `python` prints what is in probe.json."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat {tmp_path}/probe.json\n")
    gcc = tmp_path / "gcc"
    gcc.write_text("#!/bin/sh\n")
    for script in (python, gcc):
        script.chmod(0o755)
    (tmp_path / "probe.json").write_text(f'["{tmp_path}", "13.0", "2.14.0", "0.33.0"]\n')
    (tmp_path / "Python.h").touch()
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    (tmp_path / "version").write_text(version)
    monkeypatch.setattr(gpu_machine, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(gpu_machine, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(
        gpu_machine.shutil, "which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None
    )
    return tmp_path


def test_a_machine_that_has_all(machine: Path) -> None:
    found, lacks = examine(str(machine / "python"))
    assert not lacks
    assert found["driver"] == "580"
    assert found["torch"] == "2.14.0, CUDA 13.0"
    check_gpu_machine(str(machine / "python"))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda root: (root / "Python.h").unlink(), "no Python.h"),
        (lambda root: (root / "gcc").unlink(), "no C compiler"),
        (
            lambda root: (root / "version").write_text("NVRM version: NVIDIA Kernel Module  550.54.15\n"),
            "driver is 550",
        ),
        (lambda root: (root / "probe.json").write_text(f'["{root}", null, "2.13.0+cpu", "0.33.0"]'), "has no CUDA"),
        (
            lambda root: (root / "python").write_text("#!/bin/sh\necho 'No module named vllm' >&2\nexit 1\n"),
            "No module",
        ),
        (lambda root: (root / "python").unlink(), "import vllm"),
    ],
    ids=["headers", "compiler", "driver", "torch", "vllm", "python"],
)
def test_what_is_missing_is_one_line(machine: Path, damage, line: str) -> None:
    damage(machine)
    with pytest.raises(ConfigError, match=line) as refused:
        check_gpu_machine(str(machine / "python"))
    assert "\n" not in str(refused.value)


def test_little_shared_memory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))  # 64 MiB, as docker gives
    monkeypatch.setattr(gpu_machine.os, "statvfs", lambda folder: small)
    assert examine(str(machine / "python"))[1] == [
        f"{machine} has 0.1 GiB free, 1.0 are needed: docker run --shm-size=8g"
    ]


def test_no_driver_and_no_cuda_are_nothing_to_say(machine: Path) -> None:
    assert old_driver(None) is None
    (machine / "version").unlink()
    assert old_driver("13.0") is None


def test_this_environment_is_probed_for_real() -> None:
    include, _, _, _, failure = gpu_machine.probe(sys.executable)
    assert failure is None or "vllm" in failure
    assert failure or Path(include).is_dir()


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_driver_that_torch_is_too_new_for(machine: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "version").write_text("NVRM version: NVIDIA Kernel Module  550.54.15\n")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    with pytest.raises(ConfigError, match=f"cluster.device={device}: NVIDIA's driver is 550, CUDA 13.0 needs 580"):
        check_device(device)
    check_device("cpu")


def test_a_run_that_samples_with_vllm_here_is_refused_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.sampling.engine.check_python", lambda python: str(machine / "python"))
    monkeypatch.setattr("topr_exp.runs.preflight.check_device", lambda device: None)
    (machine / "Python.h").unlink()
    config = config_of("experiment=smoke", "sampler=vllm", f"output_dir={machine}/out")
    with pytest.raises(ConfigError, match=r"sampler=vllm: .*no Python\.h"):
        check_machine([config])
    elsewhere = config_of("experiment=smoke", "sampler=vllm", f"output_dir={machine}/out", "cluster.device=cpu")
    check_machine([elsewhere])
