"""Sampled and imported completions as one: rows in their order, one group a prompt; p̃ and c of Equation 12."""

from ast import literal_eval
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import make_completions, make_graded, parted, refused, values_of
from topr_exp.composition.baselines import baseline_for, effective_positive
from topr_exp.composition.merging import merge_sources
from topr_exp.composition.selection import select
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.groups import ComposeConfig
from topr_exp.types import CORRECT, INCORRECT, INVALID, Problem


def graded(source, *, problem, prompts, golds):
    """Four graded and scored completions, whose tokens and log-probabilities name their source and row."""
    problems = [Problem(f"{source}/{index}", "?", gold) for index, gold in enumerate(golds)]
    return make_completions(
        problem,
        prompts,
        problems=problems,
        tokens=product([source], range(4)),
        mu_logp=product([-source], [0, -1, -2, -3]),
        text=["text"] * 4,
        finish=["stop", "length"] * 2,
        verdict=[CORRECT, INCORRECT, INVALID, CORRECT],
        answer=["answer"] * 4,
        path=["string"] * 4,
        **{"class": [0] * 4},
    )


# Problem, sample, tokens (source and row), log μ, verdict, end, whether imported
MERGED = """
0 | 0 | [0, 0] | [0, 0] | 0 | "stop" | False
0 | 1 | [0, 1] | [0, -1] | 1 | "length" | False
1 | 0 | [0, 2] | [0, -2] | 2 | "stop" | False
1 | 1 | [0, 3] | [0, -3] | 0 | "length" | False
1 | 2 | [1, 0] | [-1, 0] | 0 | "stop" | True
2 | 0 | [1, 1] | [-1, -1] | 1 | "length" | True
3 | 0 | [1, 2] | [-1, -2] | 2 | "stop" | True
3 | 1 | [1, 3] | [-1, -3] | 0 | "length" | True
"""


def test_completions_of_one_prompt_are_one_group_wherever_they_are_from():
    """The last problem has the prompt of the first one, and another gold answer."""
    sampled = graded(0, problem=[0, 0, 1, 1], prompts=[[1], [1, 2]], golds="ab")
    imported = graded(1, problem=[1, 0, 2, 2], prompts=[[9], [1, 2], [1]], golds="cbb")

    merged = merge_sources([sampled, imported])

    columns = ["problem", "sample", "tokens", "mu_logp", "verdict", "finish", "imported"]
    rows = [list(row.values()) for row in merged.table.select(columns).to_pylist()]
    assert rows == [list(map(literal_eval, row)) for row in parted(MERGED)]
    assert merged.prompt_of(4).tolist() == [1, 2]
    assert merged.prompt_of(5).tolist() == [9]
    assert values_of(merged.problems, "answer") == list("abcb")


def test_a_single_source_stays_as_it_is():
    sampled = graded(0, problem=[0] * 4, prompts=[[1]], golds="a")

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
    assert baseline_for(p, 0) == 1
    assert baseline_for(p, p) == 0
    assert baseline_for(p, 1) == -1


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
    selection = select(completions, ComposeConfig(), "examples", seed=0, iteration=1)

    training_set = build_training_set(completions, selection, rewards)

    assert training_set.effective_positive == share
