"""Reading what a run writes while it writes, and counting steps through its iterations."""

from __future__ import annotations

from pathlib import Path

from topr_exp.runs.records import Evaluations, on_one_axis
from topr_exp.runtime.files import read_lines


def test_a_half_written_line_waits_and_a_damaged_one_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == ([], 0)
    path.write_text('{"step": 1}\nrubbish\n[1]\n{"step": 2')
    assert read_lines(path, growing=True) == ([{"step": 1}], 2)
    assert read_lines(path) == ([{"step": 1}], 3)


def test_evaluations_that_are_lost_are_counted(tmp_path: Path) -> None:
    evaluations, updates = Evaluations(tmp_path), [(1, step) for step in range(1, 6)]
    assert evaluations.missing(updates, None, 1) == 2
    for record in ({"iteration": 0}, {"iteration": 1, "step": 2, "subset": True}, {"iteration": 1}):
        evaluations.add(record)
    assert evaluations.missing(updates, None, 1) == 0
    assert evaluations.missing(updates, 2, 1) == 1


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
