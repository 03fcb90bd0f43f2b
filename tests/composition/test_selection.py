from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.composition.conftest import compose
from topr_exp.composition.candidates import Candidates, random_generator, repeated
from topr_exp.composition.selection import largest_set_size, select_examples, select_groups
from topr_exp.composition.training_set import select_pairs
from topr_exp.types import TOPRError

PROBLEM = np.array([0, 0, 0, 1, 1, 2, 2])  # unequal groups
PATTERNS = [np.array(bits) for bits in product([False, True], repeat=len(PROBLEM))]


def nearly_equal(counts, total):
    """Every count within 5 standard errors of an equal share."""
    share = total / len(counts)
    return all(abs(count - share) < 5 * np.sqrt(share) for count in counts)


@pytest.mark.parametrize("n", [None, *range(1, 9)])
def test_uniform_and_positives_exhaustively(n):
    for positive in PATTERNS:
        candidates = Candidates(PROBLEM, positive)
        found = select_examples(candidates, compose(n_examples=n), 0, 0)
        assert len(found.rows) == min(n or 7, 7) == found.description.n_train
        assert (np.diff(found.rows) > 0).all()
        config = compose("positives", n_examples=n)
        if not positive.any():
            with pytest.raises(TOPRError, match="compose=positives: none of the 7 completions is correct"):
                select_examples(candidates, config, 0, 0)
            continue
        found = select_examples(candidates, config, 0, 0)
        assert len(found.rows) == min(n or 7, positive.sum())
        assert positive[found.rows].all()
        assert found.description.positive_share == 1


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.6])
@pytest.mark.parametrize("n", [None, *range(1, 9)])
def test_proportion_exhaustively(share, n):
    for positive in PATTERNS:
        right, wrong = int(positive.sum()), int((~positive).sum())
        fits = [m for m in range(1, 8) if round(share * m) <= right and m - round(share * m) <= wrong]
        config = compose("proportion", n_examples=n, positive_share=share)
        if (n is None and right and wrong) or n in fits:
            found = select_examples(Candidates(PROBLEM, positive), config, 0, 0)
            expected = n or max(fits)
            assert len(found.rows) == len(set(found.rows.tolist())) == expected
            assert positive[found.rows].sum() == round(share * expected) == found.description.n_positive
        else:
            with pytest.raises(TOPRError, match=f"compose.positive_share={share}.* available"):
                select_examples(Candidates(PROBLEM, positive), config, 0, 0)


def test_proportion_names_what_is_available():
    positive = np.arange(2000) < 212
    config = compose("proportion", n_examples=1000, positive_share=0.5)
    with pytest.raises(TOPRError) as error:
        select_examples(Candidates(np.arange(2000), positive), config, 0, 0)
    assert str(error.value) == (
        "compose.positive_share=0.5 with compose.n_examples=1000 needs 500 correct completions; "
        "212 are available (enough for compose.n_examples=425)"
    )
    with pytest.raises(TOPRError, match="needs 500 incorrect completions; 212 are available"):
        select_examples(Candidates(np.arange(2000), ~positive), config, 0, 0)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.01, 0.99))
def test_largest_set_is_the_largest(right, wrong, share):
    def fits(n):
        return round(share * n) <= right and n - round(share * n) <= wrong

    assert largest_set_size(right, wrong, share) == max(n for n in range(right + wrong + 1) if fits(n))


def test_largest_set_where_rounding_admits_many():
    assert largest_set_size(60, 0, 0.99) == 50  # 49.5 rounds to 50


@pytest.mark.parametrize("n", [None, *range(1, 9)])
def test_anna_karenina_exhaustively(n):
    for positive in PATTERNS:
        firsts = {min(np.flatnonzero((q == PROBLEM) & positive)) for q in set(PROBLEM[positive])}
        negatives = int((~positive).sum())
        found = select_examples(Candidates(PROBLEM, positive), compose("anna_karenina", n_examples=n), 0, 0)
        rows = set(found.rows.tolist())
        kept = {row for row in rows if positive[row]}
        assert len(rows) == len(found.rows) == min(n or 7, len(firsts) + negatives)
        assert kept == firsts if n is None or n >= len(firsts) else kept < firsts
        told = not kept or (n is not None and (n > len(rows) or n <= len(firsts)))
        assert (found.description.note is not None) == told


def test_anna_karenina_takes_the_first_in_sample_order_of_unsorted_problems():
    problem = np.array([5, 3, 5, 3, 5])
    positive = np.array([False, True, True, True, True])
    found = select_examples(Candidates(problem, positive), compose("anna_karenina"), 0, 0)
    assert found.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("config", "size", "sets"),
    [
        (compose(n_examples=2), 2, 10),
        (compose("positives", n_examples=2), 2, 3),
        (compose("proportion", n_examples=2, positive_share=0.5), 2, 6),
        (compose("anna_karenina", n_examples=3), 3, 2),  # two firsts and one of two negatives
    ],
)
def test_every_set_is_equally_likely_over_seeds(config, size, sets):
    candidates = Candidates(np.array([0, 0, 0, 1, 1]), np.array([True, True, False, False, True]))
    drawn = Counter(tuple(select_examples(candidates, config, seed, 0).rows.tolist()) for seed in range(1500))
    assert len(drawn) == sets
    assert all(len(rows) == size for rows in drawn)
    assert nearly_equal(drawn.values(), 1500)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_candidates_any_settings(data):
    size = data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    candidates = Candidates(rng.integers(0, 6, size), rng.random(size) < 0.4, truncated=rng.random(size) < 0.2)
    name = data.draw(st.sampled_from(["uniform", "positives", "proportion", "anna_karenina"]))
    config = compose(
        name,
        n_examples=data.draw(st.none() | st.integers(1, 50)),
        positive_share=0.3 if name == "proportion" else None,
        drop_truncated=data.draw(st.booleans()),
    )
    positive = candidates.positive[~candidates.truncated] if config.drop_truncated else candidates.positive
    right, wrong, n = int(positive.sum()), int((~positive).sum()), config.n_examples
    impossible = not len(positive) or (name == "positives" and not right)
    if name == "proportion":
        m = largest_set_size(right, wrong, 0.3) if n is None else n
        impossible |= (not (right and wrong) and n is None) or round(0.3 * m) > right or m - round(0.3 * m) > wrong
    if impossible:
        with pytest.raises(TOPRError, match=r"\A.*\Z"):  # one line
            select_examples(candidates, config, 1, 2)
        return
    found = select_examples(candidates, config, 1, 2)
    rows, description = found.rows, found.description
    assert len(rows) == len(set(rows.tolist())) == description.n_train <= description.available
    assert rows.tolist() == select_examples(candidates, config, 1, 2).rows.tolist()
    assert description.positive_share == candidates.positive[rows].mean()
    assert description.n_problems == len(set(candidates.problem[rows].tolist()))
    if config.drop_truncated:
        assert not candidates.truncated[rows].any()
    if config.n_examples is not None:
        assert len(rows) == min(config.n_examples, description.available)


def test_seed_iteration_and_purpose_each_change_the_draw():
    streams = [(0, 0, "a"), (1, 0, "a"), (0, 1, "a"), (0, 0, "b")]
    first = [random_generator(*stream).integers(1 << 62) for stream in streams]
    assert len(set(first)) == 4
    assert first == [random_generator(*stream).integers(1 << 62) for stream in streams]


def test_more_than_there_is_takes_all_and_says_so():
    found = select_examples(Candidates(PROBLEM, PATTERNS[5]), compose(n_examples=50_000), 0, 0)
    assert found.rows.tolist() == list(range(7))
    assert found.description.note == "compose.n_examples=50000 is more than there are: all 7 completions are used"
    assert select_examples(Candidates(PROBLEM, PATTERNS[5]), compose(n_examples=7), 0, 0).description.note is None


def test_nothing_to_train_on_is_an_error():
    none = Candidates(np.zeros(0, dtype=int), np.zeros(0, dtype=bool))
    with pytest.raises(TOPRError, match="no completion to compose"):
        select_examples(none, compose(), 0, 0)
    cut = Candidates(PROBLEM, PATTERNS[5], truncated=np.ones(7, dtype=bool))
    with pytest.raises(TOPRError, match=r"compose\.drop_truncated=true leaves nothing: all 7 completions"):
        select_examples(cut, compose(drop_truncated=True), 0, 0)


def test_whole_groups_only():
    problem = np.array([9, 4, 9, 4, 9, 7, 2, 2])  # 7 has a single completion
    candidates = Candidates(problem, problem == 9)
    seen = set()
    for seed in range(60):
        found = select_groups(candidates, compose(n_examples=5), seed, 0)
        taken = set(problem[found.rows].tolist())
        assert 7 not in taken
        assert found.rows.tolist() == np.flatnonzero(np.isin(problem, list(taken))).tolist()
        assert found.description.n_train == len(found.rows) <= 5
        seen.add(frozenset(taken))
    assert seen == {frozenset(s) for s in ([9, 4], [9, 2], [4, 2])}
    assert len(select_groups(candidates, compose(), 0, 0).rows) == 7
    fewer = select_groups(Candidates(np.repeat(range(4), 4), np.repeat(True, 16)), compose(n_examples=10), 0, 0)
    assert fewer.description.note == "compose.n_examples=10: 8 completions are used, the whole groups that fit"


def test_groups_that_cannot_be_had():
    with pytest.raises(TOPRError, match="no problem has two or more completions"):
        select_groups(Candidates(np.arange(4), np.ones(4, dtype=bool)), compose(), 0, 0)
    with pytest.raises(TOPRError, match=r"compose\.n_examples=3 is less than the 4 completions of one problem"):
        select_groups(Candidates(np.zeros(4, dtype=int), np.ones(4, dtype=bool)), compose(n_examples=3), 0, 0)


def test_a_million_candidates_take_seconds_and_little_memory():
    rng = np.random.default_rng(0)
    size = 1_000_000
    candidates = Candidates(
        np.repeat(np.arange(size // 16, dtype=np.int32), 16),
        rng.random(size) < 0.3,
        truncated=rng.random(size) < 0.05,
        length=rng.integers(1, 512, size).astype(np.int32),
        level=rng.integers(1, 6, size).astype(np.int8),
    )
    for name in ("uniform", "positives", "proportion", "anna_karenina"):
        config = compose(name, n_examples=200_000, positive_share=0.5 if name == "proportion" else None)
        start = time.perf_counter()
        assert len(select_examples(candidates, config, 0, 0).rows) == 200_000
        assert time.perf_counter() - start < 5
    tracemalloc.start()
    select_examples(candidates, compose(), 0, 0)
    select_pairs(candidates, compose(), 0, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6


SOLVED = Candidates(
    np.repeat([0, 1, 2, 3], 4),
    np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]], dtype=bool).ravel(),
    truncated=np.tile([False, False, False, True], 4),
    duplicate=np.tile([False, True, False, False], 4),
)


@pytest.mark.parametrize(
    ("rate", "problems"),
    [
        ((0.25, 0.75), [1, 2]),
        ((0.0, 0.25), [0, 1]),
        ((0.26, 1.0), [2, 3]),
        ((0.75, 0.75), [2]),
        ((0.0, 1.0), [0, 1, 2, 3]),
    ],
)
def test_pass_rate_keeps_problems_by_their_share_of_correct_ones(rate, problems):
    config = compose(pass_rate=list(rate))
    for select in (select_examples, select_groups):
        found = select(SOLVED, config, 0, 0)
        assert sorted(set(SOLVED.problem[found.rows].tolist())) == problems
        assert len(found.rows) == 4 * len(problems)
        note = f"compose.pass_rate={list(rate)} keeps {len(problems)} of 4 problems"
        assert found.description.note == note
    both = compose(pass_rate=list(rate), drop_truncated=True)  # the share is that of all completions
    assert sorted(set(SOLVED.problem[select_examples(SOLVED, both, 0, 0).rows].tolist())) == problems
    mixed = sorted({1, 2} & set(problems))
    if mixed:
        pairs = select_pairs(SOLVED, config, 0, 0)
        assert sorted(set(SOLVED.problem[pairs.chosen].tolist())) == mixed


def test_no_problem_of_that_pass_rate():
    message = r"compose\.pass_rate=\[0\.3, 0\.7\] leaves nothing: no problem is solved so often"
    for select in (select_examples, select_groups, select_pairs):
        with pytest.raises(TOPRError, match=message):
            select(SOLVED, compose(pass_rate=[0.3, 0.7]), 0, 0)


def test_duplicates_are_dropped_but_for_the_first():
    found = select_examples(SOLVED, compose(duplicates="drop"), 0, 0)
    assert found.rows.tolist() == np.flatnonzero(~SOLVED.duplicate).tolist()
    assert found.description.note == "4 of 16 completions are repetitions"
    found = select_examples(SOLVED, compose(duplicates="drop", drop_truncated=True), 0, 0)
    assert found.rows.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_what_repeats_is_the_same_tokens_for_the_same_problem():
    tokens = [np.array(one, np.int32) for one in ([1, 2], [1, 2], [1], [1, 2], [1, 2], [2, 1], [], [])]
    problem = np.array([0, 0, 0, 1, 1, 1, 2, 0])
    assert repeated(problem, tokens).tolist() == [False, True, False, False, True, False, False, False]


MIXED = Candidates(
    np.repeat(np.arange(4), 5),
    np.tile([True, False, False, True, False], 4),
    imported=np.tile([False, False, False, True, True], 4),
)


@pytest.mark.parametrize(("share", "n", "expected"), [(0.25, 12, (3, 9)), (0.5, None, (8, 9)), (0.3, None, (5, 12))])
def test_a_mix_has_exactly_its_share_of_imported_completions(share, n, expected):
    found = select_examples(MIXED, compose(mix=share, n_examples=n), 0, 0)
    imported = int(MIXED.imported[found.rows].sum())
    assert (imported, len(found.rows) - imported) == expected
    assert len(set(found.rows.tolist())) == len(found.rows)
    assert found.description.note.startswith(f"compose.mix={share:g}: {expected[0]} imported and {expected[1]} sampled")
    others = {tuple(select_examples(MIXED, compose(mix=share, n_examples=n), seed, 0).rows) for seed in range(9)}
    assert len(others) > 1, "which ones is drawn by the seed"


def test_a_mix_of_positives_alone():
    found = select_examples(MIXED, compose("positives", mix=0.5), 0, 0)
    assert MIXED.positive[found.rows].all()
    assert (found.description.n_train, int(MIXED.imported[found.rows].sum())) == (8, 4)


def test_a_mix_of_more_than_there_is():
    with pytest.raises(TOPRError) as caught:
        select_examples(MIXED, compose(mix=0.9, n_examples=20), 0, 0)
    assert str(caught.value) == (
        "compose.mix=0.9 with compose.n_examples=20 needs 18 imported completions; 8 are available "
        "(enough for compose.n_examples=9)"
    )
    alone = Candidates(np.arange(3), np.ones(3, bool), imported=np.zeros(3, bool))
    message = "compose.mix=0.5 needs imported and sampled completions; 0 imported and 3 sampled are available"
    with pytest.raises(TOPRError, match=message):
        select_examples(alone, compose(mix=0.5), 0, 0)
