"""A mapped file that is cut short while it is read: one line that names it, status 1, and the run's error."""

import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.store.conftest import open_table, shard
from tests.sweep_tools import command
from topr_exp.runtime import bus_error
from topr_exp.runtime.exit_status import exit_status
from topr_exp.store import Ragged
from topr_exp.sweeps.processes import Child
from topr_exp.types import TOPRError

LINE = "cannot read {}: it was cut short or its disk failed while it was mapped (SIGBUS)"


def read_tokens(folder):
    tokens = Ragged(open_table(folder).read()["tokens"])
    os.truncate(open_table(folder).shard_path(3), 0)
    return sum(row.sum() for row in tokens)


def read_weights(folder):
    weights = load_file(folder / "model.safetensors")
    os.truncate(folder / "model.safetensors", 0)
    return weights["a"].sum().item()


READS = {"tokens": (read_tokens, "shard-00003.arrow"), "weights": (read_weights, "model.safetensors")}


def main():
    """A command that reads a file which is cut short meanwhile."""
    _, name, folder = sys.argv
    read, _ = READS[name]
    return exit_status(lambda: print(read(Path(folder))) or 0)


@pytest.fixture
def folder(tmp_path):
    """A folder with a table and weights, whose name has a space."""
    path = tmp_path / "of a user"
    path.mkdir()
    open_table(path).fill(shard)
    save_file({"a": torch.ones(1 << 18)}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("name", READS)
def test_a_command_names_the_file_that_was_cut_short_while_it_was_mapped(name, folder):
    _, file = READS[name]

    outcome = command(__name__, name, folder)

    path = next(folder.rglob(file))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (1, "", f"error: {LINE.format(path)}\n")


@pytest.mark.parametrize("has_log", [True, False])
def test_who_started_a_process_gets_the_line_of_its_bus_error(has_log, folder, tmp_path):
    """A run of a sweep, which has a log, prints it there; a process of a run leaves that to the one it ends."""
    log = tmp_path / "log.txt" if has_log else None
    child = Child("the run", log, read_tokens, folder)
    child.process.join()

    ending = child.ending()

    line = LINE.format(open_table(folder).shard_path(3))
    assert (type(ending), str(ending), child.process.exitcode) == (TOPRError, line, 1)
    if has_log:
        assert log.read_text().splitlines()[1:] == [f"error: {line}"]


def handler_of_bus_errors():
    action = bus_error.SignalAction()
    ctypes.CDLL(None).sigaction(signal.SIGBUS, None, ctypes.byref(action))
    return action.handler, action.flags


def test_afterwards_sigbus_is_handled_as_before_and_memory_without_a_file_has_a_line():
    handler = handler_of_bus_errors()

    with bus_error.one_line_for_bus_errors(), bus_error.one_line_for_bus_errors():
        assert handler_of_bus_errors() != handler

    assert handler_of_bus_errors() == handler
    assert str(bus_error.describe(0)).startswith("memory can't be read (SIGBUS)")
