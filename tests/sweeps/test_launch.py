"""What a launch starts, of runs in any state: those that are neither done nor at work nor queued, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.runs.plan import Job, recompose
from topr_exp.sweeps import launch
from topr_exp.sweeps.launch import run_unfinished
from topr_exp.sweeps.queue import Queue
from topr_exp.sweeps.status import DONE, FAILED, NEW, QUEUED, RUNNING, STOPPED, Status
from topr_exp.sweeps.sweep import Run, Submission, Sweep
from topr_exp.types import TOPRError

STATES = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Starts nothing: what would be started here or submitted, what was waited for; `answered`: of Slurm."""
    told: dict[str, Any] = {"answered": True, "recovered": 0}

    def read(sweep: Sweep, runs: Any) -> tuple[list[Status], Queue]:
        found = [Status(run, state, "", None, None, None, None, "") for run, state in zip(runs, STATES, strict=True)]
        return found, Queue(answered=told["answered"], notes=["Slurm does not answer"])

    def recover(sweep: Sweep) -> None:
        told["recovered"] += 1

    monkeypatch.setattr(launch, "read_statuses", read)
    monkeypatch.setattr(launch.slurm, "recover", recover)
    monkeypatch.setattr(launch, "run_locally", lambda sweep, runs, *rest: told.update(here=numbers(runs)))
    monkeypatch.setattr(launch.slurm, "submit", lambda sweep, runs, *rest: told.update(submitted=numbers(runs)))
    monkeypatch.setattr(launch, "wait_for_slurm", lambda sweep, runs: told.update(awaited=numbers(runs)))
    monkeypatch.setattr(launch, "publish", lambda folder: None)
    return told


def numbers(runs: Any) -> list[int]:
    return [run.number for run in runs]


def sweep_of(folder: Path) -> Sweep:
    return Sweep(folder, [], [Run(i, f"run{i}", [], {}, "") for i in range(1, len(STATES) + 1)])


@pytest.mark.parametrize("place", ["local", "slurm"])
def test_what_is_done_at_work_or_queued_is_not_started_again(
    tmp_path: Path, started: dict[str, Any], place: str
) -> None:
    sweep = sweep_of(tmp_path)
    cluster, launcher = recompose([], [f"cluster={place}", *(["cluster.wait=true"] if place == "slurm" else [])])
    assert run_unfinished(sweep, sweep.runs, cluster, launcher) == 1, "some are unfinished"
    assert started["here" if place == "local" else "submitted"] == [4, 5, 6]
    assert started.get("awaited", [2, 3, 4, 5, 6]) == [2, 3, 4, 5, 6]
    assert started["recovered"] == 1, "submissions whose id was not noted are looked for"


def test_nothing_is_started_while_slurm_is_silent(tmp_path: Path, started: dict[str, Any]) -> None:
    sweep, started["answered"] = sweep_of(tmp_path), False
    with pytest.raises(TOPRError, match="Slurm does not answer: some runs may be queued already"):
        run_unfinished(sweep, sweep.runs, *recompose([], ["cluster=local"]))
    assert "here" not in started


def test_each_run_has_its_newest_job_and_the_settings_of_the_last_launch(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [])
    for threads in (1, 2):
        jobs = [Job([f"seed={seed}"], config_of(f"seed={seed}", f"cluster.threads={threads}")) for seed in (4, 5, 6)]
        runs = sweep.add(jobs, [f"cluster.threads={threads}"])
        assert numbers(runs) == numbers(sweep.runs) == [1, 2, 3]
        assert [run.settings["cluster"]["threads"] for run in sweep.runs] == [threads] * 3
        assert [run.settings["seed"] for run in sweep.runs] == [4, 5, 6]
    sweep.submissions = [Submission("a", [1, 2, 3], "17"), Submission("b", [3, 1], "20"), Submission("c", [3], "21")]
    assert sweep.slurm_ids() == {1: "20_1", 2: "17_1", 3: "21"}
