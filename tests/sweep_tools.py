"""What the tests of sweeps share: the command lines, and what two sweeps must have in common."""

import hashlib
import importlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, lines_of
from tests.processes import Command

# A run of a second or two, with a checkpoint after every update.
TINY = ["experiment=smoke", "data.train_problems=8", "data.test_problems=4", "checkpoint.every_seconds=0"]


def slow(loss: str) -> list[str]:
    """Settings for a loss of tests/slow.py: a tenth of a second for each update, at least."""
    return [f"algo._target_=tests.slow.{loss}", "+algo.seconds=0.1"]


SLOW = slow("Slow")
PLACES = ("rollouts", "verdicts")  # where an evaluation's tables are


def environment(variables: Mapping[str, str] = {}) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **variables}


def start(module: str, *arguments: object, **variables: str) -> Command:
    """A command line of the package in a process of its own."""
    return Command(module, *map(str, arguments), environment=environment(variables))


def command(module: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same, waited for."""
    process = start(module, *arguments, **variables)
    out, err = process.communicate(1500)
    return subprocess.CompletedProcess([module, *arguments], process.returncode, out, err)


def answer(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command line in this process, whose fork server has the imports done; what its runs print is in their logs."""
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{name}.__main__")
    out = io.StringIO()
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        for key, value in variables.items():
            patch.setenv(key, value)
        return subprocess.CompletedProcess([name, *arguments], module.main(), out.getvalue(), err.getvalue())


def launch(output: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A sweep with tiny settings."""
    return answer("topr_exp", "-m", *TINY, f"output_dir={output}", *arguments, **variables)


def records(folder: Path) -> list[dict[str, Any]]:
    """What a run logged of its updates, but for their speed."""
    lines = lines_of(folder / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def result(folder: Path) -> dict[str, Any]:
    """Everything that a run computed: weights to the bit, every update, every evaluation."""
    evaluations = lines_of(folder / "eval.jsonl")
    for evaluation in evaluations:
        for place in PLACES:
            evaluation.pop(place, None)
    return {
        "weights": hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest(),
        "updates": records(folder),
        "evaluations": evaluations,
    }


def results(sweep: Path) -> dict[str, dict[str, Any]]:
    """The same of every finished run of a sweep, by folder."""
    return {mark.parent.name: result(mark.parent) for mark in sorted(sweep.glob("*/DONE"))}


def launched(sweep: Path) -> list[dict[str, Any]]:
    """What is noted of each run, by number, and its `folder`."""
    runs = [{**json.loads(path.read_text()), "folder": path.parent} for path in sweep.glob("*/launch.json")]
    return sorted(runs, key=lambda run: run["number"])


def attempts(sweep: Path) -> dict[str, int]:
    """How often each run was started."""
    states = {path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/state.json")}
    return {name: state["attempt"]["number"] for name, state in states.items()}


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """The first true value of `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, ValueError, KeyError, IndexError):  # files that are not there yet
            pass
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def steps(folder: Path) -> int:
    """The updates that a run has done so far."""
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
