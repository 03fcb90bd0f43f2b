"""Sampled and imported completions as one: rows in their order, one group a prompt; p̃ and c of Equation 12."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import config_of, make_rollouts, refused
from topr_exp.composition.candidates import Candidates, concat_rows, merge_sources
from topr_exp.composition.training_set import baseline_for, build_training_set, effective_positive
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.grading.verdicts import Verdicts
from topr_exp.sampling.rollouts import Completions
from topr_exp.types import VERDICTS, Problem, TOPRError


def part(problem: list[int], golds: list[str], prompts: list[list[int]], made: int) -> Completions:
    """Completions whose tokens say where they are from."""
    rows = range(len(problem))
    columns = {"tokens": [[made, row] for row in rows], "text": [f"{made} {row}" for row in rows]}
    finish = ["stop", "length"] * (len(problem) // 2)
    rollouts = make_rollouts(problem, prompts, f"r/{made}", **columns, finish=finish)
    asked = [Problem(f"{made}/{i}", "?", gold) for i, gold in enumerate(golds)]
    return Completions(rollouts, TokenizedProblems(asked, rollouts.prompts, (), 0))


def verdicts(words: list[str]) -> Verdicts:
    rows = {"verdict": words, "answer": words, "path": words, "class": pa.array([0] * len(words), pa.int32())}
    return Verdicts("", pa.table(rows))


def test_completions_of_one_prompt_are_one_group_wherever_they_are_from() -> None:
    sampled = part([0, 0, 1, 1], ["a", "b"], [[1], [1, 2]], 0)
    elsewhere = part([1, 0, 2, 2], ["c", "b", "b"], [[9], [1, 2], [1]], 1)  # the last has another gold
    words = ["correct", "incorrect", "invalid", "correct"]
    pool = merge_sources([sampled, elsewhere], [verdicts(words), verdicts(words[::-1])])
    assert pool.rollouts.problem.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert pool.rollouts.sample.tolist() == [0, 1, 0, 1, 2, 0, 0, 1]
    assert [tokens.tolist() for tokens in pool.rollouts.tokens] == [[made, row] for made in (0, 1) for row in range(4)]
    assert pool.rollouts.prompt_of(4).tolist() == [1, 2]
    assert pool.rollouts.prompt_of(5).tolist() == [9]
    assert [problem.answer for problem in pool.problems] == ["a", "b", "c", "b"]
    assert [VERDICTS[code] for code in pool.verdicts.codes] == [*words, *words[::-1]]
    assert pool.imported is not None
    assert pool.imported.tolist() == [False] * 4 + [True] * 4
    assert pool.rollouts.truncated.tolist() == [False, True] * 4


def test_one_part_stays_as_it_is() -> None:
    sampled = part([0, 0], ["a"], [[1]], 0)
    pool = merge_sources([sampled], [verdicts(["correct", "invalid"])])
    assert pool.rollouts is sampled.rollouts
    assert pool.imported is None
    rows = [np.zeros(1)]
    assert concat_rows([rows]) is rows
    assert concat_rows([["a", "b"], ["c"]]) == ["a", "b", "c"]


# ---- the effective proportion of positives


INSIDE = [0.001, 0.01, 0.1, 0.21, 1 / 3, 0.5, 0.67, 0.9, 0.99, 0.999]


@pytest.mark.parametrize("p", INSIDE)
def test_round_trips_over_a_grid(p):
    for c in np.linspace(-1, 1, 401).tolist():
        assert baseline_for(p, effective_positive(p, c)) == pytest.approx(c, abs=1e-12)
    for share in np.linspace(0, 1, 401).tolist():
        assert effective_positive(p, baseline_for(p, share)) == pytest.approx(share, abs=1e-12)
        assert -1 <= baseline_for(p, share) <= 1
    assert [baseline_for(p, share) for share in (0, p, 1)] == [1, 0, -1]


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(-0.999, 0.999))
def test_it_is_equation_12(p, c):
    assert effective_positive(p, c) == pytest.approx(p * (1 - c) / (1 + (1 - 2 * p) * c), abs=1e-9)


@pytest.mark.parametrize(("p", "kind"), [(0.0, "incorrect"), (1.0, "correct")])
def test_a_set_of_one_kind_has_no_baseline_for_a_proportion(p, kind):
    with refused(f"effective_positive=0.2 .* all completions .* are {kind}"):
        baseline_for(p, 0.2)
    assert effective_positive(p, 0.3) == p  # the other direction is fine


@pytest.mark.parametrize(("rewards", "reached"), [("pm1", 0.5), ("zero_one", None)])
def test_p_tilde_is_of_rewards_1_and_minus_1(rewards: str, reached: float | None) -> None:
    config, candidates = config_of("data.n=2").compose, Candidates(np.array([0, 0]), np.array([True, False]))
    options = {"seed": 0, "iteration": 1, "baseline": None, "effective": None}
    made = build_training_set(candidates, rewards, config, "examples", **options)
    assert made.effective_positive == reached


@pytest.mark.parametrize(("p", "c"), [(0.0, -1.0), (1.0, 1.0)])
def test_a_baseline_that_silences_every_example_is_refused(p, c):
    with pytest.raises(TOPRError, match=f"baseline={c:g} gives every example the weight 0"):
        effective_positive(p, c)
