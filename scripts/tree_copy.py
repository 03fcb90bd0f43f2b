"""A copy of the working tree, and the tests that fail in it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 900  # seconds for the tests of one call
TEST_LIMIT = 300  # seconds for each test, which fails when it takes longer
TEST_STATUSES = (0, 1, 2, 5)  # of pytest: all passed, some failed, a file can't be imported, there was no test
PRELOADED = (
    "hydra",
    "hypothesis",
    "matplotlib.figure",
    "numpy",
    "omegaconf",
    "pyarrow",
    "pytest",
    "sympy",
    "torch",
    "torch.distributed.fsdp",
    "transformers",
    "transformers.modeling_layers",
    "transformers.models.llama.modeling_llama",
)


def copy_tree(target: Path) -> None:
    """Copy the files that git tracks or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in output.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def failing_tests(tree: Path, tests: Sequence[str], *, stop_at_first: bool) -> list[str] | None:
    """Run tests in a copy and return those that fail; None when they took too long."""
    report = tree / "outputs" / "tests.xml"
    log = tree / "outputs" / "tests.log"
    report.unlink(missing_ok=True)
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT}", f"--junitxml={report}"]
    if stop_at_first:
        options.append("-x")
    status = run_pytest(tree, [*options, *tests], log)
    if status is None:
        return None
    if status not in TEST_STATUSES or not report.is_file():
        output = log.read_text(encoding="utf-8", errors="replace")
        sys.exit(f"pytest ended with status {status}:\n{output[-3000:]}")
    failures = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failures.append(test_id(case))
    return failures


def run_pytest(tree: Path, arguments: Sequence[str], log: Path) -> int | None:
    """Run pytest in a forked child, which need not import the large packages; its status, None if it took too long."""
    preload()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        become_pytest(tree, arguments, log)
    deadline = time.monotonic() + LIMIT
    ended = 0
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # processes that its tests left, or all of it
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
    if not ended:
        return None
    return os.waitstatus_to_exitcode(status)


def become_pytest(tree: Path, arguments: Sequence[str], log: Path) -> None:
    """Turn this forked process into pytest on the files of `tree`."""
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    other_paths = [path for path in sys.path if path and Path(path).resolve() != ROOT]
    sys.path[:] = [str(tree), *other_paths]
    import pytest

    os._exit(pytest.main([*arguments]))


@functools.cache
def preload() -> None:
    """Import packages that take seconds, and nothing of this package."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    os.environ.setdefault("TOPR_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    for name in PRELOADED:
        importlib.import_module(name)


def test_id(case: ElementTree.Element) -> str:
    """Return a test as pytest's command line takes it; a file that can't be imported is a name alone."""
    class_name, name = case.get("classname", ""), case.get("name", "")
    if not class_name:
        return f"{name.replace('.', '/')}.py"
    return f"{class_name.replace('.', '/')}.py::{name}"
