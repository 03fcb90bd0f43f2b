import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topr_exp.composition.training_set import baseline_for, effective_positive
from topr_exp.types import TOPRError

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


def test_the_papers_ten_percent_set():
    # With p = 0.1, giving positives the weight 1.8 and negatives 0.2 makes both halves equal.
    assert effective_positive(0.1, -0.8) == pytest.approx(0.5)
    assert baseline_for(0.1, 0.5) == pytest.approx(-0.8)


@pytest.mark.parametrize(("p", "kind"), [(0.0, "incorrect"), (1.0, "correct")])
def test_a_set_of_one_kind_has_no_baseline_for_a_proportion(p, kind):
    with pytest.raises(TOPRError, match=f"effective_positive=0.2 .* all completions .* are {kind}") as error:
        baseline_for(p, 0.2)
    assert "\n" not in str(error.value)
    assert effective_positive(p, 0.3) == p  # the other direction is fine


@pytest.mark.parametrize(("p", "c"), [(0.0, -1.0), (1.0, 1.0)])
def test_a_baseline_that_silences_every_example_is_refused(p, c):
    with pytest.raises(TOPRError, match=f"baseline={c:g} gives every example the weight 0"):
        effective_positive(p, c)
