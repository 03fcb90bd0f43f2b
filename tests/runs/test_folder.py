"""The folder of a run: what it writes, and that only the main process of a run writes it."""

import contextlib
import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.conftest import config_of, lines_of, refused
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runs.attempt import ERROR
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.inputs import compare_inputs
from topr_exp.runs.records import Evaluations, Metrics, on_one_axis
from topr_exp.runtime import distributed
from topr_exp.runtime.json_files import read_lines
from topr_exp.runtime.progress import Progress
from topr_exp.training import checkpoint
from topr_exp.types import TOPRError

UPDATE = {"iteration": 1, "step": 1, "samples": 3, "positive_share": 0.5}
KNOWN = {"baseline": 0.0, "effective_positive": 0.5, "positive_share": 0.5, "n_train": 3}
SET = SimpleNamespace(examples=np.arange(3), summary=lambda: KNOWN)
ROLLOUTS = SimpleNamespace(name="r", made_by="s", columns=pa.table({"row": [0, 2]}))  # of a log
PART, VERDICTS = SimpleNamespace(rollouts=ROLLOUTS), SimpleNamespace(name="v", grader_timeouts=0)
# How each method is called: a new one that is not here fails the test that nothing but the main process writes.
WORK = Progress("training", 2, "updates", "training")
CALLS: dict[type, dict[str, tuple[Any, ...]]] = {
    RunFolder: {
        "read": ("config.json",), "finished": (), "lost": (), "refuse_if_taken_over": (),
        "stage": ("training",), "nested_stage": ("evaluation",), "add_across_ranks": ("tokens_sampled", 7),
        "model_of": (1,), "remove_leftovers": (1,), "save_state": (), "log": (UPDATE,), "before_checkpoint": (1, 2),
        "save_training_set": (1, SET, [PART], [VERDICTS], Path("s"), None), "save_rounds": (1, 3, 50, 0.0),
        "note_progress": (WORK,), "end_progress": (WORK,), "seconds_left": ((WORK,),), "remove_unwanted_models": (),
        "unfinished_iterations": (), "summarize": ({}, {}, {}), "finish": ({"final": {}},),
    },
    Metrics: {
        "rewind": (1, 0), "append": (UPDATE,), "make_durable": (), "of_iteration": (1,), "updates": (), "missing": (),
        "listen": (print,),
    },
    Evaluations: {
        "add": ({"iteration": 0, "pass@1": 0.5},), "drop_damaged": (), "count_missing": ([(1, 1)], 1, 1),
        "listen": (print,),
    },
}  # fmt: skip
WRITES: dict[str, Callable[[RunFolder, Any], None]] = {
    "a checkpoint": lambda folder, model: checkpoint.save(
        folder.path / "checkpoints", 1, model, torch.optim.AdamW(model.parameters()), {}, {}
    ),
    "a model": lambda folder, model: save_policy(
        Policy(model, SimpleNamespace(save_pretrained=lambda folder: None), "", torch.float32), folder.path / "model"
    ),
    **{
        name: lambda folder, _, name=name: getattr(folder, name)(*CALLS[RunFolder][name])
        for name in ("save_state", "before_checkpoint", "save_training_set", "finish")
    },
    "inputs": lambda folder, _: compare_inputs(folder, {"files": {"data.source": "ab"}}, note=True),
    "a line": lambda folder, _: folder.log({"iteration": 1, "step": 1}),
    "an evaluation": lambda folder, _: folder.evaluations.add({"iteration": 0}),
}


def call_all(folder: RunFolder) -> None:
    for part in (folder.metrics, folder.evaluations, folder):
        for name, arguments in CALLS[type(part)].items():
            result = getattr(part, name)(*arguments)
            if isinstance(result, contextlib.AbstractContextManager):
                with result:
                    pass


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file, by name, with what changes when it is written or replaced."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_each_line_is_json_in_the_file_at_once_and_on_the_disk_before_a_checkpoint(tmp_path, monkeypatch):
    """A kill loses none that was logged, and no checkpoint counts on one that a crash of the machine could lose.

    NaN and Infinity are no JSON, and other programs than Python refuse them.
    """
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    with RunFolder(config_of(f"output_dir={tmp_path}")) as folder, folder.stage("training"):
        folder.metrics.rewind(1, 0)
        path, line = folder.path / "metrics.jsonl", '{"iteration": 1, "step": %d, "loss": null, "kl_mu": null}\n'
        synced.clear()
        for step in (1, 2, 3):
            folder.log({"iteration": 1, "step": step, "loss": math.nan, "kl_mu": math.inf})
            assert path.read_text() == "".join(line % number for number in range(1, step + 1))
        assert path.stat().st_ino not in synced
        folder.before_checkpoint(3, 10)
        assert path.stat().st_ino in synced


def test_a_run_that_goes_on_drops_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    places = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    for place, left in (((1, 2), 2), ((2, 0), 3), ((2, 2), 5), ((2, 3), 6)):
        lines = [json.dumps({**UPDATE, "iteration": iteration, "step": step}) for iteration, step in places]
        (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"iteration": 2, "st')
        metrics = Metrics(tmp_path)
        metrics.rewind(*place)
        kept = lines_of(tmp_path / "metrics.jsonl")
        assert [(record["iteration"], record["step"]) for record in kept] == places[:left]


def test_updates_whose_lines_are_lost_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"iteration": i, "step": step}) for i in (1, 3) for step in range(1, 16)]
    for at, damage in ((1, "{}"), (3, "[]"), (16, '{"iteration": 3, "st'), (17, "null"), (29, "\0")):
        lines[at] = damage
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    metrics = Metrics(tmp_path)
    metrics.rewind(3, 15)
    assert "metrics.jsonl lacks updates 1/2, 1/4, 3/2, 3/3, 3/15\n" in capsys.readouterr().err
    assert metrics.missing() == "updates 1/2, 1/4, 3/2, 3/3", "as the summary notes; the last one may follow"


@pytest.mark.parametrize("write", [*WRITES, "nothing"])
def test_an_attempt_that_is_over_writes_nothing_more(tmp_path: Path, write: str, small_model: Any) -> None:
    """It was suspended, and taken for dead by another machine."""
    other = {"number": 2, "host": "far", "pid": 7, "began": "now"}
    said = r"was taken over by process far:7 \(attempt 2, begun now\), since this one was silent; nothing more"

    def begin_and_lose() -> None:
        with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
            folder.metrics.rewind(1, 0)
            (folder.path / "state.json").write_text(json.dumps({"attempt": other}))
            before.update(contents(folder.path.parent))
            if write in WRITES:
                with pytest.raises(TOPRError, match=said):
                    WRITES[write](folder, small_model)
            raise ValueError

    before: dict[str, tuple[int, int]] = {}
    with pytest.raises(TOPRError, match=said):  # whatever its error is
        begin_and_lose()
    after = contents(tmp_path / "runs")
    assert {name for name in before if before[name] != after.get(name)} == {name for name in before if "claim" in name}
    assert after.keys() <= before.keys()


def test_an_evaluation_takes_the_place_of_an_earlier_one_of_the_same_and_damaged_ones_are_dropped(tmp_path, capsys):
    """Of the same weights and problems: those of a part of the test stand beside those of all."""
    evaluations = Evaluations(tmp_path)
    keys: list[dict[str, Any]] = [
        {"iteration": 0, "subset": True}, {"iteration": 0}, {"iteration": 1, "step": 2, "subset": True},
        {"iteration": 1, "step": 4, "subset": True}, {"iteration": 1, "subset": True}, {"iteration": 1},
    ]  # fmt: skip
    for attempt in (1, 2):
        for key in keys:
            evaluations.add({**key, "pass@1": attempt})
    with evaluations.path.open("a") as file:
        file.write('{}\n[]\nnull\n{"iteration": 2, "pa')
    evaluations.drop_damaged()
    evaluations.add({**keys[-1], "pass@1": 2})
    assert "eval.jsonl: 4 damaged" in capsys.readouterr().err
    assert lines_of(evaluations.path) == [{**key, "pass@1": 2} for key in keys]


def test_seconds_and_counts_go_on_from_the_attempt_before(tmp_path: Path) -> None:
    kept = 0.0
    for attempt in (1, 2, 3):
        with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
            assert folder.seconds["training"] == kept
            with folder.stage("training"):
                folder.add_across_ranks("tokens_sampled", 7)
            assert folder.counts == {"tokens_sampled": 7 * attempt}
            assert folder.seconds["training"] > kept
            kept = folder.seconds["training"]
            state = json.loads((folder.path / "state.json").read_text())
            assert (state["status"], state["attempt"]["number"]) == ("running", attempt)
    with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        folder.finish({})
        assert json.loads((folder.path / "state.json").read_text())["status"] == "done"


def test_rounds_are_summed_up_iteration_by_iteration(tmp_path: Path) -> None:
    with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        folder.metrics.rewind(1, 0)
        for iteration, shares in ((1, (0.25, 0.75)), (2, (0.0, 0.0))):
            for step, share in enumerate(shares, 1):
                # Two updates on one round, of 6 and 2.
                told = {
                    "round": 0,
                    "positive_share": share,
                    "grader_timeouts": 3,
                    "sampled_truncated": 0.25 * iteration,
                }
                folder.log({"iteration": iteration, "step": step, "samples": (6, 8)[step - 1], **told})
            folder.save_rounds(iteration, 8, 50, -0.3)
    found = [json.loads((folder.path / f"iteration-{i}" / "training_set.json").read_text()) for i in (1, 2)]
    assert [(each["positive_share"], each["n_train"], each["baseline"]) for each in found] == [
        (0.375, 8, -0.3), (0.0, 8, -0.3)
    ]  # fmt: skip
    assert [(bool(each["note"]), each["grader_timeouts"]) for each in found] == [(False, 3), (True, 3)]
    assert [each["truncated_share"] for each in found] == [0.25, 0.5]


def test_a_run_does_not_go_on_without_a_file_that_it_was_begun_with(tmp_path: Path) -> None:
    with RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        compare_inputs(folder, {"files": {"data.path (a)": "1", "data.path (b)": "2"}}, note=True)
        with pytest.raises(TOPRError, match=r"^data\.path \(b\) has changed since"):
            compare_inputs(folder, {"files": {"data.path (a)": "1"}})


@pytest.mark.parametrize("kind", CALLS)
def test_the_list_of_calls_is_complete(kind: type) -> None:
    methods = {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
    assert methods == set(CALLS[kind])


def test_only_the_main_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes of a run do all that it does, and leave its folder as it is."""
    ours = RunFolder(config_of(f"output_dir={tmp_path}"))
    with ours:
        call_all(ours)
        (ours.path / "DONE").unlink()  # as if the run were not finished
        before = contents(ours.path)
        assert {"state.json", "metrics.jsonl", "eval.jsonl", "summary.json"} <= set(before)
        monkeypatch.setattr(distributed, "_rank", 1)
        with RunFolder(config_of(f"output_dir={tmp_path}", "seed=0")) as theirs:
            call_all(theirs)
            compare_inputs(theirs, {"files": {"data.source": "ab"}}, note=True)
        assert contents(ours.path) == before
        monkeypatch.undo()


@pytest.mark.parametrize("error", [TOPRError("mine"), distributed.PeerGone("another's")])
@pytest.mark.parametrize("main", [True, False])
def test_any_process_says_why_it_ended_unless_another_one_knows(tmp_path, monkeypatch, main, error):
    if not main:
        RunFolder(config_of(f"output_dir={tmp_path}")).path.mkdir(parents=True)
        monkeypatch.setattr(distributed, "_rank", 1)
    with pytest.raises(TOPRError), RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        raise error
    recorded = (folder.path / ERROR).exists()
    assert recorded == (main or not isinstance(error, distributed.PeerGone))
    if main:
        assert json.loads((folder.path / "state.json").read_text())["status"] == "failed"


def test_a_disk_that_fails_while_an_error_is_written_down_does_not_hide_it(tmp_path, monkeypatch):
    def fail(*_: object, **named: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with refused("mine"), RunFolder(config_of(f"output_dir={tmp_path}")):
        monkeypatch.setattr(Path, "exists", fail)
        raise TOPRError("mine")


def test_a_disk_that_fails_once_the_mark_is_there_makes_no_failed_run_of_a_finished_one(tmp_path: Path) -> None:
    with refused("cannot write"), RunFolder(config_of(f"output_dir={tmp_path}")) as folder:
        folder.finish({"final": {}})
        raise TOPRError("cannot write DONE: Stale file handle")
    assert not (folder.path / ERROR).exists()
    assert json.loads((folder.path / "state.json").read_text())["status"] == "done"


# ---- reading what a run writes while it writes, and counting steps through its iterations


def test_a_half_written_line_waits_and_a_damaged_one_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == ([], 0)
    path.write_text('{"step": 1}\nrubbish\n[1]\n{"step": 2')
    assert read_lines(path, growing=True) == ([{"step": 1}], 2)
    assert read_lines(path) == ([{"step": 1}], 3)


def test_evaluations_that_are_lost_are_counted(tmp_path: Path) -> None:
    evaluations, updates = Evaluations(tmp_path), [(1, step) for step in range(1, 6)]
    assert evaluations.count_missing(updates, None, 1) == 2
    for record in ({"iteration": 0}, {"iteration": 1, "step": 2, "subset": True}, {"iteration": 1}):
        evaluations.add(record)
    assert evaluations.count_missing(updates, None, 1) == 0
    assert evaluations.count_missing(updates, 2, 1) == 1


def test_steps_and_samples_are_counted_through_the_iterations() -> None:
    metrics = [
        {"iteration": i, "step": s, "samples": 10 * s} for i, s in [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1)]
    ]
    evaluations = [{"iteration": i} for i in (0, 1, 2, 3)] + [{"iteration": 2, "step": 1, "samples_seen": 10}]
    updates, tests = on_one_axis(metrics, evaluations)
    assert [(record["optimizer_step"], record["samples"]) for record in updates] == [
        (1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60)
    ]  # fmt: skip
    assert [(record["optimizer_step"], record["samples_seen"]) for record in tests] == [
        (0, 0), (2, 20), (3, 30), (5, 50), (6, 60)
    ]  # fmt: skip


def test_the_later_of_two_records_of_an_update_counts_and_others_are_left_out() -> None:
    first = {"iteration": 1, "step": 1, "samples": 5}
    metrics = [{**first, "loss": 1.0}, {**first, "loss": 2.0}, {"step": 2}, {"iteration": None, "step": 2}]
    updates, tests = on_one_axis(metrics, [{"iteration": 5}, {}])
    assert [record["loss"] for record in updates] == [2.0]
    assert [record["optimizer_step"] for record in tests] == [1]  # after all iterations that logged anything


def test_the_clock_of_asynchronous_rounds_goes_on_through_the_iterations() -> None:
    places = [(1, 1, 1.0), (1, 2, 2.5), (2, 1, 1.0), (2, 2, 2.0)]
    metrics = [{"iteration": i, "step": s, "samples": s, "virtual_time": now} for i, s, now in places]
    updates, _ = on_one_axis(metrics, [])
    assert [record["virtual_time"] for record in updates] == [1.0, 2.5, 3.5, 4.5]


def test_the_checkpoints_of_a_later_iteration_stay_to_go_on_from(tmp_path: Path) -> None:
    with RunFolder(config_of(f"output_dir={tmp_path}", "iterations=3")) as folder:
        for iteration in (1, 2):
            (folder.path / "checkpoints" / str(iteration) / "step-00000001").mkdir(parents=True)
        folder.remove_leftovers(1)
        assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["2"]
        folder.remove_leftovers(3)
        assert not any((folder.path / "checkpoints").iterdir())
