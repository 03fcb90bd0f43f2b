"""Sampled and imported completions as one: rows in their order, one group a prompt; p̃ and c of Equation 12."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_completions, make_graded, refused, values_of
from topr_exp.composition.baselines import baseline_for, effective_positive
from topr_exp.composition.merging import merge_sources
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.groups import ComposeConfig
from topr_exp.types import CORRECT, INCORRECT, INVALID, Problem

VERDICTS = [CORRECT, INCORRECT, INVALID, CORRECT]


def graded(problem, golds, prompts, source):
    """Four graded and scored completions, whose tokens name their source and row."""
    columns = {
        "problems": [Problem(f"{source}/{index}", "?", gold) for index, gold in enumerate(golds)],
        "tokens": [[source, 0], [source, 1], [source, 2], [source, 3]],
        "text": ["text"] * 4,
        "finish": ["stop", "length"] * 2,
        "verdict": VERDICTS,
        "answer": ["answer"] * 4,
        "path": ["string"] * 4,
        "class": [0] * 4,
        "mu_logp": [[-1.0 - source, 0], [-1.0 - source, -1], [-1.0 - source, -2], [-1.0 - source, -3]],
    }
    return make_completions(problem, prompts, **columns)


def as_lists(arrays):
    return [array.tolist() for array in arrays]


def test_completions_of_one_prompt_are_one_group_wherever_they_are_from():
    sampled = graded([0, 0, 1, 1], ["a", "b"], [[1], [1, 2]], 0)
    # The last problem has the prompt of the first one, and another gold answer.
    imported = graded([1, 0, 2, 2], ["c", "b", "b"], [[9], [1, 2], [1]], 1)

    merged = merge_sources([sampled, imported])

    assert merged.problem_index.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert merged.sample_index.tolist() == [0, 1, 0, 1, 2, 0, 0, 1]
    assert as_lists(merged.tokens) == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert as_lists(merged.lists("mu_logp"))[3:5] == [[-1, -3], [-2, 0]]
    assert merged.prompt_of(4).tolist() == [1, 2]
    assert merged.prompt_of(5).tolist() == [9]
    assert values_of(merged.problems, "answer") == ["a", "b", "c", "b"]
    assert merged.verdicts.tolist() == VERDICTS * 2
    assert merged.is_imported.tolist() == [False] * 4 + [True] * 4
    assert merged.is_truncated.tolist() == [False, True] * 4


def test_a_single_source_stays_as_it_is():
    sampled = graded([0, 0, 0, 0], ["a"], [[1]], 0)

    assert merge_sources([sampled]) is sampled
    assert sampled.is_imported is None


# ---- the effective proportion of positives


@given(st.floats(0, 1), st.floats(-0.999, 0.999))
def test_the_effective_proportion_is_equation_12(p, c):
    assert effective_positive(p, c) == pytest.approx(p * (1 - c) / (1 + (1 - 2 * p) * c), abs=1e-9)


@pytest.mark.parametrize("p", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
def test_the_baseline_solves_equation_12(p):
    for share in np.linspace(0, 1, 101).tolist():
        c = baseline_for(p, share)
        assert -1 <= c <= 1
        assert effective_positive(p, c) == pytest.approx(share, abs=1e-12)
    assert [baseline_for(p, share) for share in (0, p, 1)] == [1, 0, -1]


@pytest.mark.parametrize("p, kind", [(0.0, "incorrect"), (1.0, "correct")])
def test_a_set_of_one_kind_has_no_baseline_for_a_proportion(p, kind):
    assert effective_positive(p, 0.3) == p  # the other direction is fine
    with refused(f"effective_positive=0.2 .* all completions .* are {kind}"):
        baseline_for(p, 0.2)


@pytest.mark.parametrize("p, share, name", [(0.5, 2, "effective"), (0.5, -0.1, "effective"), (20, 0.5, "positive")])
def test_shares_outside_of_0_to_1_have_no_baseline(p, share, name):
    with refused(rf"^{name}\S* must be in \[0, 1\]; got"):
        baseline_for(p, share)


@pytest.mark.parametrize("p, c", [(0.0, -1.0), (1.0, 1.0)])
def test_a_baseline_that_silences_every_example_is_refused(p, c):
    with refused(f"baseline={c:g} gives every example the weight 0"):
        effective_positive(p, c)


@pytest.mark.parametrize("rewards, share", [("pm1", 0.5), ("zero_one", None)])
def test_p_tilde_is_of_rewards_1_and_minus_1(rewards, share):
    completions = make_graded([0, 0], [True, False])
    settings = {"seed": 0, "iteration": 1, "baseline": None, "effective": None}

    training_set = build_training_set(completions, rewards, ComposeConfig(), "examples", **settings)

    assert training_set.effective_positive == share
