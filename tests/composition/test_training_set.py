"""Sampled and imported completions as one: rows in their order, one group a prompt; p̃ and c of Equation 12."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import config_of, make_completions, make_graded, refused
from topr_exp.composition.baselines import baseline_for, effective_positive
from topr_exp.composition.merging import merge_sources
from topr_exp.composition.training_set import build_training_set
from topr_exp.sampling.completions import Completions
from topr_exp.types import CORRECT, INCORRECT, INVALID, Problem, TOPRError


def graded(
    problem: list[int], golds: list[str], prompts: list[list[int]], source: int, verdicts: list[int]
) -> Completions:
    """Graded and scored completions, whose tokens name their source and row."""
    rows = range(len(problem))
    names = [str(verdict) for verdict in verdicts]
    return make_completions(
        problem, prompts, problems=[Problem(f"{source}/{i}", "?", gold) for i, gold in enumerate(golds)],
        tokens=[[source, row] for row in rows], text=[f"{source} {row}" for row in rows],
        finish=["stop", "length"] * (len(problem) // 2), verdict=verdicts, answer=names, path=names,
        mu_logp=[[-1.0 - source, -row] for row in rows], **{"class": [0] * len(problem)},
    )  # fmt: skip


def test_completions_of_one_prompt_are_one_group_wherever_they_are_from() -> None:
    verdicts = [CORRECT, INCORRECT, INVALID, CORRECT]
    sampled = graded([0, 0, 1, 1], ["a", "b"], [[1], [1, 2]], 0, verdicts)
    # The last problem has the prompt of the first one, and another gold answer.
    imported = graded([1, 0, 2, 2], ["c", "b", "b"], [[9], [1, 2], [1]], 1, verdicts[::-1])
    merged = merge_sources([sampled, imported])
    assert merged.problem_index.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert merged.sample_index.tolist() == [0, 1, 0, 1, 2, 0, 0, 1]
    assert [tokens.tolist() for tokens in merged.tokens] == [[source, row] for source in (0, 1) for row in range(4)]
    assert [logp.tolist() for logp in merged.lists("mu_logp")][3:5] == [[-1, -3], [-2, 0]]
    assert merged.prompt_of(4).tolist() == [1, 2]
    assert merged.prompt_of(5).tolist() == [9]
    assert [problem.answer for problem in merged.problems] == ["a", "b", "c", "b"]
    assert merged.verdicts.tolist() == [*verdicts, *verdicts[::-1]]
    assert merged.is_imported is not None
    assert merged.is_imported.tolist() == [False] * 4 + [True] * 4
    assert merged.is_truncated.tolist() == [False, True] * 4


def test_a_single_source_stays_as_it_is() -> None:
    sampled = graded([0, 0], ["a"], [[1]], 0, [CORRECT, INVALID])
    assert merge_sources([sampled]) is sampled
    assert sampled.is_imported is None


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
    config, completions = config_of("data.n=2").compose, make_graded([0, 0], [True, False])
    options = {"seed": 0, "iteration": 1, "baseline": None, "effective": None}
    made = build_training_set(completions, rewards, config, "examples", **options)
    assert made.effective_positive == reached


@pytest.mark.parametrize(("p", "c"), [(0.0, -1.0), (1.0, 1.0)])
def test_a_baseline_that_silences_every_example_is_refused(p, c):
    with pytest.raises(TOPRError, match=f"baseline={c:g} gives every example the weight 0"):
        effective_positive(p, c)
