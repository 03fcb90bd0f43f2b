"""Graders' processes: threads, forks, signals, a killed parent; hostile completions run no code."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, suppress
from pathlib import Path

import pytest

from tests.conftest import ROOT, contents, each_row, run_python, values_of
from tests.grading.cases import GOLD, HOSTILE
from tests.grading.conftest import boxed, decisions, verdicts_on, worker_pids
from tests.processes import is_running, state_of
from tests.sweep_tools import wait_for
from topr_exp.grading import Grader, pool
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.types import TOPRError

PAIR = (boxed(r"\frac{\sqrt{2}}{2}"), r"\frac{1}{\sqrt{2}}")
ENDLESS = (boxed("9^{9^{9^{9}}}"), r"\pi")
INTEGRAL = (boxed(r"\int_0^\infty e^{-x^2} dx"), r"\frac{\sqrt{\pi}}{2}")  # by sympy's tables, which are text


def grade_new_answers(grader, number, count=10):
    """Verdicts on symbolic answers with this number, which were not asked for before; all are correct."""
    pairs = [(boxed(rf"{number}x+{i}+\pi"), rf"\pi+{i}+{number}x") for i in range(1, count + 1)]
    return set(verdicts_on(grader, pairs))


TEXTS = [("a text", "text")] * 10  # a user's grader reads each in a worker, which starts at once: it needs no sympy


def grade_texts(grader):
    return set(verdicts_on(grader, TEXTS))


@pytest.fixture
def quick():
    with Grader("own_graders.contains", workers=1, deadline=20.0) as grader:
        yield grader


def wait_for_end(pids):
    wait_for(lambda: not any(map(is_running, pids)))


def test_threads_share_a_grader_and_may_end(grader):
    """The workers belong to the process, not to the thread that happened to need them first."""
    with ThreadPoolExecutor(6) as threads:
        verdicts = list(threads.map(lambda number: grade_new_answers(grader, number), range(2, 8)))
    pids = worker_pids(grader)

    assert verdicts == [{"correct"}] * 6
    assert grade_new_answers(grader, 9) == {"correct"}
    assert worker_pids(grader) == pids


def test_a_first_worker_leaves_calculus_to_the_one_that_replaces_it():
    """So that a run without calculus does not wait for its tables."""
    with Grader("math", workers=1, deadline=20.0) as grader:
        algebra = decisions(grader, [PAIR])
        server_pid, first_pid = worker_pids(grader)
        calculus = decisions(grader, [INTEGRAL, PAIR])
        server_pid_after, second_pid = worker_pids(grader)
        calculus_again = decisions(grader, [INTEGRAL])
        last_pids = worker_pids(grader)

    assert algebra == calculus_again == [("correct", "symbolic")]
    assert calculus == [("correct", "symbolic")] * 2
    assert (server_pid_after, last_pids) == (server_pid, [server_pid, second_pid])
    assert second_pid != first_pid


def grade_in_child(grader, connection):
    connection.send((grade_texts(grader), worker_pids(grader)))
    grader.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_workers_of_its_own_and_the_parents_go_on(quick):
    context = multiprocessing.get_context("fork")
    assert grade_texts(quick) == {"correct"}
    pids = worker_pids(quick)
    connection, connection_of_child = context.Pipe()

    child = context.Process(target=grade_in_child, args=(quick, connection_of_child))
    child.start()
    assert connection.poll(300)
    verdicts, pids_of_child = connection.recv()
    child.join(300)

    assert (child.exitcode, verdicts) == (0, {"correct"})
    assert not set(pids_of_child) & set(pids)
    assert grade_texts(quick) == {"correct"}
    assert worker_pids(quick) == pids
    wait_for_end(pids_of_child)


PARENT = f"""
import ctypes, sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests/grading")!r}]
from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader
grader = Grader("own_graders.obedient", workers=2, deadline=600.0)
list(grader.grade([("1", "")]))
if "fork" in sys.argv and ctypes.CDLL(None).fork() == 0:  # a library's, of which Python learns nothing
    time.sleep(600)
print(*worker_pids(grader), flush=True)
if "busy" in sys.argv:
    list(grader.grade([("spin", "")] * 2))
if "idle" in sys.argv:
    time.sleep(600)
"""


@pytest.mark.parametrize("state", ["fork busy", "exit", pytest.param("fork idle", marks=pytest.mark.extended)])
def test_no_worker_outlives_its_parent(state, tmp_path):
    """Killed with -9 while workers compute or wait and a child holds its sockets; or ending without a close."""
    command = [sys.executable, "-c", PARENT, *state.split()]
    parent = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True, text=True)
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) == 3
    if "busy" in state:
        wait_for(lambda: "R" in map(state_of, pids))
    if state != "exit":
        assert all(map(is_running, pids))
        parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    try:
        wait_for_end(pids)
    finally:
        if "fork" in state:
            os.killpg(parent.pid, signal.SIGKILL)


def test_processes_that_end_while_they_are_idle_cost_nobody_a_verdict(quick):
    """The kernel may kill one for the machine's memory; the next completion is not to blame."""
    grade_texts(quick)
    server, worker = worker_pids(quick)
    os.kill(worker, signal.SIGKILL)
    wait_for_end([worker])
    assert grade_texts(quick) == {"correct"}
    same_server, new_worker = worker_pids(quick)
    assert same_server == server
    assert new_worker != worker

    os.kill(server, signal.SIGKILL)
    wait_for_end([server, new_worker])
    with pytest.raises(TOPRError, match="the grading processes ended unexpectedly"):
        grade_texts(quick)
    assert grade_texts(quick) == {"correct"}


@pytest.mark.parametrize("number, deadline", [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 2.0)])
def test_a_worker_that_is_ended_or_stopped_at_work_costs_nobody_a_verdict(number, deadline):
    with Grader("own_graders.interrupted_in_old_workers", workers=1, deadline=deadline) as grader:
        grader.start()
        _, worker = worker_pids(grader)

        assert decisions(grader, [("0", f"{number:d} {worker}")]) == [("correct", "user")]

        assert worker not in worker_pids(grader)


def test_a_worker_without_a_processor_is_not_cut_off_at_once():
    """One that sleeps stands for one that other processes keep from computing."""
    workers = pool.WorkerPool("own_graders.interrupted_in_old_workers", 1, 0.2, patience=100.0)

    assert [status for status, _ in workers.submit([("1", "")])] == ["ok"]

    workers.close()


def test_a_task_that_was_cut_off_is_tried_once_more_while_no_other_is_under_way():
    with Grader("own_graders.interrupted_in_old_workers", workers=3, deadline=60.0) as grader:
        grader.start()
        _, *workers = worker_pids(grader)
        kill_all = f"{signal.SIGKILL:d} {' '.join(map(str, workers))}"

        first, killed, *later_outcomes = grader.grade([("0.2", ""), ("0.2", kill_all)] + [("0.2", "")] * 6)

    assert set(values_of([first, killed, *later_outcomes], "verdict")) == {"correct"}
    start, end = map(float, killed.answer.split())
    for outcome in (first, *later_outcomes):
        other_start, other_end = map(float, outcome.answer.split())
        assert other_end <= start or other_start >= end


def test_a_grader_works_in_odd_surroundings(tmp_path):
    """A working folder with a module that hides the standard library's, a deleted one, and no PYTHONPATH."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    code = (
        f"import sys, os; sys.path[:] = [{str(ROOT)!r}] + [p for p in sys.path if p]\n"
        "from topr_exp.grading import Grader\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        f"print([o.verdict for o in Grader('math', 1, 60.0).grade([{PAIR!r}])])\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    process = run_python("-c", code, cwd=tmp_path, env=environment)

    assert process.stdout == "['correct']\n", process.stderr


# ---- hostile completions: answered in time, no code run, no file made, memory bounded

CPU_SECONDS = 5.0  # of the caller, whatever else is at work here; an idle machine needs 0.02


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A grader with a short deadline, in an empty folder that stays empty."""
    folder = tmp_path_factory.mktemp("empty")
    with chdir(folder), Grader("math", workers=2, deadline=0.3) as grader:
        grader.start()
        yield grader
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_completion_is_answered_in_time_and_not_paid(name, hasty):
    """Its deadline ends a worker, whose CPU time is not the caller's."""
    start = time.process_time()

    verdicts = verdicts_on(hasty, [(HOSTILE[name], GOLD)])

    assert verdicts != ["correct"]
    assert time.process_time() - start < CPU_SECONDS


def test_what_decided_says_what_was_cut_off(hasty):
    assert decisions(hasty, [ENDLESS, (boxed("1"), "1")]) == [("incorrect", "timeout"), ("correct", "string")]


def test_memory_is_bounded_in_workers_and_stays_small_in_the_caller(hasty):
    for pid in worker_pids(hasty)[1:]:
        _, limits = Path(f"/proc/{pid}/limits").read_text().split("Max address space")
        assert int(limits.split()[0]) < 1 << 30

    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for completion in HOSTILE.values():
        compare_quickly(GOLD, completion)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - usage < 300 << 10


EXECUTES_NOTHING = r"""
from topr_exp.grading import symbolic
from topr_exp.grading.equivalence import compare_quickly
from tests.grading.cases import BOXED
symbolic.prepare()
symbolic.prepare_rest()
events = []
watched = ("compile", "os.", "subprocess.", "socket.", "ctypes.", "shutil.")
sys.addaudithook(lambda event, args: events.append((event, args)) if event.startswith(watched) else None)
pairs = [(r"x^2-1", r"(x-1)(x+1)"), (r"\frac{1}{2}+\pi", r"\pi+0.5"), (r"3\sqrt{2}", r"\sqrt{18}"),
         (r"y=2x+1", r"2x-y=-1"), (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), (r"\log_2 8x", r"3+\log_2 x")]
for gold, answer in pairs:
    assert compare_quickly(gold, answer)[0] is None and symbolic.equal(gold, answer), (gold, answer)
for name in ("import", "import in letters", "lambda", "open", "variable", "operator name", "write18",
             "symbol with code in a sum"):
    answer = BOXED[name]
    for gold in (r"\pi", "x", "1", answer + "+x"):
        assert compare_quickly(gold, answer)[0] is not True and not symbolic.equal(gold, answer), name
assert not [event for event in events if event[0] != "os.listdir"], events
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
def test_no_text_is_executed(code, tmp_path):
    """No eval, no sympify of a string, no lambdify, whoever would call it; the seal refuses that, and all writing."""
    (tmp_path / "kept").write_text("kept")
    imports = f"import os, socket, sqlite3, sys\nsys.path[:0] = [{str(ROOT)!r}]\n"

    process = run_python("-c", f"{imports}{code}\nprint('done')", cwd=tmp_path)

    assert (process.stdout, process.stderr) == ("done\n", "")
    assert contents(tmp_path) == {"kept": b"kept"}


def open_files(pid):
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            links.append(os.readlink(entry))
    return links


def test_workers_inherit_no_descriptors(quick):
    """Standard input and output are /dev/null; beside them there is standard error and the one socket."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        grade_texts(quick)
        for pid in worker_pids(quick):
            wait_for(lambda pid=pid: len(open_files(pid)) == 4)  # the server closes a worker's end after the fork
            links = open_files(pid)
            assert links.count("/dev/null") == 2
            assert os.readlink(f"/proc/self/fd/{writer}") not in links
    finally:
        os.close(reader)
        os.close(writer)


# ---- what a worker sends is not believed, nor waited for


@pytest.fixture(scope="module")
def misbehaving():
    workers = pool.WorkerPool("own_graders.misbehaving", 1, 2.0)
    yield workers
    workers.close()


MESSAGES = """
half | timeout
endless | died
number | died
nested | died
two lines | died
"""


@each_row("message status", MESSAGES)
def test_a_workers_message_that_is_no_whole_answer_costs_its_task_alone(message, status, misbehaving):
    answers = misbehaving.submit([(message, "x"), ("fine", "x")])

    assert answers == [(status, None), ("ok", "correct")]


def test_a_worker_that_reads_no_task_is_replaced(misbehaving):
    """It is stopped, and the task is larger than what the kernel keeps for it."""
    os.kill(misbehaving._workers[0].pid, signal.SIGSTOP)
    assert misbehaving.submit([("x" * (1 << 23), "x")]) == [("ok", "correct")]
