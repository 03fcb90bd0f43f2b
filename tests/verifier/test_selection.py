"""Weighted self-consistency: every election against one that is written out."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.evaluation.draws import CORRECT, INCORRECT, INVALID, ballots
from topr_exp.verifier.figures import weighted_score

C, W, X = CORRECT, INCORRECT, INVALID


def written_out(solutions):
    """The expected score of one election; solutions: (verdict, answer, approvals), answers equal when equivalent."""
    sums = defaultdict(Fraction)
    right = set()
    for verdict, answer, approvals in solutions:
        if verdict != X:
            sums[answer] += Fraction(approvals, 4)
            right |= {answer} if verdict == C else set()
    winners = [answer for answer in sums if sums[answer] == max(sums.values())]
    return sum(answer in right for answer in winners) / len(winners) if winners else 0.0


solution = st.tuples(st.sampled_from([(C, 0), (W, 1), (W, 2), (W, 3), (X, -1)]), st.integers(0, 4))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 7).flatmap(lambda k: st.lists(st.lists(solution, min_size=k, max_size=k), min_size=1, max_size=5))
)
def test_elections_equal_those_written_out(problems):
    expected = [written_out([(v, c, a) for (v, c), a in problem]) for problem in problems]
    verdicts = [[v for (v, _), _ in problem] for problem in problems]
    classes = [[c if c < 0 else 10 - c for (_, c), _ in problem] for problem in problems]  # any numbering
    approvals = [[a for _, a in problem] for problem in problems]
    found = weighted_score(ballots(np.array(verdicts), np.array(classes)), np.array(approvals))
    np.testing.assert_allclose(found, expected, atol=1e-14)
