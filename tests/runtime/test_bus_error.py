"""A mapped file that is cut short while it is read: one line that names it, status 1, and the run's error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import overrides
from tests.store.conftest import open_table, shard
from tests.sweep_tools import environment
from topr_exp.runtime import bus_error
from topr_exp.runtime.exit_status import exit_status
from topr_exp.store import Ragged
from topr_exp.sweeps.processes import Child
from topr_exp.types import TOPRError

LINE = "cannot read {}: it was cut short or its disk failed while it was mapped (SIGBUS)"


def read_texts(folder: Path) -> object:
    texts = open_table(folder).read(["text"])
    os.truncate(open_table(folder).shard_file(3), 0)
    return texts.to_pylist()


def read_tokens(folder: Path) -> object:
    tokens = Ragged(open_table(folder).read()["tokens"])
    os.truncate(open_table(folder).shard_file(3), 0)
    return sum(row.sum() for row in tokens)


def read_weights(folder: Path) -> object:
    weights = load_file(folder / "model.safetensors")
    os.truncate(folder / "model.safetensors", 0)
    return weights["a"].sum().item()


READS: dict[str, tuple[Callable[[Path], object], str]] = {
    "texts": (read_texts, "shard-00003.arrow"),
    "tokens": (read_tokens, "shard-00003.arrow"),
    "weights": (read_weights, "model.safetensors"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a table and weights, whose name has a space."""
    path = tmp_path / "of a user"
    path.mkdir()
    open_table(path).fill(shard)
    save_file({"a": torch.ones(1 << 18)}, path / "model.safetensors")
    return path


def command(name: str, folder: str) -> int:
    """What a command does that reads a file which is cut short meanwhile."""
    read, _ = READS[name]
    return exit_status(lambda: print(read(Path(folder))) or 0)


@pytest.mark.parametrize("name", READS)
def test_a_command_names_the_file_that_was_cut_short_while_it_was_mapped(name: str, folder: Path) -> None:
    code = "import sys; from tests.runtime.test_bus_error import command; sys.exit(command(*sys.argv[1:]))"
    words = [sys.executable, "-c", code, name, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment({"PYTHONPATH": os.getcwd()}))
    path = next(folder.rglob(READS[name][1]))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {LINE.format(path)}\n")


@pytest.mark.parametrize("has_log", [True, False])
def test_who_started_a_process_gets_the_line_of_its_bus_error(has_log: bool, folder: Path, tmp_path: Path) -> None:
    """A run of a sweep, which has a log, prints it there; a process of a run leaves that to the one it ends."""
    log = tmp_path / "log.txt" if has_log else None
    child = Child("the run", log, read_texts, folder)
    child.process.join(60)
    ending = child.ending()
    line = LINE.format(open_table(folder).shard_file(3))
    assert (type(ending), str(ending), child.process.exitcode) == (TOPRError, line, 1)
    if log is not None:
        assert log.read_text().splitlines()[1:] == [f"error: {line}"]


CUTTING = """
import os
from dataclasses import dataclass
from pathlib import Path
from topr_exp.config.model import SamplerConfig
from topr_exp.sampling.hf import HFSampler


@dataclass(frozen=True, kw_only=True)
class Cutting(SamplerConfig):
    def build_sampler(self):
        return CuttingSampler(self)


class CuttingSampler(HFSampler):
    def release(self):
        for path in Path(os.environ["CUT"]).glob("rollouts/*/*.arrow"):
            os.truncate(path, 0)
"""


@pytest.mark.extended
def test_a_run_whose_completions_are_cut_short_fails_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "cutting.py").write_text(CUTTING)
    words = overrides(Path("out"), "sampler._target_=cutting.Cutting", "sampler.name=cutting")
    cut = {"CUT": "out/store", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "topr_exp", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment(cut))
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert ".arrow: it was cut short or its disk failed while it was mapped (SIGBUS)" in error
    assert "Traceback" not in done.stderr
    (folder,) = (tmp_path / "out" / "runs").glob("*_*")
    assert (folder / "error.txt").read_text().splitlines()[0] == error.removeprefix("error: ")
    assert json.loads((folder / "state.json").read_text())["status"] == "failed"


def test_afterwards_sigbus_is_handled_as_before_and_memory_without_a_file_has_a_line() -> None:
    before = bus_error.SignalAction()
    library = bus_error.ctypes.CDLL(None)
    library.sigaction(bus_error.signal.SIGBUS, None, bus_error.ctypes.byref(before))
    with bus_error.one_line_for_bus_errors(), bus_error.one_line_for_bus_errors():
        during = bus_error.SignalAction()
        library.sigaction(bus_error.signal.SIGBUS, None, bus_error.ctypes.byref(during))
        assert during.handler != before.handler
    after = bus_error.SignalAction()
    library.sigaction(bus_error.signal.SIGBUS, None, bus_error.ctypes.byref(after))
    assert (after.handler, after.flags) == (before.handler, before.flags)
    assert str(bus_error.describe(0)).startswith("memory can't be read (SIGBUS)")
