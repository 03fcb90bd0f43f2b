"""What the tests of sweeps share: the command lines, and what two sweeps must have in common."""

import hashlib
import importlib
import io
import os
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from unittest.mock import patch

from tests.conftest import ROOT, lines_of, read_json
from tests.processes import Command

# A run of a second or two, with a checkpoint after every update.
TINY = ["experiment=smoke", "data.train_problems=8", "data.test_problems=4", "checkpoint.every_seconds=0"]


SLOW_LOSS = "algo._target_=tests.slow.Slow"


def slow(brake, loss=SLOW_LOSS):
    """Settings for a loss of tests/slow.py, and the file `brake`: until it is removed an update takes a second."""
    brake.touch()
    return [loss, f"+algo.file={brake}"]


# ---- commands


def environment(**variables):
    return {**os.environ, "OMP_NUM_THREADS": "1", **variables}


def start(module, *words, **variables):
    """A command line of the package in a process of its own."""
    return Command(module, *map(str, words), environment=environment(**variables))


def command(module, *words, **variables):
    """The same, waited for."""
    process = start(module, *words, **variables)
    out, err = process.communicate(1500)
    return subprocess.CompletedProcess([module, *words], process.returncode, out, err)


def answer(name, *words, **variables):
    """A command line in this process, whose fork server has the imports done; what its runs print is in their logs."""
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        module = importlib.import_module(f"{name}.__main__")
    out = io.StringIO()
    err = io.StringIO()
    command_line = patch.multiple(sys, argv=[name, *map(str, words)], path=[*sys.path])
    with command_line, patch.dict(os.environ, variables), chdir(ROOT), redirect_stdout(out), redirect_stderr(err):
        try:
            returncode = module.main()
        except SystemExit as error:  # of an option that there is not
            returncode = error.code
    return subprocess.CompletedProcess([name, *words], returncode, out.getvalue(), err.getvalue())


def launch(output, *words, **variables):
    """A sweep with tiny settings."""
    return answer("topr_exp", "-m", *TINY, f"output_dir={output}", *words, **variables)


# ---- results


def records(folder):
    """What a run logged of its updates, but for their speed."""
    updates = lines_of(folder / "metrics.jsonl")
    for update in updates:
        update.pop("tokens_per_second", None)
    return updates


def result(folder):
    """Everything that a run computed: weights to the bit, every update, every evaluation."""
    evaluations = lines_of(folder / "eval.jsonl")
    for evaluation in evaluations:
        evaluation.pop("rollouts", None)  # where an evaluation's tables are
        evaluation.pop("verdicts", None)
    weights = (folder / "model/model.safetensors").read_bytes()
    return {"weights": hashlib.sha256(weights).hexdigest(), "updates": records(folder), "evaluations": evaluations}


def results(sweep):
    """The same of every finished run of a sweep, by folder."""
    return {mark.parent.name: result(mark.parent) for mark in sorted(sweep.glob("*/DONE"))}


def launched(sweep):
    """What is noted of each run, by number, and its `folder`."""
    runs = [{**read_json(path), "folder": path.parent} for path in sweep.glob("*/launch.json")]
    return sorted(runs, key=lambda run: run["number"])


def attempts(sweep):
    """How often each run was started."""
    counts = {}
    for path in sweep.glob("*/state.json"):
        counts[path.parent.name] = read_json(path)["attempt"]["number"]
    return counts


def steps(folder):
    """The updates that a run has done so far."""
    path = folder / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for(condition, seconds=300.0):
    """The first true value of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, ValueError, KeyError, IndexError):  # files that are not there yet
            pass
        time.sleep(0.05)
    raise AssertionError("waited in vain")
