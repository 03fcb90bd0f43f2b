from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.composition.conftest import compose
from topr_exp.composition.candidates import Candidates
from topr_exp.composition.training_set import sample_distinct, select_pairs
from topr_exp.types import TOPRError

PROBLEM = np.array([0, 1, 0, 1, 2, 0, 1])
PATTERNS = [np.array(bits) for bits in product([False, True], repeat=len(PROBLEM))]


@pytest.mark.parametrize("most", [1, 2, 3, 16])
@pytest.mark.parametrize("n", [None, 1, 3, 100])
def test_pairs_exhaustively(most, n):
    for positive in PATTERNS:
        possible = [
            {
                (int(i), int(j))
                for i in np.flatnonzero((q == PROBLEM) & positive)
                for j in np.flatnonzero((q == PROBLEM) & ~positive)
            }
            for q in range(3)
        ]
        available = sum(min(most, len(pairs)) for pairs in possible)
        candidates, config = Candidates(PROBLEM, positive), compose(n_examples=n, pairs_per_problem=most)
        if not available:
            with pytest.raises(TOPRError, match="no problem has both a correct and an incorrect completion"):
                select_pairs(candidates, config, 0, 0)
            continue
        found = select_pairs(candidates, config, 0, 0)
        pairs = list(zip(found.chosen.tolist(), found.rejected.tolist(), strict=True))
        assert len(pairs) == len(set(pairs)) == min(n or 99, available) == found.description.n_train
        assert set(pairs) <= set().union(*possible)
        assert all(count <= most for count in Counter(PROBLEM[found.chosen].tolist()).values())
        assert found.description.available == available
        assert found.description.positive_share == 0.5
        assert found.description.n_problems == len(set(PROBLEM[found.chosen].tolist()))
        assert (found.description.note is None) == (n is None or n <= available)


def test_every_set_of_a_problems_pairs_is_equally_likely():
    tries = 20_000
    sizes = np.full(tries, 5)
    owner, code = sample_distinct(np.random.default_rng(0), sizes, 3)
    drawn = Counter(tuple(sorted(row)) for row in code.reshape(tries, 3).tolist())
    assert owner.tolist() == np.repeat(np.arange(tries), 3).tolist()
    assert set(drawn) == set(combinations(range(5), 3))
    assert all(abs(count - tries / 10) < 5 * np.sqrt(tries / 10) for count in drawn.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=10), st.integers(1, 16))
def test_distinct_integers_below_each_size(sizes, most):
    owner, code = sample_distinct(np.random.default_rng(1), np.array(sizes), most)
    for i, size in enumerate(sizes):
        mine = code[owner == i].tolist()
        assert len(mine) == len(set(mine)) == min(size, most)
        assert all(0 <= value < size for value in mine)


def test_pairs_are_a_function_of_seed_and_iteration():
    rng = np.random.default_rng(2)
    candidates = Candidates(np.repeat(np.arange(50), 8), rng.random(400) < 0.5)

    def draw(seed, iteration):
        found = select_pairs(candidates, compose(n_examples=100, pairs_per_problem=4), seed, iteration)
        return found.chosen.tolist(), found.rejected.tolist()

    assert draw(0, 0) == draw(0, 0)
    assert draw(0, 0) != draw(1, 0) != draw(1, 1)


def test_truncated_completions_make_no_pairs_when_they_are_dropped():
    candidates = Candidates(
        np.array([0, 0, 0, 1, 1]),
        np.array([True, False, False, True, False]),
        truncated=np.array([False, True, False, False, True]),
    )
    found = select_pairs(candidates, compose(drop_truncated=True), 0, 0)
    assert (found.chosen.tolist(), found.rejected.tolist()) == ([0], [2])
