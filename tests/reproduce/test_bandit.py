"""The tabular figures: AGRO converges off-policy, the KL-regularised policy gradient does not; TOPR's Figure 2."""

from __future__ import annotations

import math

import pytest

from reproduce import tabular


@pytest.fixture(scope="module")
def convergence():
    return tabular.agro_convergence(updates=400, seeds=3)


def test_agro_converges_to_the_optimum_and_kl_pg_does_not(convergence):
    curves = convergence["kl_to_optimum"]
    for agro, kl_pg in zip(curves["agro"], curves["kl_pg"], strict=True):
        assert agro[0] == kl_pg[0] > 0.05  # both start at π_ref
        assert agro[-1] < 1e-5
        assert min(kl_pg[100:]) > 0.05  # it goes elsewhere
    assert convergence["final_kl"]["agro"] == [run[-1] for run in curves["agro"]]


def test_objectives_of_figure_2():
    data = tabular.objectives()
    for i, r in enumerate(data["ratio"]):
        positive, negative = data["positive"], data["negative"]
        assert positive["ppo"][i] == pytest.approx(min(r, 1.2))
        assert negative["ppo"][i] == pytest.approx(-max(r, 0.8))
        topr = 1 + math.log(r) if r < 1 else r if r <= 1.2 else 1.2 * (1 + math.log(r / 1.2))
        assert positive["topr"][i] == pytest.approx(topr)
        assert negative["topr"][i] == pytest.approx(-(r if r <= 1 else 1 + math.log(r)))
        if 1 <= r <= 1.2:  # "the two losses are equal on" (caption)
            assert positive["topr"][i] == pytest.approx(positive["ppo"][i])
        if 0.8 <= r <= 1:
            assert negative["topr"][i] == pytest.approx(negative["ppo"][i])
