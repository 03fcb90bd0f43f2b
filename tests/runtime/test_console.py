"""Commands: a terminal that closes, strangers' files in the folder, what is printed, exit statuses."""

import errno
import os
import pty
import signal
import socket
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of, each_row, overrides, read_json, write_file
from tests.sweep_tools import answer, environment, slow, steps, wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import exit_status, user_path
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import printable
from topr_exp.types import ConfigError, TOPRError

pytestmark = pytest.mark.timeout(900)


@pytest.mark.extended
@pytest.mark.parametrize(
    "action, status, ending",
    [(signal.SIG_DFL, "stopped", 128 + signal.SIGHUP), (signal.SIG_IGN, "done", 0)],  # the second as by nohup
)
def test_a_closed_terminal_stops_a_run_with_a_checkpoint_or_does_nothing(action, status, ending, tmp_path):
    brake = tmp_path / "brake"
    words = overrides(tmp_path, "optim.epochs=6", *slow(brake))
    folder = config_of(*words).folder
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGHUP, action)
        os.execve(sys.executable, [sys.executable, "-m", "topr_exp", *words], environment())
    wait_for(lambda: steps(folder) >= 2)

    os.close(terminal)  # the kernel has sent the signal when this returns
    brake.unlink()
    _, code = os.waitpid(process, 0)

    assert os.waitstatus_to_exitcode(code) == ending
    assert read_json(folder / "state.json")["status"] == status
    assert not (folder / "error.txt").exists()
    if status == "stopped":
        assert list(folder.glob("checkpoints/1/step-*"))


# ---- files of strangers in the current folder

NAMES = ["tokenizers.py", "torch.py", "pyarrow.py", "numpy.py", "hydra_plugins/stranger.py", "multiprocessing.py"]
OWN = """
from topr_exp.algorithms.topr import Tapered


class Loss(Tapered):
    pass


def grade(completion, gold):
    return "correct"
"""
RUN = "topr_exp experiment=smoke output_dir=out algo._target_=own.Loss data.grader._target_=own.grade"
EVALUATION = "topr_exp.evaluate model=tiny data.grader._target_=own.grade data.test_problems=4 data.eval_n=2"


@pytest.fixture
def strangers_folder(tmp_path, sweep_of_two):
    """A folder with files of libraries' names, a loss and a grader of its user's, and a sweep."""
    for name in NAMES:
        write_file(tmp_path / name, "from pathlib import Path\nPath('stranger').touch()\nraise SystemExit(9)\n")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.extended
@pytest.mark.parametrize(
    "words, status", [(RUN, 0), (f"{RUN} -m", 0), (EVALUATION, 0), ("topr_exp.report sweep --out report", 1)]
)
def test_files_of_the_current_folder_take_no_librarys_place(words, status, strangers_folder):
    """Neither in the command nor in the processes that it starts. What it prints is not read: a report says so by 1."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words.split()],
        cwd=strangers_folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stderr.close()

    assert process.wait(600) == status
    assert not (strangers_folder / "stranger").exists()


# ---- text that would control the terminal

HOSTILE = "\x1b]0;title\x07\u202etxt.exe\u2066"
COMMANDS = """
topr_exp.sweeps status SWEEP
topr_exp.sweeps logs SWEEP RUN
topr_exp.sweeps logs SWEEP HOSTILE
topr_exp.report HOSTILE
topr_exp.store --root HOSTILE list
topr_exp.evaluate model=HOSTILE
topr_exp model=HOSTILE
topr_exp.grade HOSTILE --format gsm8k
"""


@each_row("words", COMMANDS)
def test_hostile_text_is_shown_escaped_wherever_it_comes_from(words, sweep_of_two):
    folder = next(sweep_of_two.glob("tis*"))
    folder = folder.rename(folder.with_name(f"tis{HOSTILE}"))
    for name in ("error.txt", "log.txt"):
        (folder / name).write_bytes(f"bad {HOSTILE}\n".encode() + b"line\xff\n")
    texts = {"SWEEP": str(sweep_of_two), "RUN": folder.name, "HOSTILE": HOSTILE, "model=HOSTILE": f"model={HOSTILE}"}

    outcome = answer(*(texts.get(word, word) for word in words.split()))

    printed = outcome.stdout + outcome.stderr
    assert "\\x1b" in printed
    assert "\\u202e" in printed
    assert not set("\x1b\x07\u202e\u2066") & set(printed)


DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}  # of Unicode's bidirectional algorithm
VISIBLE = {0x0600, 0x0601, 0x0602, 0x0603, 0x0604, 0x0605, 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD}
VISIBLE |= {0x200C, 0x200D, *range(0x13430, 0x1BCA4)}  # joiners, which words and emoji use; hieroglyphs, shorthand


def moves_or_hides(character):
    """True for a character that moves a terminal's cursor, turns its text or is not seen, by Unicode's tables."""
    category = unicodedata.category(character)
    is_invisible = category == "Cf" and ord(character) not in VISIBLE
    return is_invisible or category in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in DIRECTIONS


def test_no_character_passes_that_moves_a_terminals_cursor_turns_its_text_or_is_not_seen():
    for character in map(chr, range(sys.maxunicode + 1)):
        is_escaped = printable(character) != character
        assert is_escaped == (moves_or_hides(character) and character not in "\n\t"), hex(ord(character))


# ---- cancel


def test_cancel_leaves_a_process_alone_that_a_claim_only_names(sweep_of_two):
    claim = next(sweep_of_two.glob("tis*")) / "run.claim"
    with subprocess.Popen(["sleep", "3600"]) as bystander:
        with locks.acquire(claim):
            claim.write_text(f"{socket.gethostname()}:{bystander.pid}")
            outcome = answer("topr_exp.sweeps", "cancel", sweep_of_two)
        is_alive = bystander.poll() is None
        bystander.kill()

    assert is_alive
    assert (outcome.returncode, outcome.stdout) == (1, "cancelled: run 2\n")
    reason = "is left alone; it is not here, not yours, or at other work"
    assert outcome.stderr == f"error: {claim}: process {socket.gethostname()}:{bystander.pid} {reason}\n"


LAUNCHER = """
import pathlib, sys, time
from topr_exp.runtime import locks
lock = locks.acquire(pathlib.Path(sys.argv[1]) / "sweep.claim")
print(type(lock).__name__, flush=True)
time.sleep(600)
"""


def test_cancel_ends_a_launcher_before_its_first_run_begins(sweep_of_two):
    for claim in sweep_of_two.glob("*/run.claim"):
        claim.unlink()
    words = [sys.executable, "-c", LAUNCHER, str(sweep_of_two)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "Lock\n"
        outcome = answer("topr_exp.sweeps", "cancel", sweep_of_two)

    assert launcher.returncode == -signal.SIGTERM
    assert (outcome.returncode, outcome.stdout) == (0, "cancelled: the launch, no run was active\n")


# ---- exit statuses, with one line for an error


def raising(error):
    def work():
        raise error

    return work


@pytest.mark.parametrize(
    "error, status, line",
    [
        (ConfigError("seed=x: expected a whole number"), 2, "seed=x: expected a whole number"),
        (TOPRError("disk full"), 1, "disk full"),
        (Interrupted(signal.SIGTERM), 143, "stopped by SIGTERM; the same command goes on from there"),
        (OSError(errno.EACCES, "", "a/b"), 1, "cannot open a/b: permission denied"),
        (OSError(errno.ESTALE, ""), 1, "cannot read or write a file: stale file handle"),
    ],
)
def test_an_error_is_one_line_and_a_status(error, status, line, capsys):
    assert exit_status(raising(error)) == status
    assert capsys.readouterr() == ("", f"error: {line}\n")


def test_ctrl_c_says_where_the_command_goes_on(capsys):
    assert exit_status(raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""
    assert exit_status(raising(KeyboardInterrupt()), resumes=True) == 130
    assert "interrupted; the same command goes on where this one stopped" in capsys.readouterr().err


def test_a_home_folder_is_found_in_every_option_that_is_a_path(variables):
    """A shell leaves --out=~/x as it is, and a folder called ~ would be made."""
    variables["HOME"] = "/home/of/mine"

    assert user_path("~/report") == Path("/home/of/mine/report")
    for path in (ROOT / "topr_exp").rglob("*.py"):
        assert "type=Path" not in path.read_text(), path


def test_what_the_work_returns_is_the_status_and_a_bug_keeps_its_traceback():
    assert exit_status(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        exit_status(raising(ZeroDivisionError()))


BEGINNING = """
import os, sys
from topr_exp.runtime.exit_status import exit_status
print_unblocked = lambda: os.set_blocking(1, False) or print("x" * 9**6)
"""


# A shell's command | the work | its status | what is on standard error
STREAMS = r"""
"RUN >&-" | "print(1) or 3" | 3 | ""
"RUN >/dev/full" | "print(1) or 0" | 1 | "error: cannot write: no space left on device\n"
"RUN >/dev/full" | "print(1) or 3, resumes=True" | 3 | ""
"RUN |head -1; exit ${PIPESTATUS[0]}" | "[*map(print, range(9**6))] and 0" | 1 | ""
"RUN |(read; sleep .5; cat); exit ${PIPESTATUS[0]}" | "print(flush=1) or print_unblocked(), resumes=True" | 0 | ""
"PYTHONIOENCODING=latin-1 RUN" | "print('μ ◀') or 0" | 0 | ""
"RUN" | r"print('\x1b[2J', '\r\x1b[K 3/4', file=sys.stderr) or 0" | 0 | "\\x1b[2J \n\x1b[K 3/4\n"
"""


@each_row("command work status err", STREAMS, literals=True)
def test_a_stream_that_is_closed_full_or_hostile_ends_no_command_wrongly(command, work, status, err):
    python = f"{BEGINNING}raise SystemExit(exit_status(lambda: {work}))"
    words = ["bash", "-c", command.replace("RUN", '"$0" -c "$1"'), sys.executable, python]

    outcome = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    assert (outcome.returncode, outcome.stderr) == (status, err)
