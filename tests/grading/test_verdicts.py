"""Verdicts in the store: each completion has that of its own problem; rewards, warnings, pruning."""

import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import make_completions, small_config
from topr_exp.config.data import Grading
from topr_exp.grading.grader import GRADER_VERSION
from topr_exp.grading.verdicts import (
    grade_by_log,
    grade_completions,
    warn_of_failures,
    warn_of_invalid,
)
from topr_exp.pipeline import run
from topr_exp.store import Store
from topr_exp.store.__main__ import main
from topr_exp.store.shards import write_shard
from topr_exp.types import INCORRECT, INVALID, VERDICTS, Problem

GSM8K = Grading("gsm8k")
ROLLOUTS = "rollouts/a"
# Of completions that say them, and of one that says a bare 5: whether the answer to each problem is right.
ANSWERS = ("5", "7", "9", "(1, 2)", "5.0")
GOLDS = ("5", "7", "x = 9", "(1, 2)")
PROBLEMS = [Problem(f"p{i}", f"{i}?", gold) for i, gold in enumerate(GOLDS)]
RIGHT = [[1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]


def stored(texts, problem, *, bounds=None):
    return make_completions(problem, [[0]] * len(PROBLEMS), ROLLOUTS, bounds, text=texts, problems=PROBLEMS)


def verdict_names(completions):
    return [VERDICTS[code] for code in completions.verdicts]


def test_each_completion_is_graded_against_its_own_problem_s_gold_and_nothing_invalid_has_a_class(tmp_path):
    texts = [*(f"The answer is {answer}." for answer in ANSWERS), "5"]
    problem = np.repeat(np.arange(len(PROBLEMS)), len(texts)).tolist()
    completions = stored(texts * len(PROBLEMS), problem, bounds=[0, 12, 24])

    graded = grade_completions(completions, GSM8K, Store(tmp_path))

    assert graded.is_correct.reshape(len(PROBLEMS), -1).tolist() == RIGHT
    classes = graded.answer_classes.reshape(len(PROBLEMS), -1)
    assert classes[2].tolist() == [0, 1, 2, 3, 0, -1], "equal answers are one class, counted within each problem"
    assert (classes[:, 0] == classes[:, 4]).all()
    assert verdict_names(graded)[5::6] == ["invalid"] * len(PROBLEMS)


def test_rewards_lie_with_the_verdicts_where_they_are_asked_for(tmp_path):
    store, name = Store(tmp_path), "own_graders.obedient"
    completions = stored(["0.5", "1", "die", '["invalid", null, -3]', "library"], [0, 0, 0, 1, 1], bounds=[0, 3, 5])
    settings = [Grading(name), Grading(name, graded=True), Grading(name, graded=True, threshold=0.5)]

    plain, graded, lenient = (grade_completions(completions, grading, store) for grading in settings)

    table = store.open(tmp_path / plain.stored.verdicts)
    assert table.read().column_names == ["verdict", "answer", "path", "class"]
    assert table.key.keys() == {"rollouts", "grader", "golds", "version"}
    assert table.key["version"].startswith(GRADER_VERSION)
    assert (
        verdict_names(plain) == verdict_names(graded) == ["incorrect", "correct", "incorrect", "invalid", "incorrect"]
    )
    assert verdict_names(lenient)[:2] == ["correct", "correct"]
    assert plain.reward is None
    assert graded.reward.tolist() == lenient.reward.tolist() == [0.5, 1.0, -3.0, -3.0, 0.25]
    assert graded.first_rows(3).reward.tolist() == [0.5, 1.0, 0.0], "what was cut off is worth the least, 0 at most"


def test_the_rewards_of_a_log_are_judged_from_the_threshold_that_is_asked_for(tmp_path):
    completions = stored(["x", "y", "z"], [0, 0, 0]).with_columns({"reward": pa.array([0.0, 0.5, 1.0])})

    for threshold, count in ((0.5, 2), (1.0, 1)):
        graded = grade_by_log(completions, threshold, Store(tmp_path))
        assert verdict_names(graded) == ["incorrect"] * (3 - count) + ["correct"] * count


def test_errors_of_the_comparison_and_comparisons_that_were_cut_off_are_reported(capsys):
    for paths in (["raised", "timeout", "died", "string", "raised"], ["string", "none"]):
        completions = make_completions([0] * len(paths), verdict=[INCORRECT] * len(paths), path=paths)
        warn_of_failures(completions, "math", "; try again")

    assert capsys.readouterr().err.splitlines() == [
        "warning: grader math was cut off twice (its time, its memory, or by another program) on 2 of 5 completions, "
        "which count as incorrect; try again",
        "warning: grader math failed with an error on 2 of 5 completions, which count as incorrect",
    ]


@pytest.mark.parametrize("correct_count, is_warned_of", [(3, True), (4, False)])
def test_where_more_than_half_is_invalid_three_are_shown_with_the_reason(correct_count, is_warned_of, tmp_path, capsys):
    texts = ["so \\boxed{5}", "The answer is", "<think> 5", "5", *["The answer is 5."] * correct_count]

    grade_completions(stored(texts, [0] * len(texts)), GSM8K, Store(tmp_path))

    _, is_reported, examples = capsys.readouterr().err.partition("warning: grader gsm8k finds no answer in 4 of 7")
    assert bool(is_reported) == is_warned_of
    assert examples.splitlines()[1:] == is_warned_of * [
        "  it has no \"The answer is\": 'so \\\\boxed{5}'",
        "  nothing that can be read follows \"The answer is\": 'The answer is'",
        "  its thought does not end: '<think> 5'",
    ]


@pytest.mark.parametrize(
    "grader, path, reason",
    [("math", "none", r"it has no \boxed{...}"), ("own.grade", "user", "the grader calls it invalid")],
)
def test_an_invalid_completion_is_shown_by_its_end_without_control_characters(grader, path, reason, capsys):
    text = "5 " * 60 + "\x1b[2J"
    columns = {"text": [text], "finish": ["length"], "verdict": [INVALID], "path": [path]}

    warn_of_invalid(make_completions([0], **columns), grader)

    assert capsys.readouterr().err.splitlines() == [
        f"warning: grader {grader} finds no answer in 1 of 1 completions, such as",
        rf"  {reason}, and the token limit cut it off: ...'{(' 5' * 60)[-95:]} \x1b[2J'",
    ]


def test_a_run_reports_what_was_cut_off_and_a_later_one_grades_it_after_pruning(smoke, tmp_path, capsys):
    config, summary = smoke
    shutil.copytree(config.output_dir, tmp_path, dirs_exist_ok=True)
    for table in map(Store(tmp_path / "store").open, (tmp_path / "store/verdicts").iterdir()):
        columns = table.shard(0).to_pydict()
        columns["verdict"][0], columns["path"][0], columns["class"][0] = "incorrect", "died", -1  # as a killed worker
        write_shard(table.shard_file(0), pa.table(columns, schema=table.shard(0).schema))
    capsys.readouterr()

    cut_off = run(small_config(tmp_path, "name=second"))
    output = capsys.readouterr()
    commands = re.findall(r"python -m topr_exp\.store (--root \S+ prune --yes --key verdicts/\w+)", output.err)
    statuses = [main(command.split()) for command in commands]
    graded_again = run(small_config(tmp_path, "name=third"))

    assert (cut_off["grader_timeouts"], cut_off["base"]["grader_timeouts"]) == (1, 1)
    assert "note: the grader was cut off twice on 2 completions, which count as incorrect" in output.out
    assert statuses == [0, 0]
    assert (graded_again["grader_timeouts"], graded_again["base"]["grader_timeouts"]) == (0, 0)
    assert graded_again["base"]["pass@k"] == summary["base"]["pass@k"]
