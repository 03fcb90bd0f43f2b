"""Sweeps without a run: what Slurm and the files say, what a launch starts, what a sweep's folder holds."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, become_ordinary, config_of
from tests.run_folders import make_sweep_of_two
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs import attempt, run_lock
from topr_exp.runs.plan import Job, plan, recompose
from topr_exp.runtime import locks
from topr_exp.schema import plain
from topr_exp.sweeps import launch, sweep
from topr_exp.sweeps.__main__ import main
from topr_exp.sweeps.sweep import DONE, FAILED, NEW, QUEUED, RUNNING, STOPPED, Queue, Run, Status, read_status
from topr_exp.types import ConfigError, TOPRError

DOWN = "slurm_load_jobs error: Unable to contact slurm controller"


def run_in(folder: Path, number: int = 1, **more: Any) -> Run:
    return Run(folder, number, [], {}, "", [], 0.0, **more)


SAID = "17_0|17_0|RUNNING|None\n17_1|17_1|PENDING|JobArrayTaskLimit"
FOUND = {"17_0": sweep.Entry("17_0", "RUNNING", "None"), "17_1": sweep.Entry("17_1", "PENDING", "JobArrayTaskLimit")}


@pytest.mark.parametrize(
    ("squeue", "found", "note"),
    [
        (f"cat <<'TEXT'\n{SAID}\nTEXT", FOUND, ""),
        ("true", {}, ""),
        (f"echo {DOWN} >&2; exit 1", {}, f"Slurm does not answer ({DOWN}); going on by the runs' files"),
        ("exec sleep 600", {}, "Slurm does not answer (no answer within 0.5 s); going on by the runs' files"),
        (None, {}, "Slurm does not answer (squeue is not on PATH); going on by the runs' files"),
    ],
    ids=["known", "over", "down", "slow", "missing"],
)
def test_what_slurm_answers(squeue, found, note, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if squeue else "/nonexistent")
    monkeypatch.setattr(sweep, "SLURM_SECONDS", 0.5 if squeue == "exec sleep 600" else 60.0)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}")
    (tmp_path / "squeue").chmod(0o755)
    assert sweep.query(["17_0", "17_1", "17_2"]) == Queue(found, note)
    assert sweep.query([]) == Queue({})


@pytest.mark.parametrize(
    ("files", "entry", "state", "error"),
    [
        ({}, None, NEW, "its job is over, or was never there: see logs"),
        ({}, sweep.Entry("17", "PENDING", "Resources"), QUEUED, "Resources"),
        ({}, sweep.Entry("17", "RUNNING", "None"), RUNNING, ""),
        ({"state.json": "running"}, None, STOPPED, "its process is gone (killed?)"),
        ({"state.json": "stopped"}, None, STOPPED, "stopped by a signal"),
        ({"state.json": "stopped"}, sweep.Entry("17", "PENDING", "BeginTime"), QUEUED, "BeginTime"),
        ({"state.json": "failed", "error.txt": "too few\n\ntrace"}, None, FAILED, "too few"),
        ({"state.json": "failed", "error.txt": "too few\n"}, sweep.Entry("17", "PENDING", "None"), QUEUED, ""),
        ({"state.json": "done", "DONE": ""}, sweep.Entry("17", "RUNNING"), DONE, ""),
    ],
)
def test_the_state_of_a_run(tmp_path, files, entry, state, error):
    for name, text in files.items():
        (tmp_path / name).write_text(json.dumps({"status": text}) if name == "state.json" else text)
    found = read_status(run_in(tmp_path, job="17"), Queue({"17": entry} if entry else {}))
    assert (found.state, found.error) == (state, error)
    if DONE not in files:
        with run_lock.lock_run_folder(tmp_path):
            assert read_status(run_in(tmp_path)).state == (DONE if state == DONE else RUNNING)
            with pytest.raises(TOPRError, match=f"is being run by process {socket.gethostname()}:{os.getpid()}"):
                run_lock.lock_run_folder(tmp_path)


def test_the_owner_on_a_lost_node_is_waited_for(tmp_path, monkeypatch, capsys):
    held: Any = locks.acquire(tmp_path / run_lock.CLAIM)
    (tmp_path / run_lock.CLAIM).write_text("node7:9")
    monkeypatch.setattr(run_lock.time, "sleep", lambda _: held.__exit__(None, None, None))  # its server frees the lock
    with run_lock.lock_run_folder(tmp_path):
        assert "waiting for process node7:9" in capsys.readouterr().err
        (tmp_path / run_lock.CLAIM).write_text("node7:9")
        monkeypatch.setattr(run_lock, "LOST_NODE_SECONDS", -1.0)
        with pytest.raises(TOPRError, match="is being run by process node7:9"):
            run_lock.lock_run_folder(tmp_path)


def test_a_run_of_another_user(ordinary_user: Path) -> None:
    """Seeing that it runs, or doesn't, needs no right to write, and what may not be read is named."""
    lock = run_lock.lock_run_folder(ordinary_user)
    (ordinary_user / "state.json").write_text('{"status": "running", "stage": "training"}')
    hidden = ordinary_user / "hidden"
    hidden.mkdir()
    (hidden / "state.json").touch(0)
    become_ordinary(ordinary_user)
    with lock:
        assert read_status(run_in(ordinary_user)).state == RUNNING
    assert (ordinary_user / run_lock.CLAIM).exists()
    assert read_status(run_in(ordinary_user)).state == STOPPED
    found = read_status(run_in(hidden))
    assert (found.state, found.error) == (sweep.UNREADABLE, "state.json can't be read (Permission denied)")
    assert sweep.count_states([found]) == "1 run: 1 unreadable"


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
    assert sweep.accuracy(tmp_path, done=False) == shown


# ---- a sweep's folder


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for threads in (1, 2):  # the settings of the last launch count; number and job stay
        changes = [f"output_dir={tmp_path}", "name=sweep", "algo=is", f"cluster.threads={threads}"]
        changes += [r'data.template="Is it \${question}?"']
        jobs = [Job([f"seed={seed}"], config_of(f"seed={seed}", *changes)) for seed in (4, 5)]
        runs = sweep.runs_of(jobs, [f"cluster.threads={threads}"], sweep.read_runs(tmp_path / "sweep"))
        for index, run in enumerate(runs):
            run.job = run.job if threads == 2 else f"array_{index}"
            run.save()
    again = sweep.read_runs(tmp_path / "sweep")
    assert again == runs
    assert [run.job for run in again] == ["array_0", "array_1"]
    assert [run.enter() for run in again] == [job.config for job in jobs]  # infinite limits of the ratio included
    assert jobs[0].config.data.template == "Is it ${question}?", "words that a sweep leaves as they are"
    assert [sweep.find(again, name) for name in ("2", again[1].folder.name)] == [again[1]] * 2
    with pytest.raises(TOPRError, match=r"several runs of .*; give a number from 1 to 2"):
        sweep.find(again, "is_gsm8k")
    new = [Job([], config_of(f"seed={seed}", *changes)) for seed in (6, 7)]
    assert [run.number for run in sweep.runs_of([new[0], jobs[1], new[1]], [], again)] == [3, 2, 4]
    (again[0].folder / "launch.json").write_text('{"number": 1, "overrides": [')
    assert sweep.read_runs(tmp_path / "sweep") == again[1:]
    told = "launch.json holds no JSON object; the run is left out (the same launch writes the file again)"
    assert told in capsys.readouterr().err


def test_an_attempt_removes_what_a_killed_one_left_by_half(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step-00000002.0123456789ab.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    for name in ("error.txt", "state.json", "launch.json.0123456789ab.tmp"):  # the last is its launcher's
        (tmp_path / name).write_text("{}")
    attempt.clear(tmp_path)
    left = sorted(path.name for path in tmp_path.rglob("*"))
    assert left == ["checkpoints", "launch.json.0123456789ab.tmp", "state.json"]


# ---- progress of a sweep on this machine


def test_how_far_a_sweep_is_is_said_early_and_once_a_minute(tmp_path, monkeypatch, capsys):
    runs = [run_in(tmp_path / str(number), number) for number in (1, 2, 3)]
    statuses = [Status(runs[0], DONE), Status(runs[1], RUNNING, stage="training 86/250"), Status(runs[2], NEW)]
    assert launch.progress(statuses[1:], 120) == "0 of 2 runs ended; run 2 training 86/250"
    told = "1 of 3 runs ended, about 4 min left; run 2 training 86/250"
    assert launch.progress(statuses, 120) == told
    clock = [0.0]
    monkeypatch.setattr(launch.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launch, "read_status", lambda run: statuses[run.number - 1])
    tick, said = launch.Ticker(runs), []
    for clock[0] in (0, 9, 11, 69, 72, 120):
        tick()
        said.append(capsys.readouterr().out.count("1 of 3 runs ended"))
    assert said == [0, 0, 1, 0, 1, 0]


# ---- what a launch starts

STATES = (DONE, RUNNING, QUEUED, FAILED, STOPPED, NEW)


@pytest.mark.parametrize("place", ["local", "slurm"])
@pytest.mark.parametrize("note", ["", "silent"])
def test_what_is_done_at_work_or_queued_is_not_started_again(tmp_path, monkeypatch, place, note):
    started: list[Run] = []
    statuses = [Status(run_in(tmp_path / str(i), i), state) for i, state in enumerate(STATES, 1)]
    monkeypatch.setattr(launch, "read_statuses", lambda runs: (statuses, Queue({}, note)))
    monkeypatch.setattr(launch.slurm, "submit", lambda sweep, runs, cluster: started.extend(runs) or "submitted")
    monkeypatch.setattr(launch, "run_locally", lambda runs, *more: started.extend(runs))
    monkeypatch.setattr(launch, "publish", lambda folder: None)
    runs, cluster = [each.run for each in statuses], recompose([], [f"cluster={place}"])
    if note:
        with pytest.raises(TOPRError, match="silent: some runs may be queued already"):
            launch.run_unfinished(runs, cluster)
    else:
        assert launch.run_unfinished(runs, cluster) == (1 if place == "local" else 0), "some are unfinished"
    assert started == ([] if note else runs[3:])


@pytest.mark.parametrize("note", ["", "silent"])
def test_a_launch_leaves_the_settings_of_runs_at_work_as_they_are(tmp_path, monkeypatch, note):
    """A job that starts, or is queued again, reads them: cluster.processes must be what it was started with."""
    make_sweep_of_two(tmp_path / "sweep")
    waiting, failed = sweep.read_runs(tmp_path / "sweep")
    waiting.job = "array_0"
    waiting.save()
    states = [Status(waiting, NEW if note else QUEUED), Status(failed, FAILED)]

    def answer(runs: Any) -> Any:
        return [Status(run, each.state) for run, each in zip(runs, states, strict=True)], Queue({}, note)

    monkeypatch.setattr(launch, "read_statuses", answer)
    monkeypatch.setattr(launch, "run_unfinished", lambda *given, **more: 0)
    given = ["-m", "algo=topr,tis", f"output_dir={tmp_path}", "name=sweep", "cluster.processes=2"]
    launch.launch(plan(parse_arguments(given)), given)
    now = sweep.read_runs(tmp_path / "sweep")
    assert [run.settings["cluster"]["processes"] for run in now] == [1, 2]
    (waiting.folder / "launch.json").unlink()  # as of a single run, that is none of a sweep yet
    launch.launch(plan(parse_arguments(given)), given)
    assert len(sweep.read_runs(tmp_path / "sweep")) == 2


def test_a_dry_run_and_status_tell_what_slurm_has_of_a_run(tmp_path, monkeypatch, capsys):
    make_sweep_of_two(tmp_path / "sweep")
    waiting, over = sweep.read_runs(tmp_path / "sweep")
    given = ["-m", "algo=topr,tis", f"output_dir={tmp_path}", "name=sweep"]
    for run in (waiting, over):
        run.job = f"array_{run.number}"
        run.save()
        for name in ("DONE", "state.json"):
            (run.folder / name).unlink(missing_ok=True)
    queue = Queue({waiting.job: sweep.Entry("17_1", "PENDING", "Resources")})
    monkeypatch.setattr(sweep, "query", lambda jobs: queue)
    assert [line.split()[1] for line in launch.preview(plan(parse_arguments(given))).splitlines()[:2]] == [QUEUED, NEW]
    found, _ = sweep.read_statuses([over])
    assert (found[0].state, found[0].error) == (NEW, "its job is over, or was never there: see logs")
    queue = Queue({}, "silent")
    found, _ = sweep.read_statuses([over])
    assert (found[0].state, found[0].error) == (NEW, "")
    launch.preview(plan(parse_arguments(given)))
    assert capsys.readouterr().err == "warning: silent\n"


def test_a_cluster_of_ones_own_is_submitted_to(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    text = (ROOT / "conf" / "cluster" / "slurm.yaml").read_text()
    (tmp_path / "cluster" / "mine.yaml").write_text(text.partition("\nhydra:")[0])
    assert plan(parse_arguments(["--config-dir", str(tmp_path), "cluster=mine"])).sweep
    assert not plan(parse_arguments([])).sweep


def test_resuming_changes_where_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\ncluster:\n  jobs: 7\n")
    launched = ["--config-dir", str(tmp_path), "-m", "experiment=mine", "seed=0,1"]
    assert plain(recompose(launched, ["cluster.threads=1"]))["jobs"] == 7
    cluster = plain(recompose(["-m", "cluster=slurm", "cluster.partition=a", "seed=0,1"], ["cluster.qos=high"]))
    assert (cluster["partition"], cluster["qos"]) == ("a", "high")
    assert plain(recompose(["cluster=slurm", "cluster.partition=a"], ["cluster=local"]))["name"] == "local"
    sized = ["+experiment=mine", "cluster.threads=${size:4,12}", "model=llama3_8b", "name=big", "-m", "seed=0,1"]
    cluster = plain(recompose(["--config-dir", str(tmp_path), *sized], []))
    assert (cluster["jobs"], cluster["threads"]) == (7, 12)
    with pytest.raises(ConfigError, match="only cluster settings can change"):
        recompose(["-m", "seed=0,1"], ["optim.lr=1"])
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text("defaults: [local, _self_]\njobs: 5\n")
    elsewhere = f"hydra.searchpath=[{tmp_path}]"
    assert plain(recompose(["-m", elsewhere, "cluster=mine", "seed=0,1"], []))["jobs"] == 5
    cluster = plain(recompose(["cluster=slurm"], ["cluster.additional_parameters={mail-type: END, nice: 5}"]))
    assert cluster["additional_parameters"] == {"mail-type": "END", "nice": 5}
    for given in ("[END]", "END"):
        with pytest.raises(ConfigError, match=r"cluster.additional_parameters must be null or \{NAME: VALUE\}; got"):
            recompose(["cluster=slurm"], [f"cluster.additional_parameters={given}"])


# ---- the command line


def test_a_sweep_that_was_moved_is_not_resumed_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_sweep_of_two(tmp_path / "sweep").rename(tmp_path / "moved")
    assert main(["resume", "moved"]) == 1
    told = f"error: moved was launched as {tmp_path / 'sweep'}, where its runs would go on: move it back\n"
    assert capsys.readouterr().err.endswith(told)
    assert not (tmp_path / "sweep").exists()


def test_runs_of_an_array_have_one_cluster() -> None:
    words = ["-m", "cluster=slurm", "cluster.mem_gb=${size:4,128}", "dry_run=true"]
    with pytest.raises(ConfigError, match=r"model=llama3_8b .*: its cluster settings differ; start a sweep for each"):
        plan(parse_arguments([*words, "model=tiny,llama3_8b", "sampler=hf"]))
    assert len(plan(parse_arguments([*words, "seed=0,1"])).jobs) == 2


def test_resuming_with_settings_that_no_run_can_have_is_a_mistake(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_sweep_of_two(tmp_path / "sweep")
    monkeypatch.setattr(launch, "run_unfinished", lambda *given, **more: 0)
    assert main(["resume", "sweep", "cluster.processes=3"]) == 2
    assert "cluster.processes must divide optim.batch_size=32" in capsys.readouterr().err
    asked: list[str] = []
    monkeypatch.setattr("topr_exp.runs.preflight.check_device", asked.append)
    assert (main(["resume", "sweep", "cluster.device=cuda"]), asked) == (0, ["cuda"])  # before anything starts
    for path in (tmp_path / "sweep").glob("*/launch.json"):
        path.with_name("DONE").touch()
    assert main(["resume", "sweep", "cluster.processes=3"]) == 0  # none is to start


def test_changed_cluster_settings_of_a_resumed_sweep_reach_each_unfinished_run(tmp_path, monkeypatch):
    """As the launcher has them, and as the file has them that a run's own process reads."""
    monkeypatch.chdir(tmp_path)
    make_sweep_of_two(tmp_path / "sweep")
    started: list[tuple[Any, Any]] = []
    monkeypatch.setattr(launch, "run_locally", lambda todo, jobs, *more: started.extend((run, jobs) for run in todo))
    before = [run.config().cluster for run in sweep.read_runs(tmp_path / "sweep")]
    assert {(cluster.threads, cluster.jobs) for cluster in before} == {(None, 1)}
    main(["resume", "sweep", "cluster.threads=1", "cluster.jobs=2"])
    assert [(run.config().cluster.threads, run.config().cluster.jobs, jobs) for run, jobs in started] == [(1, 2, 2)]
    main(["resume", "sweep", "cluster.threads=2"])  # of the first launch and these: jobs are the launch's again
    assert [(run.config().cluster.threads, jobs) for run, jobs in started[1:]] == [(2, 1)]


def test_cancel_ends_what_it_can_and_tells_the_rest(tmp_path, monkeypatch, capsys):
    """The launcher of a sweep of which some runs are in Slurm would start the next ones."""
    make_sweep_of_two(tmp_path / "sweep")
    one, other = sweep.read_runs(tmp_path / "sweep")
    statuses, asked = [Status(one, QUEUED, slurm="17_0"), Status(other, RUNNING)], list[Any]()
    monkeypatch.setattr("topr_exp.sweeps.__main__.read_statuses", lambda runs: (statuses, Queue({}, "silent")))
    monkeypatch.setattr(sweep, "run_slurm", lambda *words: asked.append(words) or ([], ""))
    monkeypatch.setattr("topr_exp.sweeps.__main__.terminate", lambda claim: asked.append(claim) or f"{claim.name} left")
    assert main(["cancel", str(tmp_path / "sweep")]) == 1
    assert asked == [("scancel", "17_0"), tmp_path / "sweep" / "sweep.claim", other.folder / "run.claim"]
    said = capsys.readouterr()
    assert said.out == "cancelled: run 1 (17_0), run 2\n"
    assert (
        said.err == "error: sweep.claim left; run.claim left; silent; jobs may be queued: try again when it answers\n"
    )


def test_runs_of_another_user_that_may_not_be_read_are_named(ordinary_user, capsys):
    make_sweep_of_two(ordinary_user / "sweep")
    folders = sorted(run.folder for run in sweep.read_runs(ordinary_user / "sweep"))
    (folders[0] / "launch.json").chmod(0)
    folders[1].chmod(0)
    become_ordinary(ordinary_user)
    fault = "launch.json can't be read (Permission denied); the run is left out (the same launch writes the file again)"
    for command in ("status", "resume"):
        assert main([command, str(ordinary_user / "sweep")]) == 1
        *warnings, error = capsys.readouterr().err.splitlines()
        assert sorted(warnings) == [f"warning: {folder}/{fault}" for folder in folders]
        assert "(no run has a launch.json that can be read)" in error


def test_a_sweep_launched_with_a_folder_of_settings_is_resumed_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "own" / "algo").mkdir(parents=True)
    (tmp_path / "own" / "algo" / "mine.yaml").write_text("defaults: [topr]\n")
    (tmp_path / "else").mkdir()
    given, asked = ["--config-dir", "own", "-m", "algo=mine", f"output_dir={tmp_path}", "name=sweep"], list[Any]()
    monkeypatch.chdir(tmp_path)
    for run in sweep.runs_of(plan(parse_arguments(given)).jobs, given, []):
        run.folder.mkdir(parents=True)
        run.save()
    monkeypatch.chdir(tmp_path / "else")
    monkeypatch.setattr(launch, "run_unfinished", lambda runs, cluster, **more: asked.append(cluster.jobs) or 0)
    assert main(["resume", str(tmp_path / "sweep"), "cluster.jobs=3"]) == 0
    assert asked == [3]
    assert Path.cwd() == tmp_path / "else"


@pytest.mark.parametrize("owner", [0, 4711])
def test_resuming_another_users_sweep_says_whose_settings_run(owner, tmp_path, monkeypatch, capsys):
    make_sweep_of_two(tmp_path / "sweep")
    monkeypatch.setattr(launch, "run_unfinished", lambda *given, **more: 0)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + owner)
    assert main(["resume", str(tmp_path / "sweep")]) == 0
    said = f"warning: {tmp_path / 'sweep'} belongs to user {me}, whose settings now run as yours, with the code that"
    assert capsys.readouterr().err.startswith(said) == bool(owner)
