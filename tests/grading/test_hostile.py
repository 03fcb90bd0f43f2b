"""Hostile completions: answered in time, no code run, no file made, memory bounded."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.grading.cases import GOLD, HOSTILE
from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader
from topr_exp.grading.equivalence import compare_quickly

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
