"""Selection of what is trained on: each rule over all patterns of verdicts, and one line for what can't be had."""

import statistics
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.by_hand import CORRECT, verdict_matrix
from tests.conftest import each_row, make_graded, refused
from topr_exp.composition.draws import random_generator
from topr_exp.composition.problem_groups import group_statistics
from topr_exp.composition.selection import PAIRS_PER_PROBLEM, select
from topr_exp.config.groups import ComposeConfig

PROBLEM = np.array([0, 0, 0, 1, 1, 2, 2])  # unequal groups
PATTERNS = list(map(np.array, product([False, True], repeat=len(PROBLEM))))
TWO_CORRECT = PATTERNS[0b101]


def compose(name="uniform", **changes):
    """The settings of `compose=name`."""
    return ComposeConfig(name=name, **changes)


def select_at_start(unit, completions, config, seed=0):
    return select(completions, config, unit, seed=seed, iteration=0)


def rows_of(selection):
    return selection.examples.ravel().tolist()


def problems_of(completions, selection):
    return set(completions.problem_index[rows_of(selection)].tolist())


def select_examples(is_correct, *words, **changes):
    """Description and rows of a selection by `compose` of completions of PROBLEM."""
    selection = select_at_start("examples", make_graded(PROBLEM, is_correct), compose(*words, **changes))
    return selection.description, rows_of(selection)


each_size = pytest.mark.parametrize("n", [None, 1, 3, 5, 8])


@each_size
def test_uniform_takes_any_without_repetition(n):
    description, rows = select_examples(TWO_CORRECT, n_examples=n)

    assert len(rows) == min(n or 7, 7) == description["n_train"]
    assert rows == sorted(set(rows))


@each_size
def test_positives_takes_correct_ones(n):
    for is_correct in PATTERNS[1:]:
        description, rows = select_examples(is_correct, "positives", n_examples=n)

        assert len(set(rows)) == min(n or 7, is_correct.sum())
        assert is_correct[rows].all()
        assert description["positive_share"] == 1


def possible_sizes(share, right, wrong):
    """The sizes of a set in which this share is correct, with so many of both kinds at hand."""
    sizes = []
    for size in range(1, right + wrong + 1):
        n_positive = round(share * size)
        if n_positive <= right and size - n_positive <= wrong:
            sizes.append(size)
    return sizes


@each_size
@pytest.mark.parametrize("share", [0.1, 0.5, 0.6])
def test_proportion_has_the_share_or_is_refused(share, n):
    changes = {"n_examples": n, "positive_share": share}
    for is_correct in PATTERNS:
        right = is_correct.sum()
        wrong = (~is_correct).sum()
        sizes = possible_sizes(share, right, wrong)
        is_possible = n in sizes or (n is None and right > 0 and wrong > 0)
        if not is_possible:
            with refused(f"compose.positive_share={share}.* available"):
                select_examples(is_correct, "proportion", **changes)
            continue

        description, rows = select_examples(is_correct, "proportion", **changes)

        assert len(rows) == len(set(rows)) == (n or max(sizes))
        assert is_correct[rows].sum() == round(share * len(rows)) == description["n_positive"]


@each_size
def test_anna_karenina_takes_the_first_correct_one_of_each_problem_and_any_incorrect_ones(n):
    for is_correct in PATTERNS:
        first_rows = set()
        for problem in set(PROBLEM[is_correct]):
            first_rows.add(np.flatnonzero((problem == PROBLEM) & is_correct)[0])

        description, rows = select_examples(is_correct, "anna_karenina", n_examples=n)

        positives = {row for row in rows if is_correct[row]}
        assert positives <= first_rows
        assert len(positives) == min(n or 7, len(first_rows))
        assert len(rows) == len(set(rows)) == min(n or 7, len(first_rows) + (~is_correct).sum())
        is_short = n is not None and (n > len(rows) or n <= len(first_rows))
        assert bool(description["note"]) == (is_short or not positives)


@pytest.mark.parametrize("n", [None, 1, 20, 1000])
def test_pairs_are_distinct_of_one_problem_and_the_correct_one_comes_first(n):
    """Of the problems 2 × 2, 5 × 10 and 2 × 4 pairs are possible."""
    order = np.random.default_rng(0).permutation(25)
    problem = np.repeat([0, 1, 2], [4, 15, 6])[order]
    is_correct = order % 3 == 0
    available = 2 * 2 + PAIRS_PER_PROBLEM + 2 * 4

    selection = select_at_start("pairs", make_graded(problem, is_correct), compose(n_examples=n))

    chosen, rejected = selection.examples.T
    pairs = set(zip(chosen.tolist(), rejected.tolist(), strict=True))
    assert (problem[chosen] == problem[rejected]).all()
    assert is_correct[chosen].all()
    assert not is_correct[rejected].any()
    assert len(pairs) == len(chosen) == min(n or 999, available)
    assert np.bincount(problem[chosen]).max() <= PAIRS_PER_PROBLEM
    description = selection.description
    assert description["n_train"] == len(chosen)
    assert description["available"] == available
    assert description["positive_share"] == 0.5
    assert bool(description["note"]) == (n == 1000)


# Sizes of three groups | of their six orders, how many draw these groups
DRAWS = """
[3, 2, 2] | {(0, 1): 2, (0, 2): 2, (1, 2): 2}
[5, 2, 2] | {(0,): 2, (1,): 1, (2,): 1, (1, 2): 2}
[3, 3, 2] | {(0,): 1, (1,): 1, (0, 2): 2, (1, 2): 2}
"""


@each_row("sizes orders", DRAWS, literals=True)
def test_groups_of_unequal_sizes_are_drawn_whole_until_the_next_does_not_fit(sizes, orders):
    """N = 5: a group that fits exactly is taken, one that doesn't ends the draw."""
    problem = np.repeat([0, 1, 2, 3], [*sizes, 1])  # the last has a single completion, and is never taken
    completions = make_graded(problem, np.ones(len(problem), bool))
    counts = Counter()
    for seed in range(600):
        selection = select_at_start("groups", completions, compose(n_examples=5), seed)
        problems = tuple(sorted(problems_of(completions, selection)))
        assert rows_of(selection) == np.flatnonzero(np.isin(problem, problems)).tolist()
        counts[problems] += 1

    assert counts.keys() == orders.keys()
    for problems, order_count in orders.items():
        assert counts[problems] / 600 == pytest.approx(order_count / 6, abs=0.08)  # four standard errors


@pytest.mark.parametrize("unit", ["examples", "groups"])
def test_each_round_draws_anew(unit):
    completions = make_graded(np.repeat(range(5), 2), np.ones(10, bool))

    draws = set()
    for number in range(20):
        selection = select(completions, compose(n_examples=4), unit, seed=0, iteration=1, round_number=number)
        draws.add(tuple(rows_of(selection)))

    assert len(draws) > 5


def test_seed_iteration_and_purpose_each_change_the_draw():
    draws = []
    for stream in ((0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b"), (0, 0, "a")):
        draws.append(random_generator(*stream).integers(1 << 62))

    assert len(set(draws)) == 4
    assert draws[-1] == draws[0], "the same again"


# ---- conditions on completions

SOLVED = make_graded(
    np.repeat([0, 1, 2, 3], 4),
    verdict_matrix("WWWW CWWW CCWC CCCC").ravel() == CORRECT,
    finish=["stop", "stop", "stop", "length"] * 4,
    tokens=[[5], [5], [6], [7]] * 4,  # the second repeats the first
)


# compose.pass_rate | the problems that it keeps
RATES = """
[0.25, 0.75] | {1, 2}
[0.0, 0.25] | {0, 1}
[0.26, 1.0] | {2, 3}
[0.0, 1.0] | {0, 1, 2, 3}
"""


@pytest.mark.parametrize("unit", ["examples", "groups", "pairs"])
@each_row("rate problems", RATES, literals=True)
def test_pass_rate_keeps_problems_by_their_share_of_correct_ones(rate, problems, unit):
    selection = select_at_start(unit, SOLVED, compose(pass_rate=rate))

    assert selection.description["note"] == f"compose.pass_rate={rate} keeps {len(problems)} of 4 problems"
    if unit == "pairs":
        problems &= {1, 2}  # which have both kinds
    assert problems_of(SOLVED, selection) == problems


def test_conditions_hold_beside_each_other():
    """Problems 1 and 2 are solved so often, of each the fourth completion was cut off."""
    config = compose(pass_rate=[0.25, 0.75], drop_truncated=True)

    for unit in ("examples", "pairs"):
        assert set(rows_of(select_at_start(unit, SOLVED, config))) == {4, 5, 6, 8, 9, 10}


# ---- lines for the user


def test_more_than_there_is_takes_all_and_says_so():
    description_of_seven, _ = select_examples(TWO_CORRECT, n_examples=7)
    description, rows = select_examples(TWO_CORRECT, n_examples=50_000)

    assert description_of_seven["note"] is None
    assert description["note"] == "compose.n_examples=50000 is more than there are: all 7 completions are used"
    assert rows == list(range(7))
    mixed = select_at_start("examples", MIXED, compose(mix=0.25, n_examples=4))
    assert mixed.description["note"] == "compose.mix=0.25: 1 imported and 3 sampled completions"


def candidates(right, wrong, **columns):
    """A completion of each of so many problems."""
    row = np.arange(right + wrong)
    return make_graded(row, row < right, **columns)


HALF = compose("proportion", n_examples=1000, positive_share=0.5)
RATE = compose(pass_rate=[0.3, 0.7])
CUT_OFF = candidates(4, 3, finish=["length"] * 7)
SAMPLED = candidates(3, 0, imported=[False] * 3)
MIXED = candidates(20, 0, imported=[False, False, False, True, True] * 4)
HALF_NEEDS = r"compose\.positive_share=0\.5 with compose\.n_examples=1000 needs 500"
NO_SUCH_RATE = r"compose\.pass_rate=\[0\.3, 0\.7\] leaves nothing: no problem is solved so often"
MIX_NEEDS = (
    r"compose\.mix=0\.9 with compose\.n_examples=20 needs 18 imported completions; "
    r"8 are available \(enough for .*9\)"
)


@pytest.mark.parametrize(
    "unit, completions, config, line",
    [
        ("examples", candidates(0, 7), compose("positives"), "positives: none of the 7 completions is correct"),
        ("examples", CUT_OFF, compose(drop_truncated=True), r"drop_truncated=true leaves nothing: all 7"),
        ("examples", candidates(212, 1788), HALF, HALF_NEEDS + r" correct .*; 212 are available \(.*425\)"),
        ("examples", candidates(1788, 212), HALF, HALF_NEEDS + r" incorrect .*; 212 are available \(.*424\)"),
        ("examples", MIXED, compose(mix=0.9, n_examples=20), MIX_NEEDS),
        ("examples", SAMPLED, compose(mix=0.5), "needs imported and sampled .*; 0 imported and 3 sampled are"),
        ("groups", candidates(4, 0), compose(), "no problem has two or more completions"),
        ("groups", SOLVED, compose(n_examples=3), "n_examples=3 is less than the 4 completions of one problem"),
        ("pairs", candidates(3, 3), compose(), "no problem has both a correct and an incorrect completion"),
        *((unit, SOLVED, RATE, NO_SUCH_RATE) for unit in ("examples", "groups", "pairs")),
    ],
)
def test_what_cannot_be_had_is_a_line_that_says_what_there_is(unit, completions, config, line):
    with refused(line):
        select_at_start(unit, completions, config)


# ---- numbers of a set


def test_a_composed_set_in_numbers():
    """Two problems of which one completion is correct at least, and three incorrect ones, of which one was cut off."""
    finishes = ["stop", "stop", "length", "length", "stop", "stop"]
    completions = make_graded([0, 0, 1, 1, 2, 2], [True] * 3 + [False] * 3, finish=finishes)

    selection = select_at_start("examples", completions, compose("anna_karenina"))

    assert selection.description == {
        "compose": "anna_karenina",
        "unit": "examples",
        "requested": None,
        "note": None,
        "available": 5,
        "n_train": 5,
        "n_positive": 2,
        "positive_share": 0.4,
        "n_problems": 3,
        "n_truncated": 2,
    }


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=30))
def test_group_statistics_are_those_of_all_rewards_of_the_problem(rows):
    problem, reward = np.array(rows).T

    group_statistic = group_statistics(problem.astype(int), reward)

    for row in range(len(rows)):
        rewards = reward[problem == problem[row]].tolist()
        std = statistics.stdev(rewards) if len(rewards) > 1 else 0
        assert group_statistic.size[row] == len(rewards)
        assert group_statistic.mean[row] == pytest.approx(statistics.mean(rewards))
        assert group_statistic.std[row] == pytest.approx(std)
        (padded_rewards,) = group_statistic.rewards_of_problems(np.array([row]))
        assert padded_rewards[: len(rewards)].tolist() == rewards
        assert (padded_rewards[len(rewards) :] == -np.inf).all()
    assert group_statistic.rewards.size == len(rows)  # no table by problem, as wide as the largest: it may be huge
