"""What is computed without a language model: AGRO's bandit, TOPR's objectives; and what Table 2 reads of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduce import tabular
from reproduce.table2 import rows_of, selection, tallies
from tests.reproduce.test_worlds import PPO, TOPR, objectives, verifier
from tests.reproduce.worlds import World, group
from topr_exp.verifier.figures import summarise


def test_agro_converges_to_the_optimum_and_kl_pg_does_not() -> None:
    found = tabular.agro_convergence(updates=400, seeds=3)
    for agro, kl_pg in zip(found["agro"], found["kl_pg"], strict=True):
        assert agro[0] == kl_pg[0] > 0.05  # both start at π_ref
        assert agro[-1] < 1e-5
        assert min(kl_pg[100:]) > 0.05  # it goes elsewhere


def test_the_objectives_are_the_papers() -> None:
    ours, theirs = tabular.objectives(), objectives(TOPR, PPO)
    assert ours["ratio"] == theirs["ratio"]
    for sign in ("positive", "negative"):
        for name in ("topr", "ppo"):
            assert ours[sign][name] == pytest.approx(theirs[sign][name])


def test_the_slopes_are_those_of_the_curves() -> None:
    """1.2 / r at r = 3 for R = +1, and 1 for R = −1."""
    claims = [claim.evidence for claim in World("fig2", "", [], "", extra=objectives()).claims()]
    assert claims[1::2] == [f"largest slope of PPO 0, least of TOPR {slope}" for slope in ("0.4", "1")]


def test_ratios_are_those_of_the_last_updates() -> None:
    levels = {"q05_pos": -1.0, "q50_pos": 0.5, "q95_pos": 2.0}
    runs = World("fig2", "", [group("topr", 60, metrics={f"log_ratio_{name}": [9.0] * 19 + [value]
                                                         for name, value in levels.items()})], "").runs()  # fmt: skip
    assert tabular.log_ratios(runs, "positive") == pytest.approx((-1.0, 0.5, 2.0))


def test_before_is_the_base_and_after_the_last_iteration(tmp_path: Path) -> None:
    steps = {str(step): {"right": [float(step), 2.0 * step]} for step in (0, 1, 2, 10)}
    noted = {"iterations": steps, "problems": ["a", "b"], "solutions": 4, "verifications": 2}
    (tmp_path / "verification.json").write_text(json.dumps(noted))
    (found,) = tallies([({"settings": {"algo.name": "topr", "seed": 1}}, tmp_path)]).items()
    assert found == (
        '{"algo.name": "topr", "seed": 1}',
        {"before": {"right": [0.0, 0.0]}, "after": {"right": [10.0, 20.0]}, "problems": ["a", "b"], "solutions": 4,
         "verifications": 2},
    )  # fmt: skip


def test_rows_are_means_over_the_runs() -> None:
    world = World("table2", "", verifier((60, 40, 30, 35, 45), (70, 80, 8, 60, 45)), "")
    rows = rows_of(world.runs(), world.numbers())
    figures = {kind: summarise(row, resamples=2) for kind, row in rows.items()}
    assert [*rows] == ["none", "base", "topr", "oracle"]
    expected = {"none": 0.45, "base": 0.35, "topr": 0.6, "oracle": 0.8}
    assert {kind: found[selection(kind)]["value"] for kind, found in figures.items()} == pytest.approx(
        expected, abs=0.01
    )
    assert figures["base"]["accuracy"]["value"] == pytest.approx((60 + 3 * 40) / 400, abs=0.003)
    assert figures["topr"]["invalid"]["value"] == pytest.approx(0.08, abs=0.003)
