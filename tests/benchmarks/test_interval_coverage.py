"""The simulation behind docs/statistics.md decides as reports do."""

import interval_coverage
import numpy as np
import pytest

from reproduce.claims import p_value
from topr_exp.evaluation.intervals import crossed_interval


def test_a_simulated_claim_has_the_p_value_of_a_report_where_seeds_seem_not_to_differ():
    of_problems = np.array([0.9, 0.6, 0.7, 0.8])
    values = np.stack([of_problems, of_problems[::-1], np.roll(of_problems, 1)])  # three seeds of equal means
    reference = np.full_like(values, 0.5)

    (p,), _ = interval_coverage.decide(values[None], reference[None])

    assert p == pytest.approx(p_value(crossed_interval(values - reference)))
