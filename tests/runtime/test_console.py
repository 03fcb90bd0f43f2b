"""Commands: a terminal that closes, strangers' files in the folder, what is printed, exit statuses."""

import errno
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import SLOW, command, environment, steps, wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import exit_status
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import printable
from topr_exp.sweeps import local
from topr_exp.types import ConfigError, TOPRError

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("ignored", [False, pytest.param(True, marks=pytest.mark.extended)], ids=["", "nohup"])
def test_a_closed_terminal_stops_a_run_with_a_checkpoint_or_does_nothing(tmp_path: Path, ignored: bool) -> None:
    settings = overrides(tmp_path, "optim.epochs=3", *SLOW)
    folder = config_of(*settings).folder
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        os.execve(sys.executable, [sys.executable, "-m", "topr_exp", *settings], environment())
    wait_for(lambda: steps(folder) >= 2)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if ignored else 128 + signal.SIGHUP)
    assert not (folder / "error.txt").exists()
    assert json.loads((folder / "state.json").read_text())["status"] == ("done" if ignored else "stopped")
    assert (folder / "DONE").exists() is ignored
    assert ignored or list(folder.glob("checkpoints/1/step-*"))


NAMES = ["tokenizers.py", "torch.py", "pyarrow.py", "numpy.py", "hydra_plugins/stranger.py", "multiprocessing.py"]
OWN = """
from topr_exp.algorithms.topr import Tapered


class Loss(Tapered):
    pass


def grade(completion, gold):
    return "correct"
"""


def fill(folder: Path) -> None:
    """Put files of libraries' names into a folder, and a loss and a grader of its user's."""
    (folder / "hydra_plugins").mkdir()
    for name in NAMES:
        (folder / name).write_text("from pathlib import Path\nPath('stranger').touch()\nraise SystemExit(9)\n")
    (folder / "own.py").write_text(OWN)


@pytest.mark.extended
def test_a_run_goes_on_without_a_reader_in_a_folder_that_strangers_fill(tmp_path: Path) -> None:
    """Its files take no library's place, neither in the command nor in the processes that it starts."""
    fill(tmp_path)
    words = ["experiment=smoke", "output_dir=out", "algo._target_=own.Loss", "data.grader._target_=own.grade"]
    command = [sys.executable, "-m", "topr_exp", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes)
    process.stdout.close()
    process.stderr.close()
    assert process.wait(300) == 0
    assert list(tmp_path.glob("out/runs/*/DONE"))
    assert not (tmp_path / "stranger").exists()


@pytest.mark.extended
@pytest.mark.parametrize(
    "words",
    [
        [
            "topr_exp",
            "-m",
            "experiment=smoke",
            "output_dir=out",
            "algo._target_=own.Loss",
            "data.grader._target_=own.grade",
        ],
        ["topr_exp.evaluate", "model=tiny", "data.grader._target_=own.grade", "data.test_problems=4", "data.eval_n=2"],
        ["topr_exp.report", "sweep", "--out", "report"],
    ],
    ids=lambda words: words[0],
)
def test_files_of_the_current_folder_take_no_library_s_place(tmp_path: Path, words: list[str]) -> None:
    fill(tmp_path)
    make_sweep_of_two(tmp_path / "sweep")
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "stranger").exists()


def test_control_characters_are_shown_escaped(tmp_path: Path) -> None:
    assert printable("a\x1b[2J\rb\n\x9b\udcff") == "a\\x1b[2J\\rb\n\\x9b\\udcff"
    sweep = make_sweep_of_two(tmp_path / "sweep")
    stopped = next(sweep.glob("tis*"))
    for name in ("error.txt", "log.txt"):
        (stopped / name).write_bytes(b"bad\x1b]0;title\x07\nline\xff\n")
    for arguments in (["status", sweep], ["logs", sweep, stopped.name], ["logs", sweep, "no\x1b[2J"]):
        done = command("topr_exp.sweeps", *arguments)
        assert "\\x1b" in done.stdout + done.stderr
        assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}


DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # of Unicode's bidirectional algorithm
VISIBLE = {0x0600, 0x0601, 0x0602, 0x0603, 0x0604, 0x0605, 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD}
JOINERS = {0x200C, 0x200D}


def test_no_character_passes_that_moves_a_terminal_s_cursor_turns_its_text_or_is_not_seen() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        unseen = category in ("Cc", "Cs", "Zl", "Zp") or (
            category == "Cf" and code not in VISIBLE | JOINERS and not 0x13430 <= code <= 0x1BCA3
        )
        unseen |= unicodedata.bidirectional(character) in DIRECTIONS
        assert (printable(character) != character) == (unseen and character not in "\n\t"), hex(code)


def test_text_that_runs_from_right_to_left_is_shown_escaped_wherever_it_comes_from(tmp_path: Path) -> None:
    turned = "\u202etxt.exe\u2066"
    sweep = make_sweep_of_two(tmp_path / "sweep")
    stopped = next(sweep.glob("tis*"))
    stopped.rename(named := stopped.with_name(f"tis{turned}"))
    for name in ("error.txt", "log.txt"):
        (named / name).write_text(f"bad {turned}\n")
    places = [["topr_exp.sweeps", "status", sweep], ["topr_exp.sweeps", "logs", sweep, named.name],
              ["topr_exp.sweeps", turned], ["topr_exp.report", sweep], ["topr_exp.report", turned],
              ["topr_exp.store", "--root", turned, "list"], ["topr_exp.evaluate", f"model={turned}"],
              ["topr_exp", f"model={turned}"], ["topr_exp.grade", turned, "--format", "gsm8k"]]  # fmt: skip
    for words in places:
        done = command(*words)
        assert "\\u202e" in done.stdout + done.stderr or words[:2] == ["topr_exp.report", sweep], words
        assert not {"\u202e", "\u2066"} & {*done.stdout, *done.stderr}, words


def test_cancel_leaves_a_process_alone_that_a_claim_only_names(tmp_path: Path) -> None:
    sweep = make_sweep_of_two(tmp_path / "sweep")
    claim = next(sweep.glob("tis*")) / "run.claim"
    with subprocess.Popen(["sleep", "60"]) as other:
        with locks.acquire(claim):  # type: ignore[union-attr]
            claim.write_text(f"{socket.gethostname()}:{other.pid}")
            done = command("topr_exp.sweeps", "cancel", sweep)
        assert other.poll() is None
        other.kill()
    assert done.returncode == 1
    assert f"process {socket.gethostname()}:{other.pid} is left alone" in done.stderr


def test_cancel_signals_nothing_where_nothing_tells_what_a_process_does(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "PROC", tmp_path / "none")
    with locks.acquire(tmp_path / "run.claim"):  # type: ignore[union-attr]
        assert "is left alone" in local.terminate(tmp_path / "run.claim")


# ---- exit statuses, with one line for an error


START = "import sys; from topr_exp.runtime.exit_status import exit_status; "
START += "from topr_exp.runtime.terminal import warn; "


def opening(number: int) -> OSError:
    return OSError(number, os.strerror(number), "a/b")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConfigError("seed=x: expected a whole number"), 2, "seed=x: expected a whole number"),
        (TOPRError("disk full"), 1, "disk full"),
        (Interrupted(signal.SIGTERM), 143, "stopped by SIGTERM; the same command goes on from there"),
        (KeyboardInterrupt(), 130, ""),
        (opening(errno.EACCES), 1, "cannot open a/b: permission denied"),
        (opening(errno.ENAMETOOLONG), 1, "cannot open a/b: file name too long"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_line_and_a_status(error, status, line, capsys):
    def work() -> int:
        raise error

    assert exit_status(work) == status
    assert capsys.readouterr() == ("", f"error: {line}\n" if line else "")
    if isinstance(error, KeyboardInterrupt):
        assert exit_status(work, resumes=True) == 130
        assert "interrupted; the same command goes on where this one stopped" in capsys.readouterr().err


def test_what_the_work_returns_is_the_status_and_a_bug_keeps_its_traceback() -> None:
    assert exit_status(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        exit_status(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("command", "code", "ending"),
    [
        ('"$0" -c "$1" >&-', "raise SystemExit(exit_status(lambda: print(1) or 3))", (3, "")),  # closed
        ('"$0" -c "$1" >/dev/full', "raise SystemExit(exit_status(lambda: print('x') or 0))",
         (1, "error: cannot write: no space left on device\n")),
        ('"$0" -c "$1" >/dev/full', "raise SystemExit(exit_status(lambda: print('x') or 3, resumes=True))", (3, "")),
        ('"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}',  # a reader who leaves is no error
         "raise SystemExit(exit_status(lambda: [print('line') for _ in range(100000)] and 0))", (1, "")),
        ('PYTHONIOENCODING=latin-1 "$0" -c "$1"', "raise SystemExit(exit_status(lambda: print('μ ◀') or 0))", (0, "")),
        ('"$0" -c "$1"', "warn('read \\x1b[2J'); warn('left out: \\x9b')",
         (0, "warning: read \\x1b[2J\nwarning: left out: \\x9b\n")),
        ('"$0" -c "$1"', "exit_status(lambda: print('\\x1b[2J \\u202e', '\\r\\x1b[K 3/4', file=sys.stderr) or 0)",
         (0, "\\x1b[2J \\u202e \n\x1b[K 3/4\n")),  # as text, a carriage return is a new line
    ],
    ids=["closed", "full", "goes on", "left", "letters", "escaped", "of libraries"],
)  # fmt: skip
def test_what_a_command_prints(command: str, code: str, ending: tuple[int, str]) -> None:
    words = ["bash", "-c", command, sys.executable, START + code]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == ending
