"""A single run keeps what it printed; `overwrite=true` starts it anew and throws nothing away."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import topr_exp
from tests.conftest import ROOT, config_of, overrides, refused
from topr_exp.report.runs import find_runs
from topr_exp.runs import attempt
from topr_exp.sweeps.launch import start_all_anew
from topr_exp.sweeps.sweep import Run


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "topr_exp", *words], cwd=ROOT, capture_output=True, text=True)


def test_a_run_keeps_what_it_printed_and_says_what_is_next_and_overwrite_starts_it_anew(tmp_path: Path) -> None:
    words = overrides(tmp_path, "optim.lr=1e30")
    folder = config_of(*words).folder
    failed = command(*words)
    assert failed.returncode == 1
    log = (folder / "log.txt").read_text()
    assert log.startswith("==== ")
    assert failed.stderr.splitlines()[-1] in log.splitlines()
    assert "trained on" in log
    done = command(*overrides(tmp_path, "cluster.processes=2"))
    assert done.returncode == 0, done.stderr
    folder = config_of(*overrides(tmp_path)).folder
    log = (folder / "log.txt").read_text()
    assert log.count("next: python -m topr_exp.report") == done.stdout.count("next: python -m topr_exp.report") == 1
    assert f"python -m topr_exp.evaluate model={folder} data.eval_n=64" in done.stdout
    again = command(*overrides(tmp_path))
    assert "finished before" in again.stdout
    assert (folder / "log.txt").read_text() == log
    anew = topr_exp.run(topr_exp.compose(overrides(tmp_path, "overwrite=true")))
    old = folder.parent / "replaced" / f"{folder.name}-1"
    assert (old / "DONE").exists()
    assert not (old / attempt.CLAIM).exists()
    assert json.loads((old / "summary.json").read_text())["final"]["pass@1"] == pytest.approx(anew["final"]["pass@1"])
    assert json.loads((folder / "config.json").read_text())["resolved"]["overwrite"] is False
    assert sorted(run.path for run in find_runs([tmp_path])) == sorted([folder, config_of(*words).folder])


def test_a_folder_at_work_is_not_moved(tmp_path: Path) -> None:
    config = config_of(*overrides(tmp_path, "overwrite=true"))
    assert attempt.start_anew(config).overwrite is False  # no folder: nothing to move
    config.folder.mkdir(parents=True)
    child = "import sys; from pathlib import Path; from topr_exp.runs.attempt import lock_run_folder\n"
    child += "with lock_run_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n"
    run = Run(config.folder, 3, [], {}, "", [], 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", child, str(config.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with refused("is being run by process"):
            attempt.start_anew(config)
        with refused("overwrite=true: run 3 is running; cancel it first"):
            start_all_anew([run])
        holder.communicate()
    (config.folder / "mine").touch()
    start_all_anew([run])
    attempt.move_aside(config.folder)  # there is none
    assert (config.folder.parent / "replaced" / f"{config.folder.name}-1" / "mine").exists()
