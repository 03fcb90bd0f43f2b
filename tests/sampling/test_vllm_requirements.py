"""Requirements of vLLM on a GPU machine: each lack is one line, before any weights are loaded."""

import os
import venv
from pathlib import Path

import pytest

from tests.conftest import config_of, refused
from topr_exp.runs.preflight import check_machine
from topr_exp.sampling.engine import DISTRIBUTED
from topr_exp.sampling.vllm_requirements import check_gpu_machine, examine, probe
from topr_exp.types import ConfigError

OLD_DRIVER = "NVRM version: NVIDIA Kernel Module  550.54.15\n"


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
    monkeypatch.setattr("topr_exp.runtime.machine.DRIVER", tmp_path / "version")
    monkeypatch.setattr("topr_exp.sampling.vllm_requirements.SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None)
    return tmp_path


def test_a_machine_that_has_all(machine: Path) -> None:
    found, lacks = examine(str(machine / "python"))
    assert not lacks
    assert found["driver"] == "580"
    assert found["torch"] == "2.14.0, CUDA 13.0"
    check_gpu_machine(str(machine / "python"))


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("Python.h", None, "no Python.h"),
        ("gcc", None, "no C compiler"),
        ("version", OLD_DRIVER, "driver is 550"),
        ("probe.json", '["/", null, "2.13.0+cpu", "0.33.0"]', "has no CUDA"),
        ("python", "#!/bin/sh\necho 'No module named vllm' >&2\nexit 1\n", "No module"),
        ("python", None, "No such file"),
    ],
)
def test_what_is_missing_is_one_line(machine: Path, name: str, content: str | None, line: str) -> None:
    (machine / name).unlink() if content is None else (machine / name).write_text(content)
    with refused(line, ConfigError):
        check_gpu_machine(str(machine / "python"))


@pytest.mark.parametrize(
    ("torch", "vllm", "fits"),
    [("2.13.0+cu130", "0.30.0rc1", True), ("2.14.1", "0.33.2", True), ("2.14.0", "0.34.0", False),
     ("2.12.1", "0.30.0", False), ("2.15.0.dev1", "0.33.0", False)],
)  # fmt: skip
def test_untested_versions_are_a_warning_on_a_gpu_with_vllm_alone(machine, torch, vllm, fits, monkeypatch, capsys):
    monkeypatch.setattr("topr_exp.sampling.engine.check_python", lambda python: str(machine / "python"))
    monkeypatch.setattr("topr_exp.runs.preflight.check_device", lambda device: None)
    (machine / "probe.json").write_text(f'["{machine}", "13.0", "{torch}", "{vllm}"]\n')
    here = ["experiment=smoke", f"output_dir={machine}/out"]
    check_machine([config_of(*here), config_of(*here, "sampler=vllm", "cluster.device=cpu")])
    assert capsys.readouterr().err == ""
    check_machine([config_of(*here, "sampler=vllm")])
    line = (
        f"warning: sampler=vllm: vLLM {vllm} with torch {torch} was not tested; tested are vLLM 0.30 to 0.33 and torch "
        "2.13 to 2.14 (constraints-gpu.txt pins a pair)\n"
    )
    assert capsys.readouterr().err == ("" if fits else line)


def test_nothing_is_imported_to_learn_what_an_environment_has(tmp_path: Path) -> None:
    """An import of vLLM takes 20 seconds, before every run; CUDA's version is that with which torch was built."""
    site = Path(venv.create(tmp_path / "venv", symlinks=True) or tmp_path / "venv") / "lib"
    (site,) = site.glob("python*/site-packages")
    for module, version in (("torch", "2.14.0+cu130"), ("vllm", "0.33.1")):
        folder = site / module
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        (info / "RECORD").write_text(f"{module}/__init__.py,,\n")
    (site / "torch" / "version.py").write_text("__version__ = '2.14.0+cu130'\ncuda = '13.0'\n")
    installation, failure = probe(str(tmp_path / "venv" / "bin" / "python"))
    assert failure is None
    assert installation is not None
    assert installation[1:] == ("13.0", "2.14.0+cu130", "0.33.1")
    assert installation.include


def test_little_shared_memory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))  # 64 MiB, as docker gives
    monkeypatch.setattr(os, "statvfs", lambda folder: small)
    assert examine(str(machine / "python"))[1] == [
        f"{machine} has 0.1 GiB free, 1.0 are needed: docker run --shm-size=8g"
    ]


def test_an_engine_does_not_take_itself_for_a_process_of_the_run() -> None:
    of_run = ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT", "WORLD_SIZE",
              "TORCHELASTIC_USE_AGENT_STORE"]  # fmt: skip
    others = ["CUDA_VISIBLE_DEVICES", "PATH", "HF_HOME", "LD_LIBRARY_PATH"]
    assert [name for name in of_run + others if name.startswith(DISTRIBUTED)] == of_run
