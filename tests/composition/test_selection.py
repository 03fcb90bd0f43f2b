import statistics
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import make_completions, make_graded, refused
from topr_exp.composition.draws import random_generator
from topr_exp.composition.problem_groups import group_statistics, is_repetition
from topr_exp.composition.selection import select_examples, select_groups, select_pairs
from topr_exp.config.groups import ComposeConfig
from topr_exp.sampling.completions import Completions
from topr_exp.types import TOPRError

PROBLEM = np.array([0, 0, 0, 1, 1, 2, 2])  # unequal groups
PATTERNS = [np.array(bits) for bits in product([False, True], repeat=len(PROBLEM))]


def compose(name="uniform", **changes):
    """The settings of `compose=name`, with 16 pairs a problem unless they are changed."""
    return ComposeConfig(name=name, **changes)


SIZES = pytest.mark.parametrize("n", [None, *range(1, 9)])


@SIZES
def test_uniform_and_positives_exhaustively(n):
    for positive in PATTERNS:
        candidates = make_graded(PROBLEM, positive)
        found = select_examples(candidates, compose(n_examples=n), 0, 0)
        assert len(found.examples.ravel()) == min(n or 7, 7) == found.description["n_train"]
        assert (np.diff(found.examples.ravel()) > 0).all()
        config = compose("positives", n_examples=n)
        if not positive.any():
            with pytest.raises(TOPRError, match="compose=positives: none of the 7 completions is correct"):
                select_examples(candidates, config, 0, 0)
            continue
        found = select_examples(candidates, config, 0, 0)
        assert len(found.examples.ravel()) == min(n or 7, positive.sum())
        assert positive[found.examples.ravel()].all()
        assert found.description["positive_share"] == 1


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.6])
@SIZES
def test_proportion_exhaustively(share, n):
    for positive in PATTERNS:
        right, wrong = int(positive.sum()), int((~positive).sum())
        fits = [m for m in range(1, 8) if round(share * m) <= right and m - round(share * m) <= wrong]
        config = compose("proportion", n_examples=n, positive_share=share)
        if (n is None and right and wrong) or n in fits:
            found = select_examples(make_graded(PROBLEM, positive), config, 0, 0)
            expected = n or max(fits)
            assert len(found.examples.ravel()) == len(set(found.examples.ravel().tolist())) == expected
            assert positive[found.examples.ravel()].sum() == round(share * expected) == found.description["n_positive"]
        else:
            with pytest.raises(TOPRError, match=f"compose.positive_share={share}.* available"):
                select_examples(make_graded(PROBLEM, positive), config, 0, 0)


@SIZES
def test_anna_karenina_exhaustively(n):
    for positive in PATTERNS:
        firsts = {min(np.flatnonzero((q == PROBLEM) & positive)) for q in set(PROBLEM[positive])}
        negatives = int((~positive).sum())
        found = select_examples(make_graded(PROBLEM, positive), compose("anna_karenina", n_examples=n), 0, 0)
        rows = set(found.examples.ravel().tolist())
        kept = {row for row in rows if positive[row]}
        assert len(rows) == len(found.examples.ravel()) == min(n or 7, len(firsts) + negatives)
        assert kept == firsts if n is None or n >= len(firsts) else kept < firsts
        told = not kept or (n is not None and (n > len(rows) or n <= len(firsts)))
        assert (found.description["note"] is not None) == told


def test_seed_iteration_and_purpose_each_change_the_draw():
    streams = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    first = [random_generator(*stream).integers(1 << 62) for stream in streams]
    assert len(set(first)) == 4
    assert first == [random_generator(*stream).integers(1 << 62) for stream in streams]


def test_more_than_there_is_takes_all_and_says_so():
    found = select_examples(make_graded(PROBLEM, PATTERNS[5]), compose(n_examples=50_000), 0, 0)
    assert found.examples.ravel().tolist() == list(range(7))
    assert found.description["note"] == "compose.n_examples=50000 is more than there are: all 7 completions are used"
    assert select_examples(make_graded(PROBLEM, PATTERNS[5]), compose(n_examples=7), 0, 0).description["note"] is None


def test_whole_groups_only():
    problem = np.array([9, 4, 9, 4, 9, 7, 2, 2])  # 7 has a single completion
    candidates = make_graded(problem, problem == 9)
    seen = set()
    for seed in range(60):
        found = select_groups(candidates, compose(n_examples=5), seed, 0)
        taken = set(problem[found.examples.ravel()].tolist())
        assert 7 not in taken
        assert found.examples.ravel().tolist() == np.flatnonzero(np.isin(problem, list(taken))).tolist()
        assert found.description["n_train"] == len(found.examples.ravel()) <= 5
        seen.add(frozenset(taken))
    assert seen == {frozenset(s) for s in ([9, 4], [9, 2], [4, 2])}
    rounds = [select_groups(candidates, compose(n_examples=5), 0, 1, f" of round {number}") for number in range(20)]
    assert len({tuple(found.examples.ravel()) for found in rounds}) > 1, "each round draws anew"
    rounds = [select_examples(candidates, compose(n_examples=5), 0, 1, f" of round {number}") for number in range(20)]
    assert len({tuple(found.examples.ravel()) for found in rounds}) > 10
    assert len(select_groups(candidates, compose(), 0, 0).examples.ravel()) == 7
    fewer = select_groups(make_graded(np.repeat(range(4), 4), np.repeat(True, 16)), compose(n_examples=10), 0, 0)
    assert fewer.description["note"] == "compose.n_examples=10: 8 completions are used, the whole groups that fit"


@pytest.mark.parametrize(
    ("sizes", "drawn"),
    [
        ((3, 2, 2), {(0, 1): 1 / 3, (0, 2): 1 / 3, (1, 2): 1 / 3}),
        ((5, 2, 2), {(0,): 1 / 3, (1,): 1 / 6, (2,): 1 / 6, (1, 2): 1 / 3}),
        ((3, 3, 2), {(0,): 1 / 6, (1,): 1 / 6, (0, 2): 1 / 3, (1, 2): 1 / 3}),
    ],
)
def test_groups_of_unequal_sizes_are_drawn_until_the_next_does_not_fit(sizes, drawn):
    """N = 5, over all orders of three groups: a group that fits exactly is taken, one that doesn't ends the draw."""
    problem = np.repeat(range(3), sizes)
    candidates = make_graded(problem, np.ones(sum(sizes), bool))
    counts = Counter(
        tuple(
            np.unique(
                candidates.problem_index[select_groups(candidates, compose(n_examples=5), seed, 0).examples]
            ).tolist()
        )
        for seed in range(600)
    )
    assert counts.keys() == drawn.keys()
    for groups, share in drawn.items():
        assert counts[groups] / 600 == pytest.approx(share, abs=0.08)  # four standard errors


SOLVED = make_graded(
    np.repeat([0, 1, 2, 3], 4),
    np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]], dtype=bool).ravel(),
    finish=["stop", "stop", "stop", "length"] * 4,
    tokens=[[5], [5], [6], [7]] * 4,  # the second repeats the first
)


RATES = {(0.25, 0.75): [1, 2], (0.0, 0.25): [0, 1], (0.26, 1.0): [2, 3], (0.75, 0.75): [2], (0.0, 1.0): [0, 1, 2, 3]}


@pytest.mark.parametrize(("rate", "problems"), RATES.items())
def test_pass_rate_keeps_problems_by_their_share_of_correct_ones(rate, problems):
    config = compose(pass_rate=list(rate))
    for select in (select_examples, select_groups):
        found = select(SOLVED, config, 0, 0)
        assert sorted(set(SOLVED.problem_index[found.examples.ravel()].tolist())) == problems
        assert len(found.examples.ravel()) == 4 * len(problems)
        note = f"compose.pass_rate={list(rate)} keeps {len(problems)} of 4 problems"
        assert found.description["note"] == note
    both = compose(pass_rate=list(rate), drop_truncated=True)  # the share is that of all completions
    assert sorted(set(SOLVED.problem_index[select_examples(SOLVED, both, 0, 0).examples.ravel()].tolist())) == problems
    mixed = sorted({1, 2} & set(problems))
    if mixed:
        pairs = select_pairs(SOLVED, config, 0, 0)
        assert sorted(set(SOLVED.problem_index[pairs.examples[:, 0]].tolist())) == mixed


@pytest.mark.parametrize("rate", [None, [0.25, 0.75]])
@pytest.mark.parametrize("drop_truncated", [False, True])
@pytest.mark.parametrize("duplicates", ["keep", "drop"])
def test_each_condition_on_completions_holds_beside_the_others(rate, drop_truncated, duplicates):
    settings = {"pass_rate": rate, "drop_truncated": drop_truncated, "duplicates": duplicates}
    expected = []
    for row, problem in enumerate(SOLVED.problem_index):
        solved_often_enough = rate is None or problem in (1, 2)
        whole = not (drop_truncated and row % 4 == 3)
        first = not (duplicates == "drop" and row % 4 == 1)
        if solved_often_enough and whole and first:
            expected.append(row)
    assert select_examples(SOLVED, compose(**settings), 0, 0).examples.ravel().tolist() == expected
    pairs = {
        (right, wrong)
        for right, wrong in product(expected, expected)
        if SOLVED.problem_index[right] == SOLVED.problem_index[wrong]
        and SOLVED.is_correct[right]
        and not SOLVED.is_correct[wrong]
    }
    chosen = select_pairs(SOLVED, compose(**settings), 0, 0).examples
    assert {*map(tuple, chosen.tolist())} == pairs


def test_what_repeats_is_the_same_tokens_for_the_same_problem():
    tokens = [np.array(one, np.int32) for one in ([1, 2], [1, 2], [1], [1, 2], [1, 2], [2, 1], [], [])]
    problem = np.array([0, 0, 0, 1, 1, 1, 2, 0])
    assert is_repetition(make_completions(problem, tokens=tokens)).tolist() == [
        False,
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


MIXED = make_graded(
    np.repeat(np.arange(4), 5),
    np.tile([True, False, False, True, False], 4),
    imported=[False, False, False, True, True] * 4,
)


def candidates(right: int, wrong: int) -> Completions:
    return make_graded(np.arange(right + wrong), np.arange(right + wrong) < right)


HALF, RATE = compose("proportion", n_examples=1000, positive_share=0.5), compose(pass_rate=[0.3, 0.7])
CUT = make_graded(PROBLEM, PATTERNS[5], finish=["length"] * 7)
FOUR = make_graded(np.zeros(4, int), np.ones(4, bool))
SAMPLED = make_graded(np.arange(3), np.ones(3, bool), imported=[False] * 3)
SHARE = r"compose\.positive_share=0\.5 with compose\.n_examples=1000 needs 500"
NO_RATE = r"compose\.pass_rate=\[0\.3, 0\.7\] leaves nothing: no problem is solved so often"
MIX = r"compose\.mix=0\.9 with compose\.n_examples=20 needs 18 imported completions; 8 are available \(enough for .*9\)"


@pytest.mark.parametrize(
    ("select", "given", "config", "line"),
    [
        (select_examples, CUT, compose(drop_truncated=True), r"drop_truncated=true leaves nothing: all 7 completions"),
        (select_examples, candidates(212, 1788), HALF, SHARE + r" correct .*; 212 are available \(enough for .*425\)"),
        (
            select_examples,
            candidates(1788, 212),
            HALF,
            SHARE + r" incorrect .*; 212 are available \(enough for .*424\)",
        ),
        (select_examples, MIXED, compose(mix=0.9, n_examples=20), MIX),
        (select_examples, SAMPLED, compose(mix=0.5), "needs imported and sampled .*; 0 imported and 3 sampled are"),
        (select_groups, candidates(4, 0), compose(), "no problem has two or more completions"),
        (select_groups, FOUR, compose(n_examples=3), r"n_examples=3 is less than the 4 completions of one problem"),
        *((select, SOLVED, RATE, NO_RATE) for select in (select_examples, select_groups, select_pairs)),
    ],
)
def test_what_cannot_be_had_is_a_line_that_says_what_there_is(select, given, config, line):
    with refused(line):
        select(given, config, 0, 0)


# ---- pairs


MIXED_UP = np.array([0, 1, 0, 1, 2, 0, 1])


@pytest.mark.parametrize("most", [1, 2, 3, 16])
@pytest.mark.parametrize("n", [None, 1, 3, 100])
def test_pairs_exhaustively(most, n, monkeypatch):
    monkeypatch.setattr("topr_exp.composition.selection.PAIRS_PER_PROBLEM", most)
    for positive in PATTERNS:
        right, wrong = np.flatnonzero(positive), np.flatnonzero(~positive)
        pairs = [(int(i), int(j)) for i in right for j in wrong if MIXED_UP[i] == MIXED_UP[j]]
        possible = [{(i, j) for i, j in pairs if MIXED_UP[i] == q} for q in range(3)]
        available = sum(min(most, len(pairs)) for pairs in possible)
        candidates, config = make_graded(MIXED_UP, positive), compose(n_examples=n)
        if not available:
            with pytest.raises(TOPRError, match="no problem has both a correct and an incorrect completion"):
                select_pairs(candidates, config, 0, 0)
            continue
        found = select_pairs(candidates, config, 0, 0)
        taken = list(zip(*found.examples.T.tolist(), strict=True))
        assert len(taken) == len(set(taken)) == min(n or 99, available) == found.description["n_train"]
        assert set(taken) <= set().union(*possible)
        assert all(count <= most for count in Counter(MIXED_UP[found.examples[:, 0]].tolist()).values())
        assert found.description["available"] == available
        assert found.description["positive_share"] == 0.5
        assert found.description["n_problems"] == len(set(MIXED_UP[found.examples[:, 0]].tolist()))
        assert (found.description["note"] is None) == (n is None or n <= available)


def test_a_composed_set_in_numbers():
    candidates = make_graded(
        [0, 0, 1, 1, 2, 2], [True] * 3 + [False] * 3, finish=["stop", "stop", "length", "length", "stop", "stop"]
    )
    found = select_examples(candidates, compose("anna_karenina"), 0, 0).description
    assert found == {
        "compose": "anna_karenina", "unit": "examples", "requested": None, "available": 5, "n_train": 5,
        "n_positive": 2, "positive_share": 0.4, "n_problems": 3, "n_truncated": 2, "note": None,
    }  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=30))
def test_group_statistics_are_those_of_all_rewards_of_the_problem(rows):
    problem, reward = np.array([q for q, _ in rows]), np.array([r for _, r in rows])
    found = group_statistics(problem, reward)
    for i, (q, _) in enumerate(rows):
        group = [r for other, r in rows if other == q]
        assert found.size[i] == len(group)
        assert found.mean[i] == pytest.approx(statistics.mean(group))
        assert found.std[i] == pytest.approx(statistics.stdev(group) if len(group) > 1 else 0)
        if len(set(group)) == 1:
            assert found.std[i] == 0
