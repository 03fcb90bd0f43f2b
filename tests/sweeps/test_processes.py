"""Processes of runs on this machine: how they end, what threads and GPUs each has."""

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import refused
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import processes
from topr_exp.sweeps.processes import Child, Killed, supervise
from topr_exp.sweeps.sweep import Run
from topr_exp.types import ConfigError, TOPRError

ERRORS = {
    "config": ConfigError("a setting"),
    "ours": TOPRError("no file"),
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
        ("ours", TOPRError, "no file"),
        ("bug", TOPRError, "ValueError: theirs"),
        ("stop", Interrupted, "stopped by SIGTERM; the same command goes on from there"),
        ("kill", Killed, "it was killed by SIGKILL (out of memory?)"),
        ("exit", Killed, "it ended with exit code 3"),
    ],
)
def test_the_ending_of_a_process(way: str, kind: type, text: str, tmp_path: Path) -> None:
    found: list[BaseException | None] = []
    start = lambda slot: Child("it", tmp_path / "run/log.txt", end, way)
    supervise([start], 1, StopFlag(), lambda child, ending: found.append(ending))
    (ending,) = found
    assert (type(ending), str(ending)) == (kind, text)
    log = (tmp_path / "run/log.txt").read_text()
    assert (text in log) == (way in ERRORS)
    assert ("Traceback" in log) == (way == "bug")


@pytest.mark.parametrize("threads", [8, 1])
def test_threads_are_divided_among_runs(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "as it was")
    processes.share_threads(1)
    assert os.environ["OMP_NUM_THREADS"] == "as it was"
    for count in (2, 3, 40):
        processes.share_threads(count)
    assert taken == [max(1, threads // 2), max(1, threads // 3), 1]
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_slots_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int]] = []

    class Started(Child):
        def __init__(self, *given: Any) -> None:
            begun.append(given[-2:])
            self.process: Any = SimpleNamespace(sentinel=os.open(os.devnull, os.O_RDONLY), exitcode=len(begun) - 1)
            self.process.kill = lambda: None

        def ending(self) -> None:
            os.close(self.process.sentinel)

    monkeypatch.setattr(processes, "Child", Started)
    monkeypatch.setattr(processes.connection, "wait", lambda *given: None)
    runs = [Run(Path(str(number)), number, [], {}, "", [], 0.0) for number in range(3)]
    order: list[int] = []
    processes.run_locally(runs, 2, StopFlag(), lambda run, error: order.append(run.number), lambda: None)
    assert begun == [(2, 0), (2, 1), (2, 1)]
    assert order == [0, 1, 2]


@pytest.mark.parametrize(("jobs", "gpus", "count", "runs"), [(3, 1, 1, 3), (5, 2, 1, 3), (2, 4, 2, 1), (2, 0, 1, 2)])
def test_a_run_knows_how_many_share_its_gpu(monkeypatch, jobs, gpus, count, runs):
    """So that an engine takes its part of the memory."""
    monkeypatch.setattr(processes.distributed, "visible_gpus", lambda: [*map(str, range(gpus))])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(processes.distributed.RUNS_PER_GPU, "1")
    processes.choose_gpus(0, count, jobs)
    assert processes.distributed.runs_per_gpu() == runs


def test_each_slot_has_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(slot: int, count: int, names: list[str]) -> str:
        monkeypatch.setattr(processes.distributed, "visible_gpus", lambda: names)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
        monkeypatch.setenv(processes.distributed.RUNS_PER_GPU, "1")
        processes.choose_gpus(slot, count, jobs=1)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    five = ["0", "1", "4", "5", "7"]
    assert [seen(slot, 1, five) for slot in range(6)] == ["0", "1", "4", "5", "7", "0"]
    assert [seen(slot, 2, five) for slot in range(3)] == ["0,1", "4,5", "0,1"]
    assert seen(1, 5, five) == "all"


# ---- processes that are killed before and after their work


@pytest.mark.parametrize("error", [EOFError(), ConnectionRefusedError(111, "refused"), BrokenPipeError(32, "broken")])
def test_a_process_whose_server_was_killed_can_t_be_started(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptors: object) -> None:
        raise error

    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", refuse)
    with refused(r"it can't be started: the server that forks it ended \(out of memory\?\)", Killed):
        Child("it", None, end, "done")


def test_a_process_that_was_killed_while_it_sent_its_ending() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), (100).to_bytes(4, "big") + b"half")
    theirs.close()
    child = Child.__new__(Child)
    child._messages, child.process = ours, SimpleNamespace(exitcode=-signal.SIGKILL, name="it")  # type: ignore[assignment]
    assert str(child.ending()) == "it was killed by SIGKILL (out of memory?)"
