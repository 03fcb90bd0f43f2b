"""Processes of runs on this machine: how they end, which threads and GPUs each has, how far all are."""

import gc
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from tests.conftest import refused
from tests.sweeps.fake_scheduler import bare_run
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import local
from topr_exp.sweeps.processes import Child, KilledError, share_threads, supervise
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
        ("kill", KilledError, "it was killed by SIGKILL (out of memory?)"),
        ("exit", KilledError, "it ended with exit code 3"),
    ],
)
def test_the_ending_of_a_process_is_reported_and_logged(way: str, kind: type, text: str, tmp_path: Path) -> None:
    errors: list[BaseException | None] = []
    start = lambda slot: Child("it", tmp_path / "run/log.txt", end, way)
    supervise([start], StopFlag(), lambda child, error: errors.append(error), slots=1)
    assert [(type(error), str(error)) for error in errors] == [(kind, text)]
    log = (tmp_path / "run/log.txt").read_text()
    assert (text in log) == (way in ERRORS)
    assert ("Traceback" in log) == (way == "bug")


def test_processes_take_turns_in_the_slots() -> None:
    slots: list[int] = []

    def start(slot: int) -> Child:
        slots.append(slot)
        return Child("it", None, end, "done")

    supervise([start] * 5, StopFlag(), lambda child, error: None, slots=2)
    assert slots[:2] == [0, 1]
    assert set(slots) == {0, 1}
    assert len(slots) == 5


@pytest.mark.parametrize("error", [EOFError(), ConnectionRefusedError(111, "refused"), BrokenPipeError(32, "broken")])
def test_a_process_whose_server_was_killed_can_t_be_started(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptors: object) -> None:
        raise error

    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", refuse)
    with refused(r"it can't be started: the server that forks it ended \(out of memory\?\)", KilledError):
        Child("it", None, end, "done")


@pytest.mark.parametrize("threads", [8, 1])
def test_threads_are_divided_among_runs(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    thread_counts: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "as it was")
    share_threads(1)
    assert os.environ["OMP_NUM_THREADS"] == "as it was"
    for count in (2, 3, 40):
        share_threads(count)
    assert thread_counts == [max(1, threads // 2), max(1, threads // 3), 1]
    assert os.environ["OMP_NUM_THREADS"] == "1"


# ---- GPUs of a sweep's runs


@pytest.mark.parametrize(
    ("parallel_runs", "gpus", "gpus_per_run", "runs_per_gpu"), [(3, 1, 1, 3), (5, 2, 1, 3), (2, 4, 2, 1), (2, 0, 1, 2)]
)
def test_a_run_knows_how_many_share_its_gpu(monkeypatch, parallel_runs, gpus, gpus_per_run, runs_per_gpu):
    """So that an engine takes its part of the memory."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(distributed.RUNS_PER_GPU, "1")
    local.choose_gpus(0, gpus_per_run, parallel_runs)
    assert distributed.runs_per_gpu() == runs_per_gpu


@pytest.mark.parametrize(
    ("gpus_per_run", "visible_by_slot"),
    [(1, ["0", "1", "4", "5", "7", "0"]), (2, ["0,1", "4,5", "0,1"]), (5, ["0,1,4,5,7", "0,1,4,5,7"])],
)
def test_each_slot_has_its_gpus(monkeypatch, gpus_per_run, visible_by_slot):
    for slot, visible in enumerate(visible_by_slot):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,4,5,7")
        monkeypatch.setenv(distributed.RUNS_PER_GPU, "1")
        local.choose_gpus(slot, gpus_per_run, parallel_runs=1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_progress_is_printed_early_and_once_a_minute(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(local.time, "monotonic", lambda: clock[0])
    ticker = local.Ticker([bare_run(tmp_path)])
    lines = []
    for clock[0] in (0, 9, 11, 69, 72, 120):
        ticker.tick()
        lines.append(capsys.readouterr().out.count("0 of 1 run ended"))
    assert lines == [0, 0, 1, 0, 1, 0]


def test_a_process_that_was_killed_while_it_sent_its_ending() -> None:
    errors: list[str] = []
    start = lambda slot: Child("it", None, send_half)
    supervise([start], StopFlag(), lambda child, error: errors.append(str(error)), slots=1)
    assert errors == ["it was killed by SIGKILL (out of memory?)"]


def send_half() -> None:
    """Write the length of a message and a part of it to the parent, then die."""
    connections = [item for item in gc.get_objects() if isinstance(item, Connection) and item.writable]
    for connection in connections:
        os.write(connection.fileno(), (100).to_bytes(4, "big") + b"half")
    os.kill(os.getpid(), signal.SIGKILL)
