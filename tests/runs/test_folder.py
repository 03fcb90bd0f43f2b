"""A run's folder: what attempts leave to one another, who may write, and how an attempt's end is recorded."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.conftest import config_of, make_graded, read_json, refused
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runs.attempt import ERROR
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs
from topr_exp.runs.training_data import save_rounds, save_training_set
from topr_exp.runtime import distributed
from topr_exp.training import checkpoint
from topr_exp.types import TOPRError

Write = Callable[[RunFolder, Any], None]
UPDATE = {"iteration": 1, "step": 1, "samples": 3, "positive_share": 0.5, "round": 0}
FOREIGN_ATTEMPT = {"number": 2, "host": "far", "pid": 7, "began": "now"}
TAKEN_OVER = r"was taken over by process far:7 \(attempt 2, begun now\), since this one was silent; nothing more"


def open_folder(output_dir: Path, *overrides: str) -> RunFolder:
    return RunFolder(config_of(f"output_dir={output_dir}", *overrides))


def state_of(folder: RunFolder) -> Any:
    return read_json(folder.path / "state.json")


def file_versions(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file by name, with numbers that change when it is written or replaced."""
    versions = {}
    for path in folder.rglob("*"):
        if path.is_file():
            versions[str(path.relative_to(folder))] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return versions


# ---- who may write


def write_training_set(folder: RunFolder, model: Any) -> None:
    completions = make_graded([0, 1], [True, False], name="rollouts/r", row=[0, 2], path=["", ""])
    training_set: Any = SimpleNamespace(examples=torch.arange(2).numpy(), summary=lambda: {"n_train": 2})
    save_training_set(folder.iteration_folder(1), training_set, [completions], store=Path("s"), mismatch=None)


def write_rounds(folder: RunFolder, model: Any) -> None:
    save_rounds(folder.iteration_folder(1), [UPDATE], n_train=3, tokens_sampled=50, baseline=0.0, mismatch=None)


def write_checkpoint(folder: RunFolder, model: Any) -> None:
    checkpoint.save(folder.path / "checkpoints", 1, model, torch.optim.AdamW(model.parameters()), {}, {})


def write_model(folder: RunFolder, model: Any) -> None:
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    save_policy(Policy(model, tokenizer, "", torch.float32), folder.path / "model")


RUN_WRITES: dict[str, Write] = {
    "state": lambda folder, _: folder.save_state(),
    "update": lambda folder, _: folder.log(UPDATE),
    "evaluation": lambda folder, _: folder.evaluations.add({"iteration": 0}),
    "progress": lambda folder, _: folder.before_checkpoint(1, 2),
    "inputs": lambda folder, _: compare_inputs(folder, {"files": {"data.source": "ab"}}, adds_kinds=True),
    "training set": write_training_set,
    "rounds": write_rounds,
    "summary": lambda folder, _: folder.finish({"final": {}}),
}
GUARDED_WRITES = {**RUN_WRITES, "checkpoint": write_checkpoint, "model": write_model}


def take_over(folder):
    """Note another attempt in the place of this one; returns the files as they are then."""
    (folder.path / "state.json").write_text(json.dumps({"attempt": FOREIGN_ATTEMPT}))
    return file_versions(folder.path)


@pytest.mark.parametrize("name", GUARDED_WRITES)
def test_an_attempt_that_was_taken_over_writes_nothing_more(name, tmp_path, small_model):
    with refused(TAKEN_OVER), open_folder(tmp_path) as folder:
        folder.metrics.rewind(1, 0)
        versions = take_over(folder)

        GUARDED_WRITES[name](folder, small_model)

    del versions["run.claim"]
    assert file_versions(folder.path) == versions


def test_an_attempt_that_was_taken_over_ends_with_that_in_place_of_its_own_error(tmp_path):
    with refused(TAKEN_OVER), open_folder(tmp_path) as folder:
        versions = take_over(folder)
        raise ValueError

    del versions["run.claim"]
    assert file_versions(folder.path) == versions


@pytest.fixture
def other_rank(monkeypatch):
    """Be another process of the run from now on."""
    return lambda: monkeypatch.setattr(distributed, "_rank", 1)


def test_only_the_main_process_writes(tmp_path, other_rank):
    with open_folder(tmp_path) as folder:
        folder.metrics.rewind(1, 0)
        for write in RUN_WRITES.values():
            write(folder, None)
        (folder.path / "DONE").unlink()  # as if the run were not finished
        versions = file_versions(folder.path)
        other_rank()

        with open_folder(tmp_path) as other_folder, other_folder.stage("sampling"):
            for write in RUN_WRITES.values():
                write(other_folder, None)
            other_folder.metrics.rewind(1, 0)
            other_folder.evaluations.drop_damaged()
            other_folder.remove_leftovers(1)

        assert file_versions(folder.path) == versions
        distributed._rank = 0


def test_each_record_is_in_the_file_at_once_and_on_the_disk_before_a_checkpoint(tmp_path, monkeypatch):
    """A kill loses no record, and no checkpoint counts on one that a crash of the machine could lose.

    NaN and Infinity are no JSON: other programs than Python refuse them.
    """
    synced_files = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced_files.append(os.fstat(descriptor).st_ino))
    with open_folder(tmp_path) as folder, folder.stage("training"):
        folder.metrics.rewind(1, 0)
        path = folder.path / "metrics.jsonl"
        synced_files.clear()

        folder.log({"iteration": 1, "step": 1, "loss": math.nan, "kl_mu": math.inf})

        assert path.read_text() == '{"iteration": 1, "step": 1, "loss": null, "kl_mu": null}\n'
        assert path.stat().st_ino not in synced_files
        folder.before_checkpoint(1, 10)
        assert path.stat().st_ino in synced_files


# ---- attempts


def test_seconds_and_counts_continue_those_of_earlier_attempts(tmp_path):
    seconds = 0.0
    for attempt in (1, 2, 3):
        with open_folder(tmp_path) as folder:
            assert folder.timer.seconds["training"] == seconds
            with folder.stage("training"):
                folder.add_across_ranks("tokens_sampled", 7)
            assert folder.counts == {"tokens_sampled": 7 * attempt}
            assert folder.timer.seconds["training"] > seconds
            seconds = folder.timer.seconds["training"]
            assert state_of(folder)["status"] == "running"
            assert state_of(folder)["attempt"]["number"] == attempt
    with open_folder(tmp_path) as folder:
        folder.finish({})
    assert state_of(folder)["status"] == "done"


def test_a_run_does_not_go_on_without_a_file_that_it_began_with(tmp_path):
    with open_folder(tmp_path) as folder:
        compare_inputs(folder, {"files": {"data.path (a)": "1", "data.path (b)": "2"}}, adds_kinds=True)
        with pytest.raises(TOPRError, match=r"^data\.path \(b\) has changed since"):
            compare_inputs(folder, {"files": {"data.path (a)": "1"}})


def test_checkpoints_of_a_later_iteration_stay(tmp_path):
    with open_folder(tmp_path, "iterations=3") as folder:
        for iteration in (1, 2):
            (folder.path / "checkpoints" / str(iteration) / "step-00000001").mkdir(parents=True)
        folder.remove_leftovers(1)
        assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]
        folder.remove_leftovers(3)
        assert not any((folder.path / "checkpoints").iterdir())


# ---- the end of an attempt


@pytest.mark.parametrize("error", [TOPRError("mine"), distributed.PeerGoneError("another's")])
@pytest.mark.parametrize("is_main", [True, False])
def test_any_process_records_its_error_unless_another_one_knows(error, is_main, tmp_path, other_rank):
    if not is_main:
        open_folder(tmp_path).path.mkdir(parents=True)
        other_rank()

    with pytest.raises(TOPRError), open_folder(tmp_path) as folder:
        raise error

    assert (folder.path / ERROR).exists() == (is_main or not isinstance(error, distributed.PeerGoneError))
    if is_main:
        assert state_of(folder)["status"] == "failed"


def test_an_error_after_the_mark_does_not_make_a_finished_run_a_failed_one(tmp_path):
    with refused("cannot write"), open_folder(tmp_path) as folder:
        folder.finish({"final": {}})
        raise TOPRError("cannot write DONE: Stale file handle")
    assert not (folder.path / ERROR).exists()
    assert state_of(folder)["status"] == "done"
