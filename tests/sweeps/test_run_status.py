"""State of a run, from its files and its scheduler's answer."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import become_ordinary, refused, write_lines
from tests.sweeps.fake_scheduler import bare_run
from topr_exp.runs import attempt, run_lock
from topr_exp.runtime import locks
from topr_exp.sweeps.jobs import JobState, JobStates
from topr_exp.sweeps.local import describe_progress
from topr_exp.sweeps.run_status import RunState, RunStatus, read_pass_at_1, read_status
from topr_exp.sweeps.status_table import count_states


@pytest.mark.parametrize(
    ("files", "job", "state", "error"),
    [
        ({}, None, "new", "its job is over, or was never there: see logs"),
        ({}, JobState("17", "queued", "Resources"), "queued", "Resources"),
        ({}, JobState("17", "running"), "running", ""),
        ({}, JobState("17", "ending"), "running", ""),
        ({"state.json": "running"}, None, "stopped", "its process is gone (killed?)"),
        ({"state.json": "stopped"}, None, "stopped", "stopped by a signal"),
        ({"state.json": "stopped"}, JobState("17", "queued", "BeginTime"), "queued", "BeginTime"),
        ({"state.json": "failed", "error.txt": "too few\n\ntrace"}, None, "failed", "too few"),
        ({"state.json": "failed", "error.txt": "too few\n"}, JobState("17", "queued"), "queued", ""),
        ({"state.json": "done", "DONE": ""}, JobState("17", "running"), "done", ""),
    ],
)
def test_a_run_is_what_its_files_and_its_job_say(tmp_path, files, job, state, error):
    for name, text in files.items():
        (tmp_path / name).write_text(json.dumps({"status": text}) if name == "state.json" else text)
    jobs = JobStates({"array_0": job} if job else {})
    status = read_status(bare_run(tmp_path, job="array_0"), jobs)
    assert (status.state, status.error) == (state, error)


def test_where_the_scheduler_is_silent_nothing_is_said_of_a_job(tmp_path: Path) -> None:
    status = read_status(bare_run(tmp_path, job="array_0"), JobStates({}, "silent"))
    assert (status.state, status.error) == ("new", "")


def test_a_run_whose_folder_a_process_holds_is_running_and_refuses_another(tmp_path: Path) -> None:
    with run_lock.lock_run_folder(tmp_path):
        assert read_status(bare_run(tmp_path)).state == "running"
        with refused(f"is being run by process {socket.gethostname()}:{os.getpid()}"):
            run_lock.lock_run_folder(tmp_path)


def test_the_owner_on_a_lost_node_is_waited_for(tmp_path, monkeypatch, capsys):
    lock: Any = locks.acquire(tmp_path / run_lock.CLAIM)
    (tmp_path / run_lock.CLAIM).write_text("node7:9")
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: lock.__exit__(None, None, None))  # its server frees the lock
    with run_lock.lock_run_folder(tmp_path):
        assert "waiting for process node7:9" in capsys.readouterr().err
        (tmp_path / run_lock.CLAIM).write_text("node7:9")
        monkeypatch.setattr(run_lock, "LOST_NODE_SECONDS", -1.0)
        with refused("is being run by process node7:9"):
            run_lock.lock_run_folder(tmp_path)


def test_a_run_of_another_user_is_shown_and_an_unreadable_one_is_named(ordinary_user: Path) -> None:
    lock = run_lock.lock_run_folder(ordinary_user)
    (ordinary_user / "state.json").write_text('{"status": "running", "stage": "training"}')
    hidden = ordinary_user / "hidden"
    hidden.mkdir()
    (hidden / "state.json").touch(0)
    become_ordinary(ordinary_user)
    with lock:
        assert read_status(bare_run(ordinary_user)).state == "running"
    assert (ordinary_user / run_lock.CLAIM).exists()
    assert read_status(bare_run(ordinary_user)).state == "stopped"
    status = read_status(bare_run(hidden))
    assert (status.state, status.error) == ("unreadable", "state.json can't be read (Permission denied)")
    assert count_states([status]) == "1 run: 1 unreadable"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([(True, 0.1), (False, 0.2)], "20.0"),
        ([(True, 0.1), (False, 0.2), (True, 0.3)], "10.0 -> 30.0"),
        ([(True, 0.1), (False, 0.2), (True, 0.3), (False, 0.4)], "20.0 -> 40.0"),
        ([(False, 0.2), (False, 0.2)], "20.0"),
        ([], ""),
    ],
)
def test_pass_at_1_stands_beside_the_base_models_on_the_same_problems(tmp_path, records, expected):
    lines = [{"pass@1": value} | ({"subset": True} if is_subset else {}) for is_subset, value in records]
    write_lines(tmp_path / "eval.jsonl", lines)
    assert read_pass_at_1(tmp_path, is_done=False) == expected


def test_progress_of_a_sweep_counts_what_ended_and_estimates_the_others(tmp_path: Path) -> None:
    finished = RunStatus(bare_run(tmp_path), RunState.DONE)
    running = RunStatus(bare_run(tmp_path, 2), RunState.RUNNING, stage="training 86/250")
    new = RunStatus(bare_run(tmp_path, 3), RunState.NEW)
    assert describe_progress([running, new], 120) == "0 of 2 runs ended; run 2 training 86/250"
    line = "1 of 3 runs ended, about 4 min left; run 2 training 86/250"
    assert describe_progress([finished, running, new], 120) == line


def test_an_attempt_removes_what_a_killed_one_left_by_half(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step-00000002.0123456789ab.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    for name in ("error.txt", "state.json", "launch.json.0123456789ab.tmp"):  # the last is its launcher's
        (tmp_path / name).write_text("{}")
    attempt.remove_partial_files(tmp_path)
    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert names == ["checkpoints", "launch.json.0123456789ab.tmp", "state.json"]
