"""Records of a run: resumed without gaps or repeats, damage counted, and one axis through all iterations."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lines_of
from topr_exp.runs.records import Evaluations, Metrics, UpdateKey, on_one_axis
from topr_exp.runs.training_data import save_rounds
from topr_exp.runtime.json_files import read_lines

UPDATE_KEYS = [UpdateKey(iteration, step) for iteration in (1, 2) for step in (1, 2, 3)]


@pytest.mark.parametrize(("checkpoint", "count"), [((1, 2), 2), ((2, 0), 3), ((2, 2), 5), ((2, 3), 6)])
def test_a_resumed_run_drops_the_updates_after_its_checkpoint(checkpoint, count, tmp_path):
    lines = [json.dumps({"iteration": key.iteration, "step": key.step}) for key in UPDATE_KEYS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"iteration": 2, "st')
    metrics = Metrics(tmp_path)
    metrics.rewind(*checkpoint)
    assert [*metrics.updates()] == UPDATE_KEYS[:count]


def test_lost_updates_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"iteration": i, "step": step}) for i in (1, 3) for step in range(1, 16)]
    for index, damage in ((1, "{}"), (3, "[]"), (16, '{"iteration": 3, "st'), (17, "null"), (29, "\0")):
        lines[index] = damage
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    metrics = Metrics(tmp_path)
    metrics.rewind(3, 15)
    assert "metrics.jsonl lacks updates 1/2, 1/4, 3/2, 3/3, 3/15\n" in capsys.readouterr().err
    assert metrics.missing() == "updates 1/2, 1/4, 3/2, 3/3", "as the summary notes; the last one may follow"


def test_a_repeated_evaluation_replaces_the_earlier_one_and_damaged_lines_are_dropped(tmp_path, capsys):
    evaluations = Evaluations(tmp_path)
    keys: list[dict[str, Any]] = [
        {"iteration": 0, "subset": True},
        {"iteration": 0},
        {"iteration": 1, "step": 2, "subset": True},
        {"iteration": 1, "step": 4, "subset": True},
        {"iteration": 1, "subset": True},
        {"iteration": 1},
    ]
    for attempt in (1, 2):
        for key in keys:
            evaluations.add({**key, "pass@1": attempt})
    with evaluations.path.open("a") as file:
        file.write('{}\n[]\nnull\n{"iteration": 2, "pa')
    evaluations.drop_damaged()
    assert "eval.jsonl: 4 damaged" in capsys.readouterr().err
    assert lines_of(evaluations.path) == [{**key, "pass@1": 2} for key in keys]


def test_lost_evaluations_are_counted(tmp_path: Path) -> None:
    evaluations = Evaluations(tmp_path)
    updates = [UpdateKey(1, step) for step in range(1, 6)]
    assert evaluations.count_missing(updates, None, iterations=1) == 2
    for record in ({"iteration": 0}, {"iteration": 1, "step": 2, "subset": True}, {"iteration": 1}):
        evaluations.add(record)
    assert evaluations.count_missing(updates, None, iterations=1) == 0
    assert evaluations.count_missing(updates, 2, iterations=1) == 1


def test_a_half_written_line_waits_and_a_damaged_one_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == ([], 0)
    path.write_text('{"step": 1}\nrubbish\n[1]\n{"step": 2')
    assert read_lines(path, growing=True) == ([{"step": 1}], 2)
    assert read_lines(path) == ([{"step": 1}], 3)


# ---- one axis


def test_steps_and_samples_count_through_the_iterations() -> None:
    keys = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 1)]
    metrics = [{"iteration": iteration, "step": step, "samples": 10 * step} for iteration, step in keys]
    evaluations = [{"iteration": iteration} for iteration in (0, 1, 2, 3)]
    evaluations.append({"iteration": 2, "step": 1, "samples_seen": 10})
    updates, tests = on_one_axis(metrics, evaluations)
    assert [update["optimizer_step"] for update in updates] == [1, 2, 3, 4, 5, 6]
    assert [update["samples"] for update in updates] == [10, 20, 30, 40, 50, 60]
    assert [test["optimizer_step"] for test in tests] == [0, 2, 3, 5, 6]
    assert [test["samples_seen"] for test in tests] == [0, 20, 30, 50, 60]


def test_the_later_of_two_records_of_an_update_counts_and_others_are_left_out() -> None:
    update = {"iteration": 1, "step": 1, "samples": 5}
    metrics = [{**update, "loss": 1.0}, {**update, "loss": 2.0}, {"step": 2}, {"iteration": None, "step": 2}]
    updates, tests = on_one_axis(metrics, [{"iteration": 5}, {}])
    assert [record["loss"] for record in updates] == [2.0]
    assert [record["optimizer_step"] for record in tests] == [1]  # after all iterations that logged anything


def test_virtual_time_goes_on_through_the_iterations() -> None:
    times = {(1, 1): 1.0, (1, 2): 2.5, (2, 1): 1.0, (2, 2): 2.0}
    metrics = [{"iteration": i, "step": step, "samples": 0, "virtual_time": time} for (i, step), time in times.items()]
    updates, _ = on_one_axis(metrics, [])
    assert [record["virtual_time"] for record in updates] == [1.0, 2.5, 3.5, 4.5]


# ---- rounds


@pytest.mark.parametrize(("shares", "mean", "has_note"), [((0.25, 0.75), 0.375, False), ((0.0, 0.0), 0.0, True)])
def test_rounds_are_summarized_by_their_samples(shares, mean, has_note, tmp_path):
    """Two updates, of 6 and 2 samples, on one round with 3 timeouts."""
    records = []
    for step, samples, share in zip((1, 2), (6, 8), shares, strict=True):
        record = {"step": step, "samples": samples, "positive_share": share}
        records.append({**record, "round": 0, "grader_timeouts": 3, "sampled_truncated": 0.25})
    save_rounds(tmp_path, records, trained=8, tokens_sampled=50, baseline=-0.3, mismatch=None)
    summary = json.loads((tmp_path / "training_set.json").read_text())
    assert summary.pop("note") is not None if has_note else summary.pop("note") is None
    assert summary == {
        "positive_share": mean,
        "grader_timeouts": 3,
        "n_train": 8,
        "baseline": -0.3,
        "effective_positive": None,
        "tokens_sampled": 50,
        "truncated_share": 0.25,
    }
