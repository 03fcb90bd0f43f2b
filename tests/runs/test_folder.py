"""A run's folder: what attempts leave to one another, who may write, and how an attempt's end is recorded."""

import json
import math
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import config_of, each_row, make_graded, read_json, refused
from tests.run_folders import make_run
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runs import console
from topr_exp.runs.attempt import ERROR
from topr_exp.runs.console import describes_run
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs
from topr_exp.runs.training_data import save_rounds, save_training_set
from topr_exp.runtime import distributed
from topr_exp.training import checkpoint
from topr_exp.types import TOPRError

UPDATE = {"iteration": 1, "step": 1, "samples": 3, "positive_share": 0.5, "round": 0}
FOREIGN_ATTEMPT = {"number": 2, "host": "far", "pid": 7, "began": "now"}
TAKEN_OVER = r"was taken over by process far:7 \(attempt 2, begun now\), since this one was silent; nothing more"


def open_folder(output_dir, *words):
    return RunFolder(config_of(f"output_dir={output_dir}", *words))


@contextmanager
def training_folder(output_dir):
    """The folder of a run before its first update."""
    with open_folder(output_dir) as folder:
        folder.metrics.rewind(1, 0)
        yield folder


def state_of(folder):
    return read_json(folder.path / "state.json")


def file_versions(folder):
    """Every file by name, with numbers that change when it is written or replaced."""
    versions = {}
    for path in folder.rglob("*"):
        if path.is_file():
            status = path.stat()
            versions[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns)
    return versions


# ---- who may write


def write_training_set(folder, model):
    completions = make_graded([0, 1], [True, False], name="rollouts/r", row=[0, 2], path=["", ""])
    training_set = SimpleNamespace(examples=np.arange(2), summary=lambda: {"n_train": 2})
    iteration_folder = folder.iteration_folder(1)
    save_training_set(iteration_folder, training_set, [completions], store=Path("s"), mismatch=None)


def write_rounds(folder, model):
    save_rounds(folder.iteration_folder(1), [UPDATE], n_train=3, tokens_sampled=50, baseline=0.0, mismatch=None)


def write_checkpoint(folder, model):
    checkpoint.save(folder.path / "checkpoints", model, torch.optim.AdamW(model.parameters()), {"step": 1}, {})


def write_model(folder, model):
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    save_policy(Policy(model, tokenizer, "", torch.float32), folder.path / "model")


def end_with_an_error(folder, model):
    raise ValueError


RUN_WRITES = {
    "state": lambda folder, _: folder.save_state(),
    "update": lambda folder, _: folder.log(UPDATE),
    "evaluation": lambda folder, _: folder.evaluations.add({"iteration": 0}),
    "progress": lambda folder, _: folder.before_checkpoint(1, 2),
    "inputs": lambda folder, _: compare_inputs(folder, {"files": {"data.source": "ab"}}, adds_kinds=True),
    "training set": write_training_set,
    "rounds": write_rounds,
    "summary": lambda folder, _: folder.finish({"final": {}}),
}
GUARDED_WRITES = {**RUN_WRITES, "checkpoint": write_checkpoint, "model": write_model, "error": end_with_an_error}


@pytest.mark.parametrize("name", GUARDED_WRITES)
def test_an_attempt_that_was_taken_over_writes_nothing_more(name, tmp_path, small_model):
    with refused(TAKEN_OVER), training_folder(tmp_path) as folder:
        (folder.path / "state.json").write_text(json.dumps({"attempt": FOREIGN_ATTEMPT}))
        versions = file_versions(folder.path)

        GUARDED_WRITES[name](folder, small_model)

    del versions["run.claim"]
    assert file_versions(folder.path) == versions


def test_only_the_main_process_writes(tmp_path, be_rank):
    with training_folder(tmp_path) as folder:
        for write in RUN_WRITES.values():
            write(folder, None)
        (folder.path / "DONE").unlink()  # as if the run were not finished
        versions = file_versions(folder.path)
        be_rank(1)

        with open_folder(tmp_path) as other_folder, other_folder.stage("sampling"):
            for write in RUN_WRITES.values():
                write(other_folder, None)
            other_folder.metrics.rewind(1, 0)
            other_folder.evaluations.drop_damaged()
            other_folder.remove_leftovers(1)

        assert file_versions(folder.path) == versions
        be_rank(0)


def test_each_record_is_in_the_file_at_once(tmp_path):
    """A kill loses none. NaN and Infinity are no JSON: other programs than Python refuse them."""
    with training_folder(tmp_path) as folder:
        folder.log({"iteration": 1, "step": 1, "loss": math.nan, "kl_mu": math.inf})

        line = '{"iteration": 1, "step": 1, "loss": null, "kl_mu": null}\n'
        assert (folder.path / "metrics.jsonl").read_text() == line


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
            state = state_of(folder)
            assert state["status"] == "running"
            assert state["attempt"]["number"] == attempt
    with open_folder(tmp_path) as folder:
        folder.finish({})
    assert state_of(folder)["status"] == "done"


def test_code_that_differs_from_that_of_the_first_attempt_is_told(tmp_path, capsys, monkeypatch):
    with open_folder(tmp_path) as folder:
        environment = folder.read("environment.json")
    environment["versions"]["torch"] = "0.1"
    environment["git_commit"] = "a"
    (folder.path / "environment.json").write_text(json.dumps(environment))

    monkeypatch.setattr("topr_exp.runs.provenance.git", lambda word, *_: "" if word == "diff" else "b")

    with open_folder(tmp_path):
        pass

    assert f"torch 0.1, now {torch.__version__}\n" in capsys.readouterr().err


def values_changed_alone(stored, value):
    """Copies of nested objects, in each of which another place has this value, and in the last ones none."""
    for key, item in stored.items():
        yield {**stored, key: value}
        if isinstance(item, dict):
            for changed_item in values_changed_alone(item, value):
                yield {**stored, key: changed_item}
    for key in stored:
        yield {name: item for name, item in stored.items() if name != key}


@pytest.mark.parametrize("value", [None, "text", [], {}], ids=str)
def test_no_summary_of_a_finished_run_ends_in_a_traceback(value, tmp_path):
    """One that has not all that is shown, each of its type, is made again."""
    _, folder = make_run(tmp_path)
    summary = read_json(folder / "summary.json")
    assert describes_run(summary)

    verdicts_on_copies = [describes_run(changed) for changed in values_changed_alone(summary, value)]

    assert 0 < sum(verdicts_on_copies) < len(verdicts_on_copies)


def test_a_mistake_of_ours_in_the_results_is_not_told_as_a_damaged_summary(tmp_path, monkeypatch):
    _, folder = make_run(tmp_path)

    def break_down(summary):
        raise AssertionError("ours")

    monkeypatch.setattr(console, "results_table", break_down)

    with pytest.raises(AssertionError, match="ours"):
        describes_run(read_json(folder / "summary.json"))


def test_a_run_does_not_go_on_without_a_file_that_it_began_with(tmp_path):
    files = {"data.path (a)": "1", "data.path (b)": "2"}
    with open_folder(tmp_path) as folder:
        compare_inputs(folder, {"files": files}, adds_kinds=True)
        del files["data.path (b)"]
        with refused(r"^data\.path \(b\) has changed since"):
            compare_inputs(folder, {"files": files})


def test_checkpoints_of_a_later_iteration_stay(tmp_path):
    with open_folder(tmp_path, "iterations=3") as folder:
        for iteration in (1, 2):
            (folder.path / "checkpoints" / str(iteration) / "step-00000001").mkdir(parents=True)
        folder.remove_leftovers(1)
        assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]
        folder.remove_leftovers(3)
        assert not any((folder.path / "checkpoints").iterdir())


def test_a_run_that_another_process_finishes_while_its_lock_is_waited_for_stays_finished(tmp_path, monkeypatch):
    config, path = make_run(tmp_path)
    mark = (path / "DONE").rename(path / "later")

    def wait(folder):
        mark.rename(folder / "DONE")
        return nullcontext()

    monkeypatch.setattr("topr_exp.runs.folder.lock_run_folder", wait)

    with RunFolder(config) as folder:
        assert folder.done

    assert not (path / "state.json").exists()


# ---- the end of an attempt


ERRORS = {"own": TOPRError("mine"), "of a peer": distributed.PeerGoneError("another's")}
RECORDED = """
0 | "own" | True
0 | "of a peer" | True
1 | "own" | True
1 | "of a peer" | False
"""


@each_row("rank error is_recorded", RECORDED, literals=True)
def test_any_process_records_its_error_unless_another_one_knows(rank, error, is_recorded, tmp_path, be_rank):
    open_folder(tmp_path).path.mkdir(parents=True)
    be_rank(rank)

    with pytest.raises(TOPRError), open_folder(tmp_path) as folder:
        raise ERRORS[error]

    assert (folder.path / ERROR).exists() == is_recorded
    assert rank == 1 or state_of(folder)["status"] == "failed"


def test_an_error_after_the_mark_does_not_make_a_finished_run_a_failed_one(tmp_path):
    with refused("cannot write"), open_folder(tmp_path) as folder:
        folder.finish({"final": {}})
        raise TOPRError("cannot write DONE: Stale file handle")
    assert not (folder.path / ERROR).exists()
    assert state_of(folder)["status"] == "done"
