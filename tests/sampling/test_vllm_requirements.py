"""Requirements of vLLM on a GPU machine: each lack is one line, before any weights are loaded."""

import os
import sysconfig
from pathlib import Path

import pytest

from tests.conftest import each_row, refused
from topr_exp.runs.preflight import check_engine
from topr_exp.sampling.vllm_requirements import check_gpu_machine, examine_machine, probe
from topr_exp.types import ConfigError

# Answers what an environment holds, and else the version of its vLLM.
PYTHON = """#!/bin/sh
case "$3" in *find_spec*) /bin/cat {0}/probe.json;; *) echo 0.33.0;; esac
"""
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder that is all that a machine with a GPU needs."""
    (tmp_path / "python").write_text(PYTHON.format(tmp_path))
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    for name in ("python", "gcc"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "probe.json").write_text(f'["{tmp_path}", "13.0", "2.14.0", "0.33.0"]\n')
    (tmp_path / "Python.h").touch()
    (tmp_path / "driver").write_text(DRIVER)
    monkeypatch.setattr("topr_exp.runtime.machine.DRIVER", tmp_path / "driver")
    monkeypatch.setattr("topr_exp.sampling.vllm_requirements.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(os, "environ", {"PATH": str(tmp_path)})
    return tmp_path


def test_a_machine_that_has_all_lacks_nothing(machine):
    values, lacks = examine_machine(str(machine / "python"))

    assert not lacks
    assert values["driver"] == "580"
    assert values["torch"] == "2.14.0, CUDA 13.0"


# A file of the machine | its content; None: it is not there | what is said
LACKS = r"""
"Python.h" | None | "no Python.h"
"gcc" | None | "no C compiler"
"driver" | "NVRM version: NVIDIA Kernel Module  550.54.15\n" | "driver is 550"
"probe.json" | '["/", null, "2.13.0+cpu", "0.33.0"]' | "has no CUDA"
"python" | "#!/bin/sh\necho 'No module named vllm' >&2\nexit 1\n" | "No module"
"python" | None | "No such file"
"""


@each_row("name content line", LACKS, literals=True)
def test_what_is_missing_is_one_line(machine, name, content, line):
    if content is None:
        (machine / name).unlink()
    else:
        (machine / name).write_text(content)

    with refused(line, ConfigError):
        check_gpu_machine(str(machine / "python"))


VERSIONS = """
"2.13.0+cu130" | "0.30.0rc1" | True
"2.14.1" | "0.33.2" | True
"2.14.0" | "0.34.0" | False
"2.12.1" | "0.30.0" | False
"2.15.0.dev1" | "0.33.0" | False
"""


@each_row("torch vllm is_tested", VERSIONS, literals=True)
def test_untested_versions_are_a_warning_on_a_gpu(machine, torch, vllm, is_tested, capsys):
    (machine / "probe.json").write_text(f'["{machine}", "13.0", "{torch}", "{vllm}"]\n')

    check_engine(str(machine / "python"), on_gpu=False)
    assert capsys.readouterr().err == ""

    check_engine(str(machine / "python"), on_gpu=True)
    line = (
        f"warning: sampler=vllm: vLLM {vllm} with torch {torch} was not tested; tested are vLLM 0.30 to 0.33 and torch "
        "2.13 to 2.14 (constraints-gpu.txt pins a pair)\n"
    )
    assert capsys.readouterr().err == ("" if is_tested else line)


def test_nothing_is_imported_to_learn_what_an_environment_has(make_environment):
    """An import of vLLM takes 20 seconds, before every run; CUDA's version is that with which torch was built."""
    python = make_environment({"torch": "2.14.0+cu130", "vllm": "0.33.1"})
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (packages / "torch/version.py").write_text("__version__ = '2.14.0+cu130'\ncuda = '13.0'\n")

    installation, failure = probe(python)

    assert failure is None
    assert installation[1:] == ("13.0", "2.14.0+cu130", "0.33.1")
    assert installation.include


# Debian's scheme as Ubuntu's Pythons of "deadsnakes" have it: the folder of its headers is empty.
DEBIAN = (
    "import sysconfig as config; "
    "config._INSTALL_SCHEMES['posix_local'] = config._INSTALL_SCHEMES['posix_prefix'] | {'include': '/nowhere'}; "
    "config.get_default_scheme = lambda: 'posix_local'; config.get_path.__defaults__ = ('posix_local', None, True)\n"
)


def test_headers_are_looked_for_where_triton_does(make_environment):
    python = make_environment({"torch": "2.14.0+cu130", "vllm": "0.33.1"})
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    (packages / "torch/version.py").write_text("__version__ = '2.14.0+cu130'\ncuda = '13.0'\n")
    (packages / "debian.pth").write_text(DEBIAN)

    installation, failure = probe(python)

    assert failure is None
    assert installation.include == sysconfig.get_path("include", "posix_prefix")


def test_little_shared_memory_is_told_with_the_way_to_more(machine, monkeypatch):
    small = os.statvfs_result((4096, 4096, 16384, 16384, 16384, 0, 0, 0, 0, 255))  # 64 MiB, as docker gives
    monkeypatch.setattr(os, "statvfs", lambda folder: small)

    _, lacks = examine_machine(str(machine / "python"))

    assert lacks == [f"{machine} has 0.1 GiB free, 1.0 are needed: docker run --shm-size=8g"]
