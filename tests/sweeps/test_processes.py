"""Processes of runs on this machine: how they end, which threads and GPUs each has, how far all are."""

import gc
import os
import signal
import subprocess
import sys
import time
import types
from multiprocessing import forkserver
from multiprocessing.connection import Connection

import pytest
import torch

from tests.conftest import ROOT, each_row
from tests.sweeps.fake_scheduler import bare_run
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sweeps import local
from topr_exp.sweeps.imports import import_pipeline
from topr_exp.sweeps.processes import Child, share_threads, supervise
from topr_exp.types import ConfigError, TOPRError

ERRORS = {
    "config": ConfigError("a setting"),
    "ours": TOPRError("no file" + 100_000 * "x"),  # more than a pipe holds
    "bug": ValueError("theirs"),
    "stop": Interrupted(signal.SIGTERM),
}


def end(way):
    if way in ERRORS:
        raise ERRORS[way]
    if way == "late":
        time.sleep(1)
        raise ERRORS["ours"]
    if way == "half sent":
        for connection in gc.get_objects():
            if isinstance(connection, Connection) and connection.writable:
                os.write(connection.fileno(), (100).to_bytes(4, "big") + b"half")
    if way == "exit":
        os._exit(3)
    if way != "done":
        os.kill(os.getpid(), signal.SIGTERM if way == "term" else signal.SIGKILL)


def endings_of(*ways, log=None, slots=1, is_one_run=False):
    """What is reported of processes that end in these ways, so many at a time."""
    errors = []
    starts = [lambda slot, way=way: Child("it", log, end, way) for way in ways]
    supervise(starts, StopFlag(), lambda child, error: errors.append(error), slots=slots, is_one_run=is_one_run)
    return errors


# How a process ends | what is reported of it
ENDINGS = """
done | NoneType | None
config | ConfigError | a setting
ours | TOPRError | no file
bug | TOPRError | ValueError: theirs
stop | Interrupted | stopped by SIGTERM; the same command goes on from there
kill | KilledError | it was killed by SIGKILL (out of memory?)
term | KilledError | it was killed by SIGTERM
half sent | KilledError | it was killed by SIGKILL (out of memory?)
exit | KilledError | it ended with exit code 3
"""


@each_row("way kind text", ENDINGS)
def test_the_ending_of_a_process_is_reported_and_logged(way, kind, text, tmp_path):
    log = tmp_path / "run/log.txt"

    (error,) = endings_of(way, log=log)

    assert type(error).__name__ == kind
    assert str(error).rstrip("x") == text
    assert (text in log.read_text()) == (way in ERRORS)
    assert ("Traceback" in log.read_text()) == (way == "bug")


def test_a_process_does_not_run_its_callers_script(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('the script ran again')")
    main_module = types.ModuleType("__main__")
    main_module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", main_module)

    assert endings_of("done", log=tmp_path / "log.txt") == [None]

    assert sys.modules["__main__"] is main_module


def test_a_run_that_is_stopped_stops_no_other_of_its_sweep():
    errors = endings_of("stop", "done")

    assert list(map(type, errors)) == [Interrupted, type(None)]


def test_a_process_of_a_failed_run_has_time_to_say_what_failed_in_it(monkeypatch):
    monkeypatch.setattr("topr_exp.sweeps.processes.GRACE_SECONDS", 60.0)

    errors = endings_of("late", "config", slots=2, is_one_run=True)

    assert set(map(type, errors)) == {ConfigError, TOPRError}


def test_a_closed_terminal_does_not_end_the_server_of_forks():
    """It tells how each run ended."""
    endings_of("done")
    server = forkserver._forkserver._forkserver_pid

    os.kill(server, signal.SIGHUP)

    assert endings_of("done") == [None]
    assert forkserver._forkserver._forkserver_pid == server


def test_processes_take_turns_in_the_slots():
    slots = []

    def start(slot):
        slots.append(slot)
        return Child("it", None, end, "done")

    supervise([start] * 5, StopFlag(), lambda child, error: None, slots=2)

    assert slots[:2] == [0, 1]
    assert set(slots) == {0, 1}
    assert len(slots) == 5


def test_a_tmpdir_without_room_for_the_names_of_sockets_is_named(tmp_path):
    """As of jobs on a cluster, below the folders of project and user; no memory is short."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    program = "from topr_exp.sweeps.processes import Child; Child('it', None, print)"

    outcome = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
    )

    assert outcome.stderr.splitlines()[-1].endswith(
        f"TMPDIR={folder}: too long for the names of sockets; set a shorter one"
    )


def test_a_server_of_forks_that_is_killed_as_a_process_starts_ends_no_other(monkeypatch):
    connect = forkserver.connect_to_new_process
    answers = iter([connect, None, connect])

    def connect_unless_killed(descriptors):
        answer = next(answers)
        if answer is None:
            raise EOFError
        return answer(descriptors)

    monkeypatch.setattr(forkserver, "connect_to_new_process", connect_unless_killed)

    assert endings_of("done", "done", slots=2) == [None, None]

    assert next(answers, "all used") == "all used"


@pytest.fixture
def eight_threads(variables):
    """This process computes with eight threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(8)
    variables["OMP_NUM_THREADS"] = "8"
    yield
    torch.set_num_threads(threads)


# Runs at once | threads of each
SHARES = """
1 | 8
2 | 4
3 | 2
40 | 1
"""


@each_row("processes share", SHARES, literals=True)
def test_threads_are_divided_among_runs(processes, share, eight_threads, variables):
    share_threads(processes)

    assert torch.get_num_threads() == share
    assert variables["OMP_NUM_THREADS"] == str(share)


# GPUs of the machine | slot | GPUs of a run | runs at once | GPUs of this one | runs that share each of them
SLOTS = """
"0,1,4,5,7" | 0 | 1 | 1 | "0" | 1
"0,1,4,5,7" | 4 | 1 | 5 | "7" | 1
"0,1,4,5,7" | 5 | 1 | 1 | "0" | 1
"0,1,4,5,7" | 1 | 2 | 2 | "4,5" | 1
"0,1,4,5,7" | 2 | 2 | 3 | "0,1" | 2
"0,1,4,5,7" | 1 | 5 | 1 | "0,1,4,5,7" | 1
"0" | 2 | 1 | 3 | "0" | 3
"0,1" | 1 | 1 | 5 | "1" | 3
"""


@each_row("gpus_of_machine slot gpus_per_run runs_at_once gpus runs_per_gpu", SLOTS, literals=True)
def test_each_slot_has_its_gpus_and_knows_how_many_runs_share_one(
    gpus_of_machine, slot, gpus_per_run, runs_at_once, gpus, runs_per_gpu, variables
):
    variables |= {"CUDA_VISIBLE_DEVICES": gpus_of_machine, distributed.RUNS_PER_GPU: "1"}

    local.choose_gpus(slot, gpus_per_run, runs_at_once)

    assert variables["CUDA_VISIBLE_DEVICES"] == gpus
    assert distributed.runs_per_gpu() == runs_per_gpu


def test_progress_is_printed_early_and_once_a_minute(tmp_path, clock, capsys):
    (tmp_path / "error.txt").write_text("of an earlier launch")
    ticker = local.Ticker([bare_run(tmp_path)])
    counts = []

    for seconds in (0, 9, 2, 58, 3, 48):
        clock.now += seconds
        ticker.tick()
        counts.append(capsys.readouterr().out.count("0 of 1 run ended"))

    assert counts == [0, 0, 1, 0, 1, 0]
    ticker.count_end()
    clock.now += 12
    ticker.tick()
    assert capsys.readouterr().out.endswith(" 1 of 1 run ended, about 0 min left\n")


def test_a_process_of_a_run_counts_gpus_without_taking_one_also_where_no_command_started_it(variables):
    """Else every process of a run that `run_sweep` starts would compute on the first GPU."""
    variables.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)

    import_pipeline()

    assert variables["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
