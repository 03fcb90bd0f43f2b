"""A copy of the tree, and the tests that fail in it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT, TEST_LIMIT = 600, 120  # seconds for some tests together, and for each, which fails when it takes longer


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
    report = tree / "outputs" / "tests.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT}",
               f"--junitxml={report}", *(["-x"] if first else []), *tests]  # fmt: skip
    shared = {"TOPR_SHARED_DATA": str(ROOT.parent / "shared" / "data")}
    environment = {**shared, **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree)}
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            told = process.communicate(timeout=LIMIT)[0].decode(errors="replace")
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise
    if process.returncode not in (0, 1, 2) or not report.is_file():
        sys.exit(f"pytest ended with status {process.returncode}:\n{told[-3000:]}")
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return [identity(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]


def identity(case: ElementTree.Element) -> str:
    """A test as pytest's command line takes it; a file that can't be imported is a name alone."""
    classname, name = case.get("classname", ""), case.get("name", "")
    return f"{classname.replace('.', '/')}.py::{name}" if classname else f"{name.replace('.', '/')}.py"
