"""Commands whose terminal closes or whose reader leaves, in a folder that strangers fill, and what they print."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, config_of, overrides
from tests.run_folders import make_sweep_of_two
from tests.sweep_tools import SLOW, command, environment, start, steps, wait_for
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import printable
from topr_exp.sweeps import __main__ as sweeps
from topr_exp.types import TOPRError

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


def test_a_run_goes_on_without_a_reader(tmp_path: Path) -> None:
    process = start("topr_exp", *overrides(tmp_path))
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(300) == 0
    assert list(tmp_path.glob("runs/*/DONE"))


NAMES = ["tokenizers.py", "torch.py", "pyarrow.py", "numpy.py", "hydra_plugins/stranger.py", "multiprocessing.py"]
OWN = """
from topr_exp.algorithms.policy_gradient import Tapered


class Loss(Tapered):
    pass


def grade(completion, gold):
    return "correct"
"""


@pytest.mark.parametrize(
    "words",
    [
        ["topr_exp", "-m", "experiment=smoke", "output_dir=out", "algo._target_=own.Loss", "data.grader=own:grade"],
        ["topr_exp.evaluate", "model=tiny", "data.grader=own:grade", "data.test_problems=4", "data.eval_n=2"],
        ["topr_exp.report", "sweep", "--out", "report"],
    ],
    ids=lambda words: words[0],
)
def test_files_of_the_current_folder_take_no_library_s_place(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "hydra_plugins").mkdir()
    for name in NAMES:
        (tmp_path / name).write_text("from pathlib import Path\nPath('stranger').touch()\nraise SystemExit(9)\n")
    make_sweep_of_two(tmp_path / "sweep")
    (tmp_path / "own.py").write_text(OWN)
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


def test_cancel_signals_nothing_where_nothing_tells_what_a_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PROC", tmp_path / "none")
    with locks.acquire(tmp_path / "run.claim"), pytest.raises(TOPRError, match="is left alone"):  # type: ignore
        sweeps.terminate(tmp_path / "run.claim")
