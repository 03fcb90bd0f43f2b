"""Requirements of vLLM beside a GPU, examined in seconds; each lack is one line with its remedy."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from topr_exp.runtime.machine import c_compiler, driver_version, old_driver
from topr_exp.types import ConfigError

SHARED_MEMORY = Path("/dev/shm")
MIN_SHARED_GIB = 1.0
TESTED = {"vllm": ("0.30", "0.33"), "torch": ("2.13", "2.14")}  # first and last version that was run or read
PROBE_SECONDS = 180.0  # from a cold file server
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
include = sysconfig.get_path("include")
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


def check_gpu_machine(python: str) -> str | None:
    """Raise ConfigError for the first unmet requirement of vLLM on a GPU; return a warning for untested versions."""
    values, lacks = examine(python)
    if lacks:
        raise ConfigError(f"sampler=vllm: {lacks[0]}")
    return describe_untested(values)


def examine(python: str) -> tuple[dict[str, str], list[str]]:
    """Return the value of each requirement by name, and a line for each lack; python: that samples with vLLM."""
    installation, failure = probe(python)
    requirements = [Requirement("vLLM", installation.vllm if installation is not None else "", failure)]
    cuda = None
    if installation is not None:
        cuda = installation.cuda
        requirements += [torch_requirement(installation, python), headers_requirement(installation)]
    compiler = c_compiler()
    no_compiler = None if compiler else "no C compiler, with which Triton builds: install gcc"
    requirements += [
        Requirement("driver", str(driver_version()), old_driver(cuda)),
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
    """Return the line for versions outside the tested ranges; None within them; values: by `examine`."""
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
