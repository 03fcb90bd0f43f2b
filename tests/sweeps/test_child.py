"""How a forked process ended, as its launcher learns of it; and what the launcher of a machine passes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.config.schema import plain
from topr_exp.runs.plan import Job
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps import child
from topr_exp.sweeps.child import Child, Killed
from topr_exp.sweeps.local import run_locally
from topr_exp.sweeps.status import report
from topr_exp.sweeps.sweep import Run, Sweep
from topr_exp.types import ConfigError, TOPRError

ERRORS = {
    "config": ConfigError("a setting"),
    "ours": TOPRError("two\nlines"),
    "bug": ValueError("theirs"),
    "stop": Interrupted(signal.SIGTERM),
}


def end(way: str) -> None:
    if way in ERRORS:
        raise ERRORS[way]
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "exit":
        os._exit(3)


@pytest.mark.parametrize(
    ("way", "kind", "text"),
    [
        ("done", type(None), "None"),
        ("config", ConfigError, "a setting"),
        ("ours", TOPRError, "two lines"),
        ("bug", TOPRError, "ValueError: theirs"),
        ("stop", Interrupted, "stopped by SIGTERM; the same command goes on from there"),
        ("kill", Killed, "killed by SIGKILL (out of memory?)"),
        ("exit", Killed, "ended with exit code 3"),
    ],
)
def test_the_ending_of_a_process(way: str, kind: type, text: str) -> None:
    process = Child(end, way)
    over: list[Child] = []
    while not over:
        over = child.wait([process], 60.0)
    ending = process.ending()
    assert (type(ending), str(ending)) == (kind, text)


def test_what_ends_a_run_before_it_opens_its_folder_is_passed_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job([], config_of(f"output_dir={tmp_path}"))
    sweep = Sweep(job.config.folder.parent, [])
    (run,) = sweep.add([job], [])
    assert run.settings == plain(job.config)
    run.cwd = str(tmp_path / "gone")
    told: list[tuple[Run | None, Any]] = []
    run_locally(sweep, [run], 1, 1, lambda *which: told.append(which))
    told = [(which, message) for which, message in told if which is not None]  # None: a minute passed
    expected = f"cannot enter {run.cwd}, where the sweep was launched: No such file or directory"
    assert told == [(run, expected)]
    report(sweep, *told[0])
    assert capsys.readouterr().out.endswith(f"run 1 new ({run.folder}): {expected}\n")
    assert expected in (sweep.path(run) / "log.txt").read_text()
