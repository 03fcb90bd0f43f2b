"""Runs in Slurm's jobs: when one is queued again, and where its output lies."""

import signal
from pathlib import Path

import pytest

from tests.sweeps.test_states import run_in
from topr_exp.runs import attempt
from topr_exp.runtime.json_files import write_json
from topr_exp.sweeps import slurm, sweep
from topr_exp.types import TOPRError


def test_a_preemption_is_no_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job goes on after each preemption and its only time limit, and ends at the next; a cancelled one at once."""
    run, asked, states = run_in(tmp_path / "run", job="array_0"), list[str](), iter(["RUNNING", "CANCELLED"])
    run.settings = {"cluster": {"max_num_timeout": 1}}
    for folder in (run.folder, tmp_path / sweep.SCRIPTS):
        folder.mkdir()

    def answer(program: str, *words: str) -> tuple[list[list[str]], str]:
        asked.append(program)
        return [[next(states)]] if program == "squeue" else [], ""

    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(slurm, "run_slurm", answer)
    for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGTERM):
        slurm.queue_again(number, run)
    assert asked == ["scontrol"] * 3 + ["squeue", "scontrol", "squeue"]
    with pytest.raises(TOPRError, match="out of time"):
        slurm.queue_again(signal.SIGUSR2, run)
    assert attempt.last_error(run.folder).startswith("out of time")


@pytest.mark.parametrize("refusals", [0, 2, 9])
def test_a_job_that_slurm_does_not_take_back_at_once_asks_again(refusals, tmp_path, monkeypatch):
    run, asked = run_in(tmp_path, job="array_0"), list[str]()

    def answer(program: str, *words: str) -> tuple[list[list[str]], str]:
        asked.append(program)
        return [], "busy" if len(asked) <= refusals else ""

    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(slurm, "run_slurm", answer)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    slurm.queue_again(signal.SIGUSR1, run)
    assert asked == ["scontrol"] * min(refusals + 1, 5)
    lost = "saved, but not queued again (busy): resume the sweep"
    assert attempt.last_error(tmp_path) == (lost if refusals == 9 else "")


def test_a_task_whose_neighbour_failed_does_not_queue_the_job_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(slurm, "run_slurm", lambda *words: pytest.fail("asked"))
    attempt.record_error(tmp_path, TOPRError("out of memory"))
    slurm.queue_again(signal.SIGTERM, run_in(tmp_path, job="array_0"))
    assert attempt.last_error(tmp_path) == "out of memory"


def test_a_job_that_sigterm_ends_at_one_place_again_and_again_is_given_up(tmp_path, monkeypatch):
    """As where a task is killed without a word; a run that gets on is queued again each time."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(slurm, "run_slurm", lambda *words: ([["RUNNING"]] if words[0] == "squeue" else [], ""))
    run = run_in(tmp_path / "run", job="array_0")
    for folder in (run.folder, tmp_path / sweep.SCRIPTS):
        folder.mkdir()
    for done in (*range(9), 8, 8, 8):
        write_json(run.folder / "state.json", {"stage": "sampling", "progress": {"done": done}})
        slurm.queue_again(signal.SIGTERM, run)
    with pytest.raises(TOPRError, match="SIGTERM 5 times in a row at sampling 8"):
        slurm.queue_again(signal.SIGTERM, run)
    assert "in a row at sampling 8" in attempt.last_error(run.folder)


def test_the_output_of_a_job_is_its_own_or_of_a_job_alone(tmp_path: Path) -> None:
    logs = tmp_path / sweep.SCRIPTS / "array"
    logs.mkdir(parents=True)
    (logs / "11_0_0_log.out").touch()
    assert slurm.log_of_job(tmp_path, "array_0") == logs / "11_0_0_log.out"
    assert slurm.log_of_job(tmp_path, "array_2") is None
    (logs / "12_0_log.out").touch()
    assert slurm.log_of_job(tmp_path, "array_2") == logs / "12_0_log.out"
