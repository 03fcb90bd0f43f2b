"""Graders' processes: threads, forks, signals, a killed parent; hostile completions run no code."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.grading.cases import GOLD, HOSTILE
from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader, pool
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.types import TOPRError

PAIR = (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}")
ENDLESS = (r"\boxed{9^{9^{9^{9}}}}", r"\pi")


def verdicts(grader: Grader, salt: int = 0, count: int = 10) -> set[str]:
    """Verdicts of symbolic answers that were not asked for before; all are correct."""
    pairs = [(rf"\boxed{{{salt}x+{i}+\pi}}", rf"\pi+{i}+{salt}x") for i in range(1, count + 1)]
    return {outcome.verdict for outcome in grader.grade(pairs)}


def test_threads_share_a_grader_and_may_end() -> None:
    """The workers belong to the process, not to the thread that happened to need them first."""
    with Grader("math", workers=2, deadline=20.0) as grader:
        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(lambda salt: verdicts(grader, salt), range(2, 8))) == [{"correct"}] * 6
        pids = worker_pids(grader)
        assert verdicts(grader, 9) == {"correct"}
        assert worker_pids(grader) == pids


def _child(grader: Grader, connection: Any) -> None:
    connection.send((verdicts(grader, 5), worker_pids(grader)))
    grader.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_in_a_forked_child() -> None:
    """A child gets workers of its own, and the parent's go on."""
    context = multiprocessing.get_context("fork")
    with Grader("math", workers=1, deadline=20.0) as grader:
        assert verdicts(grader, 2) == {"correct"}
        before = worker_pids(grader)
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
        assert worker_pids(grader) == before
    gone(pids + before)


class Interrupt(BaseException):
    pass


@pytest.mark.extended
def test_a_signal_while_grading() -> None:
    """A caller's own SIGALRM comes in time and disturbs nothing; its exception leaves the grader usable."""
    at_work: list[bool] = []

    def on_alarm(*_: object) -> None:
        at_work.append(alive(worker_pids(grader)[1]))
        if len(at_work) > 1:
            raise Interrupt

    previous = signal.signal(signal.SIGALRM, on_alarm)
    try:
        with Grader("math", workers=1, deadline=4.0) as grader:
            verdicts(grader, 2, 1)
            server, worker = worker_pids(grader)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            assert [outcome.path for outcome in grader.grade([ENDLESS])] == ["timeout"]
            assert at_work == [True]  # while the worker computed: it is killed at the deadline
            gone([worker])
            assert verdicts(grader, 3) == {"correct"}
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupt):
                list(grader.grade([(ENDLESS[0], r"\pi+1")]))
            gone([server])
            assert verdicts(grader, 4) == {"correct"}
    finally:
        signal.signal(signal.SIGALRM, previous)


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
from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader
grader = Grader("math", workers=2, deadline=600.0)
list(grader.grade([{PAIR!r}]))
if "fork" in sys.argv and ctypes.CDLL(None).fork() == 0:  # a library's, of which Python learns nothing
    time.sleep(600)
print(*worker_pids(grader), flush=True)
if "busy" in sys.argv:
    list(grader.grade([{ENDLESS!r}] * 2))
if "idle" in sys.argv:
    time.sleep(600)
"""


@pytest.mark.parametrize("state", ["busy", "exit", "fork idle"])
def test_no_worker_outlives_its_parent(state: str, tmp_path: Path) -> None:
    """Killed with -9 while workers compute or wait, or while a child holds its sockets; or ending without a close."""
    command = [sys.executable, "-c", PARENT, *state.split()]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, text=True)
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


def test_processes_that_end_while_they_are_idle_cost_nobody_a_verdict() -> None:
    """The kernel may kill one for the machine's memory; the next completion is not to blame."""
    with Grader("math", workers=1, deadline=20.0) as grader:
        verdicts(grader, 2, 1)
        server, worker = worker_pids(grader)
        os.kill(worker, signal.SIGKILL)
        gone([worker])
        assert verdicts(grader, 3) == {"correct"}
        same, other = worker_pids(grader)
        assert same == server
        assert other != worker
        os.kill(server, signal.SIGKILL)
        gone([server, other])
        with pytest.raises(TOPRError, match="the grading processes ended unexpectedly"):
            verdicts(grader, 4)
        assert verdicts(grader, 4) == {"correct"}


@pytest.mark.parametrize(("what", "deadline"), [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 4.0)])
def test_a_worker_that_something_else_ends_or_stops_at_work_costs_nobody_a_verdict(what, deadline):
    with Grader("own_graders.dying_without_file", workers=1, deadline=deadline) as grader:
        grader.start()
        _, worker = worker_pids(grader)
        timer = threading.Timer(0.3, os.kill, (worker, what))
        timer.start()
        assert [(one.verdict, one.path) for one in grader.grade([("1", "")])] == [("correct", "user")]
        assert worker not in worker_pids(grader)
        timer.join()


def test_a_task_that_was_cut_off_is_tried_once_more_while_no_other_is_under_way(tmp_path, monkeypatch):
    replace = pool.WorkerPool._replace

    def replace_and_mend(own: pool.WorkerPool, place: int) -> None:
        (tmp_path / "there").touch()  # what the first worker died of is gone when the second begins
        replace(own, place)

    monkeypatch.setattr(pool.WorkerPool, "_replace", replace_and_mend)
    with Grader("own_graders.dying_without_file", workers=3, deadline=60.0) as grader:
        pairs = [("0.2", ""), ("0.2", str(tmp_path / "there")), *[("0.2", "")] * 6]
        found = list(grader.grade(pairs))
    assert [one.verdict for one in found] == ["correct"] * 8
    times = [tuple(map(float, str(one.answer).split())) for one in found]
    begin, end = times.pop(1)
    assert all(before <= begin or after >= end for after, before in times)


def test_odd_surroundings(tmp_path: Path) -> None:
    """A working folder with a module that hides the standard library's, a deleted one, and no PYTHONPATH."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    code = (
        f"import sys, os; sys.path[:] = [{str(ROOT)!r}] + [p for p in sys.path if p]\n"
        "from topr_exp.grading import Grader\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        f"print([o.verdict for o in Grader('math', 1, 60.0).grade([{PAIR!r}])])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout == "['correct']\n", done.stderr


# ---- hostile completions: answered in time, no code run, no file made, memory bounded


SLACK = 2.0  # seconds beyond the deadlines within which every answer has to be there; an idle machine needs 0.02


@pytest.fixture(scope="module")
def hasty() -> Iterator[Grader]:
    with Grader("math", workers=2, deadline=0.4) as grader:
        grader.start()
        yield grader


def assert_answered_in_time(grader: Grader, completion: str, gold: str, tries: int = 4) -> None:
    """One fast try of a few is proof enough, so that a busy machine does not fail the test."""
    best = float("inf")
    for attempt in range(tries):
        start = time.perf_counter()
        [outcome] = grader.grade([(completion, gold + " " * attempt)])  # another text: not one that is known
        best = min(best, time.perf_counter() - start)
        assert outcome.verdict != "correct"
        if best < grader.deadline + SLACK:
            return
    raise AssertionError(f"{best:.1f} s")


@pytest.mark.parametrize("name", HOSTILE)
def test_answered_in_time(name: str, hasty: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_answered_in_time(hasty, HOSTILE[name], GOLD)
    assert not any(tmp_path.iterdir())
    for pid in worker_pids(hasty)[1:]:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        [memory] = [line for line in limits if line.startswith("Max address space")]
        assert int(memory.split()[3]) < 1 << 30


def test_the_callers_memory_stays_small() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for completion in HOSTILE.values():
        compare_quickly(GOLD, completion)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


EXECUTES_NOTHING = r"""
from topr_exp.grading import symbolic
from topr_exp.grading.equivalence import compare_quickly
from tests.conftest import ROOT
from tests.grading.cases import GOLD, HOSTILE, IN_A_BOX
symbolic.prepare()
seen = []
watched = ("compile", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")
sys.addaudithook(lambda event, args: seen.append((event, args)) if event.startswith(watched) else None)
pairs = [(r"x^2-1", r"(x-1)(x+1)"), (r"\frac{1}{2}+\pi", r"\pi+0.5"), (r"3\sqrt{2}", r"\sqrt{18}"),
         (r"y=2x+1", r"2x-y=-1"), (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), (r"\log_2 8x", r"3+\log_2 x")]
for gold, answer in pairs:
    assert compare_quickly(gold, answer)[0] is None and symbolic.equal(gold, answer), (gold, answer)
for name in ("import", "import in letters", "lambda", "open", "variable", "operator name", "write18",
             "symbol with code in a sum"):
    answer = IN_A_BOX[name]
    for gold in (r"\pi", "x", "1", answer + "+x"):
        assert compare_quickly(gold, answer)[0] is not True and not symbolic.equal(gold, answer), name
assert not [event for event in seen if event[0] != "os.listdir"], seen
"""

SEALED = """
from topr_exp.grading import worker
worker._seal()
existing = [lambda mode=mode: open("kept", mode) for mode in ("w", "r+", "a", "wb", "r+b", "ab")]
existing += [lambda flag=flag: os.open("kept", flag) for flag in (os.O_WRONLY, os.O_RDWR, os.O_TRUNC, os.O_APPEND | 1)]
sockets = [socket.socket, lambda: socket.socket(socket.AF_UNIX), lambda: socket.create_connection(("127.0.0.1", 9)),
           lambda: socket.create_server(("", 0)), lambda: socket.getaddrinfo("localhost", 9), socket.socketpair]
for attempt in (lambda: eval("1+1"), lambda: exec("x = 1"), lambda: compile("1", "<string>", "eval"),
                lambda: open("hostile", "w"), lambda: os.open("hostile", os.O_CREAT), lambda: os.fork(),
                lambda: os.system("touch hostile"), lambda: os.mkdir("hostile"), lambda: os.remove("hostile"),
                lambda: os.truncate("kept", 0), lambda: os.rename("kept", "hostile"),
                lambda: sqlite3.connect("hostile"), *existing, *sockets):
    try:
        attempt()
    except RuntimeError as error:
        assert "grading worker" in str(error)
    else:
        sys.exit("not refused")
"""


@pytest.mark.parametrize("code", [EXECUTES_NOTHING, SEALED], ids=["comparing compiles nothing", "the seal refuses"])
def test_no_text_is_executed(code: str, tmp_path: Path) -> None:
    """No eval, no sympify of a string, no lambdify, whoever would call it; the seal refuses that, and all writing."""
    (tmp_path / "kept").write_text("kept")
    code = f"import os, socket, sqlite3, sys\nsys.path[:0] = [{str(ROOT)!r}]\n{code}\nprint('done')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "kept")]


def test_workers_inherit_no_descriptors() -> None:
    """Standard input and output are /dev/null; beside them there is standard error and the one socket."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        with Grader("math", workers=1) as own:
            own.start()
            for pid in worker_pids(own):
                links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
                assert links.count("/dev/null") == 2
                assert len(links) == 4
                assert os.readlink(f"/proc/self/fd/{writer}") not in links
    finally:
        os.close(reader)
        os.close(writer)


# ---- what a worker sends is not believed, nor waited for


@pytest.fixture(scope="module")
def misbehaving() -> Iterator[pool.WorkerPool]:
    workers = pool.WorkerPool("own_graders.misbehaving", 1, 1.0)
    yield workers
    workers.close()


@pytest.mark.parametrize(
    ("message", "outcome"),
    [("half", "timeout"), ("endless", "died"), ("number", "died"), ("nested", "died"), ("two lines", "died")],
)
def test_a_worker_s_message_that_is_no_whole_answer_costs_its_task_alone(message, outcome, misbehaving):
    began = time.monotonic()
    answers = misbehaving.submit([(message, "x"), ("fine", "x")])
    assert answers == [(outcome, None), ("ok", "correct")]
    assert time.monotonic() - began < 60


def test_a_worker_that_reads_no_task_is_replaced(misbehaving: pool.WorkerPool) -> None:
    """It is stopped, and the task is larger than what the kernel keeps for it."""
    os.kill(misbehaving._workers[0].pid, signal.SIGSTOP)
    assert misbehaving.submit([("x" * (1 << 23), "x")]) == [("ok", "correct")]
