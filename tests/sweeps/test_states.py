"""Sweeps without a run: what Slurm and the files say, what a launch starts, what a sweep's folder holds."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission
from submitit.slurm.slurm import SlurmJobEnvironment

from tests.conftest import become_ordinary, config_of
from tests.run_folders import make_sweep_of_two
from topr_exp.config.schema import plain
from topr_exp.runs import attempt
from topr_exp.runs.plan import Job, recompose
from topr_exp.runtime import locks
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps import launch, processes, slurm
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.processes import Child, Killed, ended
from topr_exp.sweeps.slurm import Entry, Queue, query
from topr_exp.sweeps.status import (
    DONE,
    FAILED,
    NEW,
    QUEUED,
    RUNNING,
    STOPPED,
    UNREADABLE,
    Status,
    accuracy,
    count_states,
    read_status,
)
from topr_exp.sweeps.sweep import Run, find, read_runs, runs_of
from topr_exp.types import ConfigError, TOPRError

DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_ACCOUNTING = "Slurm accounting storage is disabled"


def run_in(folder: Path, number: int = 1, **more: Any) -> Run:
    return Run(folder, number, [], {}, "", [], 0.0, **more)


@pytest.mark.parametrize(
    ("squeue", "sacct", "found", "answered", "note"),
    [
        (
            "17_0|RUNNING|None\n17_1|PENDING|JobArrayTaskLimit\n18|RUNNING|None", "17_2|CANCELLED by 0\n17_3|COMPLETED",
            {"17_0": ("RUNNING", "None"), "17_1": ("PENDING", "JobArrayTaskLimit"), "17_2": ("CANCELLED", "")},
            True, "",
        ),
        (
            ">&2 slurm_load_jobs error: Invalid job id specified", f">&2 {NO_ACCOUNTING}", {}, True,
            f"Slurm's accounting does not answer (sacct: {NO_ACCOUNTING}); going on by the runs' files",
        ),
        (f">&2 {DOWN}", "", {}, False, f"Slurm does not answer ({DOWN}); going on by the runs' files"),
        ("sleep", "", {}, False, "Slurm does not answer (no answer within 0.5 s); going on by the runs' files"),
    ],
    ids=["squeue, then sacct", "no accounting", "down", "slow"],
)  # fmt: skip
def test_what_slurm_answers(
    squeue: str, sacct: str, found: Any, answered: bool, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "SECONDS", 0.5 if squeue == "sleep" else 60.0)
    for name, text in (("squeue", squeue), ("sacct", sacct)):
        error = text.startswith(">&2")
        lines = f"cat <<'TEXT' {text[:3]}\n{text[4:]}\nTEXT\nexit 1" if error else f"cat <<'TEXT'\n{text}\nTEXT"
        (tmp_path / name).write_text("#!/bin/sh\n" + ("exec sleep 600" if text == "sleep" else lines))
        (tmp_path / name).chmod(0o755)
    queue = query(["17_0", "17_1", "17_2"])
    assert (queue.entries, queue.answered, queue.note) == (found, answered, note)
    assert [entry.active for entry in queue.entries.values()] == [True, True, False][: len(found)]
    monkeypatch.setenv("PATH", "/nonexistent")
    assert query([]) == Queue()
    assert not query(["17"]).answered


@pytest.mark.parametrize(
    ("files", "entry", "state", "error"),
    [
        ({}, None, NEW, ""),
        ({}, Entry("PENDING", "Resources"), QUEUED, "Resources"),
        ({}, Entry("RUNNING", "None"), RUNNING, ""),
        ({}, Entry("NODE_FAIL"), STOPPED, "Slurm: NODE_FAIL"),
        ({"state.json": "running"}, None, STOPPED, "its process is gone (killed?)"),
        ({"state.json": "stopped"}, None, STOPPED, "stopped by a signal"),
        ({"state.json": "stopped"}, Entry("PENDING", "BeginTime"), QUEUED, "BeginTime"),
        ({"state.json": "stopped"}, Entry("CANCELLED"), STOPPED, "Slurm: CANCELLED"),
        ({"state.json": "failed", "error.txt": "too few\n\ntrace"}, Entry("COMPLETED"), FAILED, "too few"),
        ({"state.json": "failed", "error.txt": "too few\n"}, Entry("PENDING", "None"), QUEUED, ""),
        ({"state.json": "done", "DONE": ""}, Entry("RUNNING"), DONE, ""),
    ],
)
def test_the_state_of_a_run(tmp_path: Path, files: dict[str, str], entry: Entry | None, state: str, error: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(json.dumps({"status": text}) if name == "state.json" else text)
    found = read_status(run_in(tmp_path, slurm="17"), Queue({"17": entry} if entry else {}))
    assert (found.state, found.error) == (state, error)
    if DONE not in files:
        with attempt.lock_run_folder(tmp_path):
            assert read_status(run_in(tmp_path), Queue()).state == (DONE if state == DONE else RUNNING)
            with pytest.raises(TOPRError, match=f"is being run by process {socket.gethostname()}:{os.getpid()}"):
                attempt.lock_run_folder(tmp_path)


def test_the_owner_on_a_lost_node_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held: Any = locks.acquire(tmp_path / attempt.CLAIM)
    (tmp_path / attempt.CLAIM).write_text("node7:9")
    monkeypatch.setattr(attempt.time, "sleep", lambda _: held.__exit__(None, None, None))  # its server frees the lock
    with attempt.lock_run_folder(tmp_path):
        assert "waiting for process node7:9" in capsys.readouterr().err
        (tmp_path / attempt.CLAIM).write_text("node7:9")
        monkeypatch.setattr(attempt, "LOST_NODE_SECONDS", -1.0)
        with pytest.raises(TOPRError, match="is being run by process node7:9"):
            attempt.lock_run_folder(tmp_path)


def test_a_run_of_another_user(ordinary_user: Path) -> None:
    """Seeing that it runs, or doesn't, needs no right to write, and what may not be read is named."""
    lock = attempt.lock_run_folder(ordinary_user)
    (ordinary_user / "state.json").write_text('{"status": "running", "stage": "training"}')
    hidden = ordinary_user / "hidden"
    hidden.mkdir()
    (hidden / "state.json").touch(0)
    become_ordinary(ordinary_user)
    with lock:
        assert read_status(run_in(ordinary_user), Queue()).state == RUNNING
    assert (ordinary_user / attempt.CLAIM).exists()
    assert read_status(run_in(ordinary_user), Queue()).state == STOPPED
    found = read_status(run_in(hidden), Queue())
    assert (found.state, found.error) == (UNREADABLE, "state.json can't be read (Permission denied)")
    assert count_states([found]) == "1 run: 1 unreadable"


@pytest.mark.parametrize(
    ("records", "shown"),
    [
        ([(True, 0.1), (False, 0.2)], "20.0"),
        ([(True, 0.1), (False, 0.2), (True, 0.3)], "10.0 -> 30.0"),
        ([(True, 0.1), (False, 0.2), (True, 0.3), (False, 0.4)], "20.0 -> 40.0"),
        ([(False, 0.2), (False, 0.2)], "20.0"),
        ([], ""),
    ],
)
def test_a_pass_at_1_stands_beside_the_bases_on_the_same_problems(tmp_path: Path, records: Any, shown: str) -> None:
    lines = [json.dumps({"pass@1": value} | ({"subset": True} if part else {})) + "\n" for part, value in records]
    (tmp_path / "eval.jsonl").write_text("".join(lines))
    assert accuracy(tmp_path, done=False) == shown


# ---- a sweep's folder


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for threads in (1, 2):  # the settings of the last launch count; number and job stay
        changes = [f"output_dir={tmp_path}", "name=sweep", "algo=is", f"cluster.threads={threads}"]
        jobs = [Job([f"seed={seed}"], config_of(f"seed={seed}", *changes)) for seed in (4, 5)]
        runs = runs_of(jobs, [f"cluster.threads={threads}"], read_runs(tmp_path / "sweep"))
        for index, run in enumerate(runs):
            run.job, run.slurm = (run.job, run.slurm) if threads == 2 else (f"topr-a_{index}", f"17_{index}")
            run.save()
    again = read_runs(tmp_path / "sweep")
    assert again == runs
    assert [run.slurm for run in again] == ["17_0", "17_1"]
    assert [run.enter() for run in again] == [job.config for job in jobs]  # infinite limits of the ratio included
    assert [find(again, name) for name in ("2", "17_1", again[1].folder.name)] == [again[1]] * 3
    with pytest.raises(TOPRError, match=r"several runs of .*; give a number from 1 to 2"):
        find(again, "is_gsm8k")
    new = [Job([], config_of(f"seed={seed}", *changes)) for seed in (6, 7)]
    assert [run.number for run in runs_of([new[0], jobs[1], new[1]], [], again)] == [3, 2, 4]
    (again[0].folder / "launch.json").write_text('{"number": 1, "overrides": [')
    assert read_runs(tmp_path / "sweep") == again[1:]
    assert "launch.json holds no JSON object; the same launch writes it again" in capsys.readouterr().err


def test_an_attempt_removes_what_a_killed_one_left_by_half(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step-00000002.0123456789ab.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    for name in ("error.txt", "state.json", "launch.json.0123456789ab.tmp"):  # the last is its launcher's
        (tmp_path / name).write_text("{}")
    attempt.clear(tmp_path)
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["checkpoints", "launch.json.0123456789ab.tmp", "state.json"]


def test_a_slurm_that_does_not_answer_forgets_no_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run_in(tmp_path / str(number), number, job=f"topr-ab12_{number - 1}") for number in (1, 2)]
    monkeypatch.setattr(slurm, "run_slurm", lambda *command: ([], DOWN))
    with pytest.raises(TOPRError, match=r"connect failure.*: some runs may be queued already"):
        slurm.recover(runs)
    for rows, ids in (([["77"]], ["77_0", "77_1"]), ([], [None, None])):
        for run in runs:
            run.job, run.slurm = f"topr-ab12_{run.number - 1}", None
        monkeypatch.setattr(slurm, "run_slurm", lambda *command, rows=rows: (rows, ""))
        slurm.recover(runs)
        assert [run.slurm for run in read_runs(tmp_path)] == ids
        assert [run.job is None for run in runs] == [not rows] * 2


def test_a_preemption_is_no_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was queued again twenty times for others goes on after its only time limit, and ends at the next."""
    run, environment, requeued = run_in(tmp_path), SlurmJobEnvironment(), list[int]()
    for key, value in {"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "20", "SUBMITIT_FOLDER": str(tmp_path)}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(SlurmJobEnvironment, "_requeue", lambda self, left: requeued.append(left))
    submission = DelayedSubmission(slurm.Task(), run)
    submission.set_timeout(timeout_min=1, max_num_timeout=1)  # which Submitit takes for a time limit from its start
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR2)}
    try:
        environment._handle_signals(environment.paths, submission)
        with pytest.raises(SystemExit):
            slurm.queue_again(signal.SIGUSR2, tmp_path)
        environment._handle_signals(environment.paths, DelayedSubmission.load(environment.paths.submitted_pickle))
        with pytest.raises(TOPRError, match="out of time"):
            slurm.queue_again(signal.SIGUSR2, tmp_path)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert requeued == [0]
    assert attempt.last_error(tmp_path).startswith("out of time")


# ---- what a launch starts

STATES = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW)


@pytest.mark.parametrize("place", ["local", "slurm"])
@pytest.mark.parametrize("answered", [True, False])
def test_what_is_done_at_work_or_queued_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, answered: bool
) -> None:
    told: dict[str, list[int]] = {}

    def note(what: str) -> Any:
        return lambda *given: told.update({what: [run.number for run in max(given, key=lambda x: isinstance(x, list))]})

    statuses = [Status(run_in(tmp_path / str(i), i), state) for i, state in enumerate(STATES, 1)]
    monkeypatch.setattr(launch, "read_statuses", lambda runs: (statuses, Queue(answered=answered, note="silent")))
    monkeypatch.setattr(launch.slurm, "recover", note("recovered"))
    monkeypatch.setattr(launch.slurm, "submit", note("started"))
    monkeypatch.setattr(launch, "run_locally", note("started"))
    monkeypatch.setattr(launch, "wait_for_slurm", note("awaited"))
    monkeypatch.setattr(launch, "publish", lambda folder: None)
    cluster = recompose([], [f"cluster={place}", *(["cluster.wait=true"] if place == "slurm" else [])])
    runs = [each.run for each in statuses]
    if not answered:
        with pytest.raises(TOPRError, match="silent: some runs may be queued already"):
            launch.run_unfinished(runs, cluster)
        assert "started" not in told
        return
    assert launch.run_unfinished(runs, cluster) == 1, "some are unfinished"
    assert told["started"] == [4, 5, 6]
    assert told.get("awaited", [2, 3, 4, 5, 6]) == [2, 3, 4, 5, 6]
    assert told["recovered"] == [1, 2, 3, 4, 5, 6], "submissions whose id was not noted are looked for"


def test_resuming_changes_where_and_nothing_else() -> None:
    cluster = plain(recompose(["-m", "cluster=slurm", "cluster.partition=a", "seed=0,1"], ["cluster.qos=high"]))
    assert (cluster["partition"], cluster["qos"]) == ("a", "high")
    assert plain(recompose(["cluster=slurm", "cluster.partition=a"], ["cluster=local"]))["name"] == "local"
    with pytest.raises(ConfigError, match="only cluster settings can change"):
        recompose(["-m", "seed=0,1"], ["optim.lr=1"])
    cluster = plain(recompose(["cluster=slurm"], ["cluster.additional_parameters={mail-type: END, nice: 5}"]))
    assert cluster["additional_parameters"] == {"mail-type": "END", "nice": 5}
    for given in ("[END]", "END"):
        with pytest.raises(ConfigError, match=r"cluster.additional_parameters must be null or \{NAME: VALUE\}; got"):
            recompose(["cluster=slurm"], [f"cluster.additional_parameters={given}"])


# ---- the command line


def test_status_without_a_folder_lists_the_sweeps_that_may_be_read(
    ordinary_user: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ordinary_user)
    assert main(["status"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no sweep in outputs; ")
    for name in ("new", "old", "hidden"):
        make_sweep_of_two(ordinary_user / "outputs" / name)
    (ordinary_user / "outputs/single").mkdir()  # runs that were started without -m
    for run in read_runs(ordinary_user / "outputs/old"):
        run.launched = 0.0
        run.save()
    (ordinary_user / "outputs/hidden").chmod(0)
    become_ordinary(ordinary_user)
    assert main(["status"]) == 0
    os.seteuid(os.getuid())
    (ordinary_user / "outputs/hidden").chmod(0o755)
    printed = capsys.readouterr()
    assert printed.out == "outputs/old: 2 runs: 1 done, 1 stopped\noutputs/new: 2 runs: 1 done, 1 stopped\n"
    assert printed.err == "warning: cannot read outputs/hidden: no permission; a sweep in it is left out\n"


def test_runs_of_another_user_that_may_not_be_read_are_named(
    ordinary_user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep_of_two(ordinary_user / "sweep")
    paths = [run.folder / "launch.json" for run in read_runs(ordinary_user / "sweep")]
    for path in paths:
        path.chmod(0)
    become_ordinary(ordinary_user)
    assert main(["status", str(ordinary_user / "sweep")]) == 1
    *warnings, error = capsys.readouterr().err.splitlines()
    assert sorted(warnings) == sorted(
        f"warning: {path} can't be read (Permission denied); the run is left out" for path in paths
    )
    assert "(no run has a launch.json that can be read)" in error


@pytest.mark.parametrize("owner", [0, 4711])
def test_resuming_another_users_sweep_says_whose_settings_run(
    owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sweep_of_two(tmp_path / "sweep")
    monkeypatch.setattr(launch, "run_unfinished", lambda *given: 0)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + owner)
    assert main(["resume", str(tmp_path / "sweep")]) == 0
    name = pwd.getpwuid(me).pw_name
    said = f"warning: {tmp_path / 'sweep'} belongs to user {name}, whose settings now run as yours, with the code that"
    assert capsys.readouterr().err.startswith(said) == bool(owner)


# ---- processes


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
        ("kill", Killed, "it was killed by SIGKILL (out of memory?)"),
        ("exit", Killed, "it ended with exit code 3"),
    ],
)
def test_the_ending_of_a_process(way: str, kind: type, text: str, tmp_path: Path) -> None:
    process = Child("it", tmp_path / "run/log.txt", end, way)
    assert ended([process]) == [process]
    ending = process.ending()
    assert (type(ending), str(ending)) == (kind, text)
    log = (tmp_path / "run/log.txt").read_text()
    assert (text in log) == (way in ERRORS)
    assert ("Traceback" in log) == (way == "bug")


def test_threads_are_divided_among_all_processes_and_slots_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [processes.threads_per_run(jobs) for jobs in (1, 2, 3, 16, 40)] == [None, 8, 5, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert processes.threads_per_run(3) == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    begun: list[tuple[int | None, int]] = []
    Started = type(
        "Started", (), {"__init__": lambda self, *given: begun.append(given[-2:]), "ending": lambda self: None}
    )
    monkeypatch.setattr(processes, "Child", Started)
    monkeypatch.setattr(processes, "ended", lambda working: [next(iter(working))])
    runs: list[Any] = [SimpleNamespace(settings={"cluster": {"processes": 2}}, folder=Path(str(i))) for i in range(3)]
    order: list[str] = []
    processes.run_locally(runs, 2, lambda run, error: order.append(run.folder.name))
    assert begun == [(4, 0), (4, 1), (4, 0)]
    assert order == ["0", "1", "2"]


def test_each_slot_has_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(slot: int, count: int, names: list[str]) -> str:
        monkeypatch.setattr(processes.distributed, "visible_gpus", lambda: names)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
        processes.choose_gpus(slot, count)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    five = ["0", "1", "4", "5", "7"]
    assert [seen(slot, 1, five) for slot in range(6)] == ["0", "1", "4", "5", "7", "0"]
    assert [seen(slot, 2, five) for slot in range(3)] == ["0,1", "4,5", "0,1"]
    assert seen(1, 5, five) == "all"
