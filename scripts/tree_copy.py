"""A copy of the tree, and the tests that fail in it."""

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
LIMIT, TEST_LIMIT = 900, 300  # seconds for some tests together, and for each, which fails when it takes longer
PRELOADED = (
    "hydra", "hypothesis", "matplotlib.figure", "numpy", "omegaconf", "pyarrow", "pytest", "sympy", "torch",
    "torch.distributed.fsdp", "transformers", "transformers.modeling_layers",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip


def copy_tree(target: Path) -> None:
    """What git knows of the working tree, new files too."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def failing(tree: Path, tests: Sequence[str], *, first: bool) -> list[str] | None:
    """The tests that fail in a copy (only the first one of them if asked); None when they took too long."""
    report, told = tree / "outputs" / "tests.xml", tree / "outputs" / "told.txt"
    report.unlink(missing_ok=True)
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT}", f"--junitxml={report}"]
    status = run_pytest(tree, [*options, *(["-x"] if first else []), *tests], told)
    if status is None:
        return None
    if status not in (0, 1, 2, 5) or not report.is_file():
        sys.exit(f"pytest ended with status {status}:\n{told.read_text(encoding='utf-8', errors='replace')[-3000:]}")
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return [identity(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]


def run_pytest(tree: Path, arguments: Sequence[str], told: Path) -> int | None:
    """pytest's exit status in a child that need not import the large packages again; None when it took too long."""
    preload()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.setsid()
        number = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(number, stream)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[:] = [str(tree), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        import pytest

        os._exit(pytest.main([*arguments]))
    deadline, ended = time.monotonic() + LIMIT, 0
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what its tests left, or all of them
            os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


@functools.cache
def preload() -> None:
    """Import what takes seconds, and nothing of the package itself."""
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    os.environ.setdefault("TOPR_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    for name in PRELOADED:
        importlib.import_module(name)


def identity(case: ElementTree.Element) -> str:
    """A test as pytest's command line takes it; a file that can't be imported is a name alone."""
    classname, name = case.get("classname", ""), case.get("name", "")
    return f"{classname.replace('.', '/')}.py::{name}" if classname else f"{name.replace('.', '/')}.py"
