"""Verdicts in the store: each completion has that of its own problem; rewards, warnings, pruning."""

import re

import pyarrow as pa
import pytest

from tests.conftest import each_row, make_completions, small_config
from topr_exp.grading import Grader, pool
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

ROLLOUTS = "rollouts/a"
PROBLEMS = [Problem("p0", "?", "5"), Problem("p1", "?", "7")]


def stored(texts, problem, *, shard_sizes=None, problems=PROBLEMS):
    return make_completions(problem, [[0]] * len(problems), ROLLOUTS, shard_sizes, text=texts, problems=problems)


def verdict_names(completions):
    return [VERDICTS[code] for code in completions.verdicts]


def test_each_completion_is_graded_against_its_own_problems_gold_and_nothing_invalid_has_a_class(tmp_path):
    to_first = ["The answer is 5.", "The answer is 7.", "The answer is 5.0.", "no answer"]
    to_second = ["The answer is 7.", "The answer is 5.", "The answer is 7.0.", "no answer"]
    completions = stored(to_first + to_second, [0, 0, 0, 0, 1, 1, 1, 1], shard_sizes=(4, 4))

    graded = grade_completions(completions, Grader("gsm8k"), Store(tmp_path))

    assert verdict_names(graded) == ["correct", "incorrect", "correct", "invalid"] * 2
    assert graded.answer_classes.tolist() == [0, 1, 0, -1] * 2, "equal answers are one class within each problem"


def test_a_thought_that_began_in_the_prompt_and_was_cut_off_states_no_answer(tmp_path, capsys):
    problems = [Problem("p0", "?", "5"), Problem("p1", "?", "5", opens_thought=True)]
    texts = ["The answer is 5. Wait,"] * 2 + ["So 5.</think> The answer is 5."]

    graded = grade_completions(stored(texts, [0, 1, 1], problems=problems), Grader("gsm8k"), Store(tmp_path))

    assert verdict_names(graded) == ["correct", "invalid", "correct"]
    warn_of_invalid(graded.with_columns({"verdict": pa.array([INVALID] * 3, pa.int8())}), "gsm8k")
    assert capsys.readouterr().err.count("its thought does not end") == 1


def test_a_users_grader_gets_a_completion_as_it_was_sampled(tmp_path):
    problems = [Problem("p0", "?", "<think>", opens_thought=True)]

    graded = grade_completions(stored(["5"], [0], problems=problems), Grader("own_graders.contains"), Store(tmp_path))

    assert verdict_names(graded) == ["incorrect"]


def test_rewards_lie_with_the_verdicts_where_they_are_asked_for(tmp_path):
    store = Store(tmp_path)
    texts = ["0.5", "1", "die", '["invalid", null, -3]', "library"]
    completions = stored(texts, [0, 0, 0, 1, 1], shard_sizes=(3, 2))

    def grade(**settings):
        return grade_completions(completions, Grader("own_graders.obedient", **settings), store)

    plain = grade()
    graded = grade(graded=True)
    lenient = grade(graded=True, threshold=0.5)

    assert verdict_names(plain) == ["incorrect", "correct", "incorrect", "invalid", "incorrect"]
    assert verdict_names(graded) == verdict_names(plain)
    assert verdict_names(lenient) == ["correct", "correct", "incorrect", "invalid", "incorrect"]
    assert plain.reward is None
    assert graded.reward.tolist() == [0.5, 1.0, -3.0, -3.0, 0.25]
    assert lenient.reward.tolist() == graded.reward.tolist()
    assert graded.first_rows(3).reward.tolist() == [0.5, 1.0, 0.0], "what was cut off is worth the least, 0 at most"
    table = store.open(tmp_path / plain.stored.verdicts)
    assert table.read().column_names == ["verdict", "answer", "path", "class"]
    assert table.key["version"].startswith(GRADER_VERSION)


THRESHOLDS = """
0.5 | ["incorrect", "correct", "correct"]
1.0 | ["incorrect", "incorrect", "correct"]
"""


@each_row("threshold verdicts", THRESHOLDS, literals=True)
def test_the_rewards_of_a_log_are_judged_from_the_threshold_that_is_asked_for(threshold, verdicts, tmp_path):
    rewards = pa.array([0.0, 0.5, 1.0])
    completions = stored(["x", "y", "z"], [0, 0, 0]).with_columns({"reward": rewards})

    graded = grade_by_log(completions, threshold, Store(tmp_path))

    assert verdict_names(graded) == verdicts


def warn_of_paths(paths):
    """Warn of incorrect completions, of which this decided."""
    completions = make_completions([0] * len(paths), verdict=[INCORRECT] * len(paths), path=paths)
    warn_of_failures(completions, "math", "; try again")


def test_errors_of_the_comparison_and_comparisons_that_were_cut_off_are_reported(capsys):
    warn_of_paths(["raised", "timeout", "died", "string", "raised"])
    assert capsys.readouterr().err.splitlines() == [
        "warning: grader math was cut off twice (its time, its memory, or by another program) on 2 of 5 completions, "
        "which count as incorrect; try again",
        "warning: grader math failed with an error on 2 of 5 completions, which count as incorrect",
    ]

    warn_of_paths(["string", "none"])
    assert capsys.readouterr().err == ""


FOUR_INVALID = ["so \\boxed{5}", "The answer is", "<think> 5", "5"]
EXAMPLES = [
    "  it has no \"The answer is\": 'so \\\\boxed{5}'",
    "  nothing that can be read follows \"The answer is\": 'The answer is'",
    "  its thought does not end: '<think> 5'",
]


@pytest.mark.parametrize("correct_count, examples", [(3, EXAMPLES), (4, [])])
def test_where_more_than_half_is_invalid_three_are_shown_with_the_reason(correct_count, examples, tmp_path, capsys):
    texts = FOUR_INVALID + ["The answer is 5."] * correct_count

    grade_completions(stored(texts, [0] * len(texts)), Grader("gsm8k"), Store(tmp_path))

    _, warning, following = capsys.readouterr().err.partition("warning: grader gsm8k finds no answer in 4 of 7")
    assert bool(warning) == bool(examples)
    assert following.splitlines()[1:] == examples


REASONS = r"""
math | none | it has no \boxed{...}
own.grade | user | the grader calls it invalid
"""


@each_row("grader path reason", REASONS)
def test_an_invalid_completion_is_shown_by_its_end_without_control_characters(grader, path, reason, capsys):
    text = "5 " * 60 + "\x1b[2J"
    columns = {"text": [text], "finish": ["length"], "verdict": [INVALID], "path": [path]}

    warn_of_invalid(make_completions([0], **columns), grader)

    assert capsys.readouterr().err.splitlines() == [
        f"warning: grader {grader} finds no answer in 1 of 1 completions, such as",
        rf"  {reason}, and the token limit cut it off: ...'{(' 5' * 60)[-95:]} \x1b[2J'",
    ]


def mark_first_as_died(table):
    """Change a stored table as a worker that was killed would have left it."""
    schema = table.shard(0).schema
    columns = table.shard(0).to_pydict()
    for name, value in (("verdict", "incorrect"), ("path", "died"), ("class", -1)):
        columns[name][0] = value
    write_shard(table.shard_path(0), pa.table(columns, schema=schema))


def test_a_run_starts_its_graders_processes_once(monkeypatch, tmp_path):
    starts = []
    start_server = pool._start_server

    def counted_start(*arguments):
        starts.append(arguments)
        return start_server(*arguments)

    monkeypatch.setattr(pool, "_start_server", counted_start)
    rounds = ["schedule=on_policy", "schedule.rounds=2", "optim.batch_size=32", "evaluation.every=1"]

    run(small_config(tmp_path, *rounds, "data.grader._target_=own_graders.contains"))

    assert len(starts) == 1, "for the base, two rounds, two evaluations in training and the last"


def timeouts_of(summary):
    return summary["grader_timeouts"], summary["base"]["grader_timeouts"]


def test_a_run_reports_what_was_cut_off_and_a_later_one_grades_it_after_pruning(smoke, copied_smoke, tmp_path, capsys):
    _, summary = smoke
    for folder in (copied_smoke.store / "verdicts").iterdir():
        mark_first_as_died(Store(copied_smoke.store).open(folder))
    capsys.readouterr()

    cut_off = run(small_config(tmp_path, "name=second", "iterations=2"))
    output = capsys.readouterr()
    commands = re.findall(r"python -m topr_exp\.store (--root \S+ prune --yes --key verdicts/\w+)", output.err)
    statuses = [main(command.split()) for command in commands]
    graded_again = run(small_config(tmp_path, "name=third"))

    assert timeouts_of(cut_off) == (1, 1)
    assert "note: the grader was cut off twice on 2 completions, which count as incorrect" in output.out
    assert statuses == [0, 0]
    assert timeouts_of(graded_again) == (0, 0)
    assert graded_again["base"]["pass@k"] == summary["base"]["pass@k"]
