"""The parts of sweeps that need no run: what Slurm says, what the files say, signals, a claim, a full disk."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import become_ordinary, config_of, make_model
from topr_exp.config.arguments import parse
from topr_exp.config.compose_overrides import Composer, without_hydra
from topr_exp.config.schema import plain
from topr_exp.runs import attempt
from topr_exp.runs.plan import Job, recompose
from topr_exp.runtime import locks
from topr_exp.runtime.stop import SIGNALS, Interrupted, StopFlag
from topr_exp.sweeps import queue
from topr_exp.sweeps.queue import Entry, Queue, query
from topr_exp.sweeps.status import DONE, FAILED, NEW, QUEUED, RUNNING, STOPPED, UNREADABLE, count_states, status
from topr_exp.sweeps.sweep import Run, Submission, Sweep
from topr_exp.training import checkpoint
from topr_exp.types import ConfigError, TOPRError

# ---- what Slurm says


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that puts a command on PATH which prints some text and ends with some code."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name: str, text: str = "", code: int = 0) -> None:
        stream = ">&2" if code else ""
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'TEXT' {stream}\n{text}\nTEXT\nexit {code}\n")
        (tmp_path / name).chmod(0o755)

    return make


def test_squeue_tells_what_it_knows_and_sacct_the_rest(fake: Any) -> None:
    fake("squeue", "17_0|RUNNING|None\n17_1|PENDING|JobArrayTaskLimit\n18|RUNNING|None")
    fake("sacct", "17_2|CANCELLED by 0\n17_3|COMPLETED")
    found = query(["17_0", "17_1", "17_2"])
    assert found.entries == {
        "17_0": Entry("RUNNING", "None"), "17_1": Entry("PENDING", "JobArrayTaskLimit"), "17_2": Entry("CANCELLED")
    }  # fmt: skip
    assert (found.answered, found.notes) == (True, [])
    assert [entry.active for entry in found.entries.values()] == [True, True, False]


def test_without_accounting_it_says_so_and_goes_on(fake: Any) -> None:
    fake("squeue", "slurm_load_jobs error: Invalid job id specified", 1)
    fake("sacct", "Slurm accounting storage is disabled", 1)
    found = query(["17"])
    assert (found.entries, found.answered) == ({}, True)
    assert found.notes == [
        "Slurm's accounting does not answer (sacct: Slurm accounting storage is disabled); going on by the runs' files"
    ]


def test_a_controller_that_is_down_leaves_it_open_what_runs(fake: Any) -> None:
    fake("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1)
    found = query(["17"])
    assert not found.answered
    assert "Unable to contact slurm controller" in found.notes[0]


def test_a_controller_that_is_slow_counts_as_down(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setattr(queue, "SECONDS", 0.2)
    assert query(["17"]).notes == ["Slurm does not answer (no answer within 0.2 s); going on by the runs' files"]


def test_nothing_is_asked_about_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert query([]) == Queue()


# ---- what the files and Slurm say together

RUN = Run(1, "run", [], {}, "")


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
    found = status(tmp_path, RUN, "17", Queue({"17": entry} if entry else {}))
    assert (found.state, found.error) == (state, error)


def test_a_claim_that_is_held_means_running(tmp_path: Path) -> None:
    with attempt.lock_run_folder(tmp_path):
        assert status(tmp_path, RUN, None, Queue()).state == RUNNING
        with pytest.raises(TOPRError, match=f"is being run by process {socket.gethostname()}:{os.getpid()}"):
            attempt.lock_run_folder(tmp_path)
    assert status(tmp_path, RUN, None, Queue()).state == NEW


def test_a_run_of_another_user(ordinary_user: Path) -> None:
    """Seeing that it runs, or doesn't, needs no right to write, and what may not be read is named."""
    lock = attempt.lock_run_folder(ordinary_user)
    (ordinary_user / "state.json").write_text('{"status": "running", "stage": "training"}')
    hidden = ordinary_user / "hidden"
    hidden.mkdir()
    (hidden / "state.json").touch(0)
    become_ordinary(ordinary_user)
    with lock:
        assert status(ordinary_user, RUN, None, Queue()).state == RUNNING
    assert (ordinary_user / attempt.CLAIM).exists()
    assert status(ordinary_user, RUN, None, Queue()).state == STOPPED
    found = status(hidden, RUN, None, Queue())
    assert (found.state, found.error) == (UNREADABLE, "state.json can't be read (Permission denied)")
    assert count_states([found]) == "1 run: 1 unreadable"


def test_the_owner_on_a_lost_node_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = locks.acquire(tmp_path / attempt.CLAIM)
    (tmp_path / attempt.CLAIM).write_text("node7:9")
    monkeypatch.setattr(attempt.time, "sleep", lambda _: held.__exit__(None, None, None))  # its server frees the lock
    with attempt.lock_run_folder(tmp_path):
        assert "waiting for process node7:9" in capsys.readouterr().err
        (tmp_path / attempt.CLAIM).write_text("node7:9")
        monkeypatch.setattr(attempt, "LOST_NODE_SECONDS", -1.0)
        with pytest.raises(TOPRError, match="is being run by process node7:9"):
            attempt.lock_run_folder(tmp_path)


# ---- the runs of a command line


def test_runs_that_share_a_composition_are_what_hydra_composes() -> None:
    arguments = ["-m", "model=tiny,llama3_8b", "algo=topr,is,dpo", "data.n=2,8", "optim.lr=1e-3,1e-5", "seed=3"]
    composer = Composer(parse(arguments))
    jobs = list(composer.jobs(composer.base()))
    assert len(jobs) == 24
    for overrides, job in jobs:
        assert job == without_hydra(composer.compose(overrides))


# ---- the sweep on disk


def test_a_sweep_is_read_as_it_was_written(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["-m", "seed=0,1"])
    jobs = [Job([f"seed={seed}"], config_of(f"seed={seed}", "algo=is")) for seed in (0, 1)]
    runs = sweep.add(jobs, ["-m", "seed=0,1"])
    sweep.submissions.append(Submission("abc", [1, 2], "17"))
    sweep.save()
    again = Sweep.read(tmp_path)
    assert again == sweep
    assert again.slurm_ids() == {1: "17_0", 2: "17_1"}
    assert [run.enter() for run in again.runs] == [job.config for job in jobs]  # infinite limits of the ratio included
    assert [again.find(name) for name in ("2", "17_1", runs[1].folder)] == [again.runs[1]] * 3
    with pytest.raises(TOPRError, match="several runs"):
        again.find("is_gsm8k")
    assert again.add(jobs[1:], [])[0].number == 2


def test_a_damaged_sweep_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"runs": [')
    with pytest.raises(TOPRError, match=r"sweep.json is damaged"):
        Sweep.read(tmp_path)


def test_resuming_changes_where_and_nothing_else() -> None:
    cluster, launcher = recompose(["-m", "cluster=slurm", "cluster.partition=a", "seed=0,1"], ["cluster.qos=high"])
    assert plain(cluster)["partition"] == launcher["partition"] == "a"
    assert launcher["qos"] == "high"
    assert plain(recompose(["cluster=slurm", "cluster.partition=a"], ["cluster=local"])[0])["name"] == "local"
    with pytest.raises(ConfigError, match="only cluster settings can change"):
        recompose(["-m", "seed=0,1"], ["optim.lr=1"])


def test_more_settings_of_sbatch_are_pairs() -> None:
    cluster, _ = recompose(["cluster=slurm"], ["cluster.additional_parameters={mail-type: END, nice: 5}"])
    assert plain(cluster)["additional_parameters"] == {"mail-type": "END", "nice": 5}
    for given in ("[END]", "END"):
        with pytest.raises(ConfigError, match=r"cluster.additional_parameters must be null or \{NAME: VALUE\}; got"):
            recompose(["cluster=slurm"], [f"cluster.additional_parameters={given}"])


# ---- signals


def work(signals: list[int], *, save: bool) -> list[str]:
    """What a run does when these come, one after each piece of its work; with `save` it puts the answer off."""
    done, stop = list[str](), StopFlag()
    with stop.listening(), contextlib.nullcontext() if save else stop.immediate():
        try:
            for number in signals:
                os.kill(os.getpid(), number)
                done.append("worked")
            done.append("saved")
            stop.check()
        except Interrupted as stopped:
            done.append(str(stopped).split(";")[0])
    return done


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_answered_at_once_or_once_the_work_is_saved(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        pytest.skip("these tests were started by nohup")
    assert work([number], save=False) == [f"stopped by {number.name}"]
    assert work([number], save=True) == ["worked", "saved", f"stopped by {number.name}"]
    assert signal.getsignal(number) is before


def test_only_a_second_ctrl_c_does_not_wait() -> None:
    term, ctrl_c = signal.SIGTERM, signal.SIGINT
    assert work([term, term], save=True) == ["worked", "worked", "saved", "stopped by SIGTERM"]
    assert work([ctrl_c, term], save=True) == ["worked", "worked", "saved", "stopped by SIGINT"]
    assert work([ctrl_c, ctrl_c], save=True) == ["worked", "stopped by SIGINT"]


# ---- a full disk


def test_a_full_disk_during_a_checkpoint_keeps_the_last_one(tmp_path: Path) -> None:
    import torch

    model = make_model(11)
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoint.save(tmp_path, 1, model, optimizer, {"step": 1}, {})
    size = (tmp_path / "step-00000001" / "part-00001-of-00001.safetensors").stat().st_size
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # its state now takes twice the room of the weights
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (size // 2, size + size // 2):  # while the weights are written, and while the optimizer's state is
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(TOPRError, match=r"cannot write .*step-00000002: the file would be larger"):
                checkpoint.save(tmp_path, 2, model, optimizer, {"step": 2}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    found = checkpoint.load(tmp_path, model, optimizer)
    assert found is not None
    assert found[0] == {"step": 1}


def test_an_attempt_removes_what_a_killed_one_left_by_half(tmp_path: Path) -> None:
    half = tmp_path / "checkpoints" / "step-00000002.0123456789ab.tmp"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("half")
    (tmp_path / "error.txt").write_text("old")
    (tmp_path / "state.json").write_text("{}")
    attempt.clear(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoints", "state.json"]
