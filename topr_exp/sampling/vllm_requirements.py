"""Requirements of vLLM beside a GPU; each lack is one line with its remedy."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from topr_exp.runtime.machine import c_compiler, driver_version, old_driver
from topr_exp.types import ConfigError

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_GIB = 1.0
TESTED = {"vllm": ("0.30", "0.33"), "torch": ("2.13", "2.14")}  # first and last version that was run or read
PROBE_SECONDS = 60.0
# By what lies on the disk: to import vLLM takes 20 seconds, and its engine says itself what it can't import.
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


def examine(python: str) -> tuple[dict[str, str], list[str]]:
    """Look at this machine with the environment that samples: what was found by name, and a line for each lack."""
    include, cuda, torch, vllm, failure = probe(python)
    rows = [("vLLM", vllm, failure)]
    if not failure:
        built = None if cuda else f"torch {torch} of {python} has no CUDA: install constraints-gpu.txt (docs/gpu.md)"
        headers = (
            f"{include} has no Python.h, with which Triton compiles: install python3-dev, or let uv install Python"
        )
        rows.append(("torch", f"{torch}, CUDA {cuda}", built))
        rows.append(("Python.h", include, None if (Path(include) / "Python.h").is_file() else headers))
    compiler = c_compiler()
    free = shutil.disk_usage(SHARED_MEMORY).free / 2**30 if SHARED_MEMORY.exists() else 0.0
    small = f"{SHARED_MEMORY} has {free:.1f} GiB free, {LEAST_SHARED_GIB} are needed: docker run --shm-size=8g"
    rows += [
        ("driver", str(driver_version()), old_driver(cuda)),
        ("C compiler", str(compiler), None if compiler else "no C compiler, with which Triton builds: install gcc"),
        ("shared memory", f"{free:.1f} GiB free", small if free < LEAST_SHARED_GIB else None),
    ]
    return {name: value for name, value, _ in rows}, [lack for *_, lack in rows if lack]


def probe(python: str) -> tuple[str, str | None, str, str, str | None]:
    """Headers' folder, CUDA, torch and vLLM of an environment, without an import, and the line that says its lack."""
    try:
        done = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", None, "", "", f"{python}: {error}"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return "", None, "", "", f"{python}: {last[:300]}"
    include, cuda, torch, vllm = json.loads(done.stdout.splitlines()[-1])
    return include, cuda, torch, vllm, None


def check_gpu_machine(python: str) -> str | None:
    """Raise ConfigError for the first lack of a machine on whose GPU vLLM is to sample; return what to warn of."""
    found, lacks = examine(python)
    if lacks:
        raise ConfigError(f"sampler=vllm: {lacks[0]}")
    return untested(found["vLLM"], found["torch"].partition(",")[0])


def untested(vllm: str, torch: str) -> str | None:
    """The line on versions outside the tested ranges; None within them."""
    found = {"vllm": vllm, "torch": torch}
    if all(minor(TESTED[name][0]) <= minor(version) <= minor(TESTED[name][1]) for name, version in found.items()):
        return None
    (first, last), (oldest, newest) = TESTED["vllm"], TESTED["torch"]
    return (
        f"sampler=vllm: vLLM {vllm} with torch {torch} was not tested; tested are vLLM {first} to {last} and torch "
        f"{oldest} to {newest} (constraints-gpu.txt pins a pair)"
    )


def minor(version: str) -> tuple[int, ...]:
    """Major and minor number of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
