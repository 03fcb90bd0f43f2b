"""Threads, fork, spawn, signals, odd paths, a killed parent: grading works and nothing is left behind."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topr_exp.grading import Grader, pool
from topr_exp.types import TOPRError

ROOT = Path(__file__).resolve().parents[2]
PAIR = (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}")
ENDLESS = (r"\boxed{9^{9^{9^{9}}}}", r"\pi")


def verdicts(grader: Grader, salt: int = 0, count: int = 10) -> set[str]:
    """Verdicts of symbolic answers that were not asked for before; all are correct."""
    pairs = [(rf"\boxed{{{salt}x+{i}+\pi}}", rf"\pi+{i}+{salt}x") for i in range(1, count + 1)]
    return {outcome.verdict for outcome in grader.grade(pairs)}


@contextmanager
def threads(*works: Callable[[], object]) -> Iterator[None]:
    """Run these in threads until the block's end."""
    started = [threading.Thread(target=work) for work in works]
    for thread in started:
        thread.start()
    try:
        yield
    finally:
        for thread in started:
            thread.join(300)


def test_threads_share_a_grader_and_may_end() -> None:
    """The workers belong to the process, not to the thread that happened to need them first."""
    found: list[set[str]] = []
    with Grader("math", workers=2, deadline=20.0) as grader:
        with threads(*(lambda salt=salt: found.append(verdicts(grader, salt)) for salt in range(2, 8))):
            pass
        pids = grader.worker_pids()
        assert verdicts(grader, 9) == {"correct"}
        assert grader.worker_pids() == pids
    assert found == [{"correct"}] * 6


def _child(grader: Grader, connection: multiprocessing.connection.Connection) -> None:
    connection.send((verdicts(grader, 5), grader.worker_pids()))
    grader.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_in_a_child_process(method: str) -> None:
    """A child gets workers of its own, and the parent's go on."""
    context = multiprocessing.get_context(method)
    with Grader("math", workers=1, deadline=20.0) as grader:
        assert verdicts(grader, 2) == {"correct"}
        before = grader.worker_pids()
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(grader, theirs))
        child.start()
        assert ours.poll(300)
        found, pids = ours.recv()
        child.join(300)
        assert child.exitcode == 0
        assert found == {"correct"}
        assert not set(pids) & set(before)
        assert verdicts(grader, 3) == {"correct"}
        assert grader.worker_pids() == before
    gone(pids + before)


class Interrupt(BaseException):
    pass


@contextmanager
def on_alarm(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    def handle(*_: object) -> None:
        act()

    previous = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_signal_while_grading() -> None:
    """A caller's own SIGALRM comes in time and disturbs nothing; its exception leaves the grader usable."""
    at_work: list[bool] = []

    def interrupt() -> None:
        raise Interrupt

    with Grader("math", workers=1, deadline=4.0) as grader:
        verdicts(grader, 2, 1)
        server, worker = grader.worker_pids()
        with on_alarm(0.3, lambda: at_work.append(alive(worker))):
            assert [outcome.path for outcome in grader.grade([ENDLESS])] == ["timeout"]
        assert at_work == [True]  # while the worker computed: it is killed at the deadline
        gone([worker])
        assert verdicts(grader, 3) == {"correct"}
        with on_alarm(0.3, interrupt), pytest.raises(Interrupt):
            list(grader.grade([(ENDLESS[0], r"\pi+1")]))
        gone([server])
        assert verdicts(grader, 4) == {"correct"}


def gone(pids: list[int], seconds: float = 60.0) -> None:
    """Asserts that none of the processes is left, within some seconds."""
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if alive(pid)]
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


PARENT = f"""
import ctypes, sys, time
sys.path.insert(0, {str(ROOT)!r})
from topr_exp.grading import Grader
grader = Grader("math", workers=2, deadline=600.0)
list(grader.grade([{PAIR!r}]))
if "fork" in sys.argv and ctypes.CDLL(None).fork() == 0:  # a library's, of which Python learns nothing
    time.sleep(600)
print(*grader.worker_pids(), flush=True)
if "busy" in sys.argv:
    list(grader.grade([{ENDLESS!r}] * 2))
if "idle" in sys.argv:
    time.sleep(600)
"""


@pytest.mark.parametrize("state", ["busy", "idle", "exit", "fork idle"])
def test_no_worker_outlives_its_parent(state: str, tmp_path: Path) -> None:
    """Killed with -9 while workers compute or wait, or while a child holds its sockets; or ending without a close."""
    command = [sys.executable, "-c", PARENT, *state.split()]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3
    if state != "exit":
        assert all(alive(pid) for pid in pids)
        time.sleep(0.2)
        parent.send_signal(signal.SIGKILL)
    parent.wait(60)
    parent.stdout.close()
    try:
        gone(pids)
    finally:
        if "fork" in state:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_worker_that_ends_while_it_is_idle_costs_nobody_a_verdict() -> None:
    """The kernel may kill one for the machine's memory; the next completion is not to blame."""
    with Grader("math", workers=1, deadline=20.0) as grader:
        verdicts(grader, 2, 1)
        server, worker = grader.worker_pids()
        os.kill(worker, signal.SIGKILL)
        gone([worker])
        assert verdicts(grader, 3) == {"correct"}
        assert grader.counters["died"] == 0
        same, other = grader.worker_pids()
        assert same == server
        assert other != worker


@pytest.mark.parametrize(("what", "deadline"), [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 4.0)])
def test_a_worker_that_something_else_ends_or_stops_at_work_costs_nobody_a_verdict(
    what: signal.Signals, deadline: float
) -> None:
    with Grader("own_graders:dying_without_file", workers=1, deadline=deadline) as grader:
        grader.start()
        _, worker = grader.worker_pids()
        timer = threading.Timer(0.3, os.kill, (worker, what))
        timer.start()
        assert [(one.verdict, one.path) for one in grader.grade([("1", "")])] == [("correct", "user")]
        assert worker not in grader.worker_pids()
        timer.join()


def test_a_task_that_was_cut_off_is_tried_once_more_while_no_other_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = pool.WorkerPool._replace

    def replace_and_mend(own: pool.WorkerPool, place: int) -> None:
        (tmp_path / "there").touch()  # what the first worker died of is gone when the second begins
        replace(own, place)

    monkeypatch.setattr(pool.WorkerPool, "_replace", replace_and_mend)
    with Grader("own_graders:dying_without_file", workers=3, deadline=60.0) as grader:
        pairs = [("0.2", ""), ("0.2", str(tmp_path / "there")), *[("0.2", "")] * 6]
        found = list(grader.grade(pairs))
    assert [one.verdict for one in found] == ["correct"] * 8
    times = [tuple(map(float, str(one.answer).split())) for one in found]
    begin, end = times.pop(1)
    assert all(before <= begin or after >= end for after, before in times)


def test_workers_that_die_one_after_the_other_beside_busy_threads() -> None:
    """Each death is told apart and none stops the rest, however late the caller gets to run."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1000))

    with threads(work, work, work):
        try:
            with Grader("own_graders:obedient", workers=2, deadline=60.0) as grader:
                found = [outcome.path for outcome in grader.grade((text, "") for text in ["die", "die", "1"] * 8)]
        finally:
            stop.set()
    assert found == ["died", "died", "user"] * 8


def test_workers_die_with_the_server_and_the_caller_learns_of_it() -> None:
    with Grader("math", workers=2, deadline=60.0) as grader:
        verdicts(grader, 2)
        pids = grader.worker_pids()
        os.kill(pids[0], signal.SIGKILL)
        gone(pids)
        with pytest.raises(TOPRError, match="the grading processes ended unexpectedly"):
            verdicts(grader, 3)
        assert grader.counters["died"] == 0  # nor does a completion pay for it
        assert verdicts(grader, 3) == {"correct"}


def test_odd_surroundings(tmp_path: Path) -> None:
    """A working folder with modules that hide the standard library's, a deleted one, and no PYTHONPATH."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    (tmp_path / "socket.py").write_text("raise SystemExit('the wrong socket')")
    gone_folder = tmp_path / "gone"
    gone_folder.mkdir()
    code = (
        f"import sys, os; sys.path[:] = [{str(ROOT)!r}] + [p for p in sys.path if p]\n"
        "from topr_exp.grading import Grader\n"
        f"for folder in (None, {str(gone_folder)!r}):\n"
        "    if folder: os.chdir(folder); os.rmdir(folder)\n"
        f"    print([o.verdict for o in Grader('math', 1, 60.0).grade([{PAIR!r}])])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "['correct']\n['correct']\n", done.stderr


def test_processes_that_start_too_late_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "START_SECONDS", 1e-4)
    with pytest.raises(TOPRError, match="did not answer"), Grader("math", workers=1) as grader:
        verdicts(grader)
