"""Records of a run: resumed without gaps or repeats, damage counted, and one axis through all iterations."""

import numpy as np
import pytest

from tests.conftest import append_text, column, each_row, lines_of, read_json, write_lines
from tests.run_folders import make_run
from topr_exp import read_curves
from topr_exp.runs.records import MAX_COUNT, Evaluations, Metrics, UpdateKey, describe_missing_updates, on_one_axis
from topr_exp.runs.training_data import save_rounds

UPDATES = [{"iteration": iteration, "step": step} for iteration in (1, 2) for step in (1, 2, 3)]


# An iteration and its step | how many updates are left
CHECKPOINTS = """
1 | 2 | 2
2 | 0 | 3
2 | 3 | 6
"""


@each_row("iteration step count", CHECKPOINTS, literals=True)
def test_a_resumed_run_drops_the_updates_after_its_checkpoint(iteration, step, count, tmp_path):
    write_lines(tmp_path / "metrics.jsonl", [*UPDATES, '{"iteration": 2, "st'])
    metrics = Metrics(tmp_path)

    metrics.rewind(iteration, step)

    assert lines_of(metrics.path) == UPDATES[:count]


def test_a_figure_of_another_type_is_one_line_that_names_file_and_line(tmp_path, capsys):
    """Where a run goes on, and where it is read for a report, a comparison and its curves."""
    _, folder = make_run(tmp_path, done=False)
    updates = lines_of(folder / "metrics.jsonl")
    updates[2]["loss"] = [0.5]
    write_lines(folder / "metrics.jsonl", updates)
    metrics = folder / "metrics.jsonl"

    assert "loss" in read_curves(folder)
    assert capsys.readouterr().err == f"warning: {metrics}: line 3 left out, damaged or another version's\n"
    Metrics(folder).rewind(1, 20)
    assert capsys.readouterr().err == f"warning: {metrics} lacks update 3 (line 3 damaged)\n"


def test_a_repeated_evaluation_replaces_the_earlier_one_and_damaged_lines_are_dropped(tmp_path, capsys):
    evaluations = Evaluations(tmp_path)
    keys = [{"iteration": 0, "subset": True}, {"iteration": 0}, {"iteration": 1, "step": 2, "subset": True}]
    for accuracy in (0.1, 0.2):
        for key in keys:
            evaluations.path.unlink(missing_ok=True)  # known: reading it at each evaluation is quadratic
            evaluations.add({**key, "pass@1": accuracy})
    append_text(evaluations.path, '{}\n[]\nnull\n{"iteration": 2, "pa')

    evaluations.drop_damaged()

    assert "eval.jsonl: 4 damaged" in capsys.readouterr().err
    assert lines_of(evaluations.path) == [{**key, "pass@1": 0.2} for key in keys]


@pytest.mark.parametrize(
    "last, line",
    [
        (10**15, "updates 1, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 999999999999988 more"),
        (MAX_COUNT + 1, "update 1"),  # the second record is damaged
    ],
)
def test_lost_updates_are_counted_and_ten_are_named_however_many_there_are(last, line, tmp_path):
    metrics = Metrics(tmp_path)

    write_lines(metrics.path, [{"iteration": 1, "step": 2}, {"iteration": 1, "step": last}])

    assert describe_missing_updates(metrics.updates(), {}) == line


def test_many_iterations_are_read_in_time_that_grows_with_their_number():
    """A damaged file may name 50,000: a sum over all of them for each would take hours."""
    update = {"step": 1, "samples": 2, "virtual_time": 0.5}
    updates = [{"iteration": iteration, **update} for iteration in range(50_000)]

    records, points = on_one_axis(updates, updates)

    assert records[-1]["optimizer_step"] == 50_000
    assert records[-1]["virtual_time"] == 25_000
    assert points[-1]["samples_seen"] == 100_000


OTHER_TYPES = [None, [], {}, "3", -1, 10**300, 0.5]


@pytest.mark.parametrize("value", OTHER_TYPES, ids=str)
@pytest.mark.parametrize("name", ["iteration", "step", "samples_seen", "subset"])
def test_an_evaluation_whose_place_has_another_type_is_damaged(name, value, tmp_path, capsys):
    evaluations = Evaluations(tmp_path)
    intact = {"iteration": 1, "step": 1, "samples_seen": 10, "subset": True}
    damaged = {**intact, "step": 2, name: value}
    write_lines(evaluations.path, [intact, damaged])

    missing = evaluations.count_missing([UpdateKey(1, 1), UpdateKey(1, 2)], 1, 1)
    _, points = on_one_axis(UPDATES, lines_of(evaluations.path))
    evaluations.drop_damaged()

    assert missing == 3
    assert len(points) == 1
    assert lines_of(evaluations.path) == [intact]
    assert "eval.jsonl: 1 damaged" in capsys.readouterr().err


# ---- one axis


def test_steps_samples_and_virtual_time_count_through_the_iterations():
    metrics = []
    for update in UPDATES:
        step = update["step"]
        metrics.append({**update, "samples": 10 * step, "virtual_time": step + 0.5})
    evaluations = [{"iteration": 0}, {"iteration": 1}, {"iteration": 2}]
    evaluations.append({"iteration": 2, "step": 1, "samples_seen": 10})

    updates, points = on_one_axis(metrics, evaluations)

    assert column(updates, "optimizer_step") == [1, 2, 3, 4, 5, 6]
    assert column(updates, "samples") == [10, 20, 30, 40, 50, 60]
    assert column(updates, "virtual_time") == [1.5, 2.5, 3.5, 5.0, 6.0, 7.0]
    assert column(points, "optimizer_step") == [0, 3, 4, 6]
    assert column(points, "samples_seen") == [0, 30, 40, 60]


# ---- rounds


@pytest.mark.parametrize("share", [0.75, 0.0])
def test_rounds_are_summarized_by_their_samples(share, tmp_path):
    """Two updates, of 6 and 2 samples, on one round with 3 timeouts; where none is positive, there is a note."""
    figures_of_round = {"round": 0, "grader_timeouts": 3, "sampled_truncated": 0.25}
    first = {"step": 1, "samples": 6, "positive_share": share / 3, **figures_of_round}
    second = {"step": 2, "samples": 8, "positive_share": share, **figures_of_round}

    save_rounds(tmp_path, [first, second], n_train=8, tokens_sampled=50, baseline=-0.3, mismatch=None)

    summary = read_json(tmp_path / "training_set.json")
    note = summary.pop("note")
    assert (note is not None) == (share == 0)
    assert summary == {
        "positive_share": share / 2,
        "grader_timeouts": 3,
        "n_train": 8,
        "tokens_sampled": 50,
        "baseline": -0.3,
        "effective_positive": None,
        "truncated_share": 0.25,
    }


FIRST_ROUND = {
    "round": 0,
    "samples": 6,
    "positive_share": 1.0,
    "age": 0,
    "virtual_time": 1.0,
    "trainer_idle": 0.5,
    "sampled_length": 20,
    "sampled_truncated": 0.5,
    "sampler_kl_token": 0.1,
    "sampler_kl_answer": 2,
}
SECOND_ROUND = {
    "round": 1,
    "samples": 8,
    "positive_share": 1.0,
    "age": 1,
    "virtual_time": 2.75,
    "trainer_idle": 0.25,
    "sampled_length": 40,
    "sampled_truncated": 0.1,
    "sampler_kl_token": 0.2,
    "sampler_kl_answer": 8,
}


@pytest.mark.parametrize(
    "first, second, completions",
    [
        (FIRST_ROUND, SECOND_ROUND, [1, 1]),  # each round draws as many
        ({**FIRST_ROUND, "problems_drawn": 3}, {**SECOND_ROUND, "problems_drawn": 1}, [3, 1]),
    ],
)
def test_what_was_drawn_is_summarized_by_its_completions_and_tokens(first, second, completions, tmp_path):
    """6 and 2 completions are trained on; `completions`: how many of each round were drawn, up to a factor."""
    records = [first, second]

    save_rounds(tmp_path, records, n_train=8, tokens_sampled=400, baseline=0.0, mismatch="int4")

    summary = read_json(tmp_path / "training_set.json")
    tokens = np.multiply(completions, [20, 40])
    mismatch = summary["sampler_mismatch"]
    assert summary["truncated_share"] == pytest.approx(np.average([0.5, 0.1], weights=completions))
    assert mismatch["kl_answer"] == pytest.approx(np.average([2, 8], weights=completions))
    assert mismatch["kl_token"] == pytest.approx(np.average([0.1, 0.2], weights=tokens))
    assert mismatch["put_in"] == "int4"
    assert mismatch.keys() == {"put_in", "kl_token", "kl_answer"}
    assert summary["asynchrony"] == {"age": (6 * 0 + 2 * 1) / 8, "virtual_time": 2.75, "trainer_idle": 0.75}
