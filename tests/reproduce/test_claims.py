"""The papers' figures: intervals, and how claims are decided."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from reproduce.agro import a_nat
from reproduce.claims import Claim, above, below, between, verdict
from reproduce.learning_rates import holding
from reproduce.verifier import balanced
from tests.reproduce.made_up import made_up, named
from topr_exp.evaluation.intervals import Interval
from topr_exp.report.selection import Runs, difference


def claimed(claims: list[Claim], text: str) -> Claim:
    return next(claim for claim in claims if text in claim.text)


def test_a_difference_is_paired_by_seed_and_problem() -> None:
    rng = np.random.default_rng(1)
    correct = rng.integers(0, 7, (3, 40))
    lower = Runs([made_up("a", seed, row) for seed, row in enumerate(correct)])
    higher = Runs([made_up("b", seed, row + 1) for seed, row in enumerate(correct)][1:])
    found = difference(lower, higher)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1 / 8,) * 3)  # of every problem and seed
    assert found.seeds == 2  # those that both have
    assert difference(lower, Runs([])) is None


def test_claims_are_decided_by_the_whole_interval() -> None:
    assert above("", Interval(0.1, 0.05, 0.2, 3)).holds is True
    assert above("", Interval(0.1, -0.05, 0.2, 3)).holds is None
    assert above("", Interval(-0.1, -0.2, -0.05, 3)).holds is False
    assert below("", Interval(-0.1, -0.2, -0.05, 3)).holds is True
    assert above("", Interval(-0.01, -0.02, 0.0, 3), -0.03).holds is True
    assert above("", None).word == "undecided"
    within, wide, apart = Interval(0.0, -0.02, 0.02, 3), Interval(0.02, -0.03, 0.07, 3), Interval(0.1, 0.04, 0.2, 3)
    assert between("", [("a", within), ("b", within)], 0.03).holds is True
    assert between("", [("a", within), ("b", wide)], 0.03).holds is None
    assert between("", [("a", wide), ("b", apart)], 0.03).holds is False
    assert between("", [("a", None)], 0.03).evidence == "no runs"
    shown, not_shown, open_ = (Claim("", holds, "") for holds in (True, False, None))
    assert verdict([shown, shown]) == "shown"
    assert verdict([shown, not_shown]) == verdict([open_, shown]) == "partly"
    assert verdict([not_shown, open_]) == "undecided"
    assert verdict([not_shown, not_shown]) == "not shown"


def test_figure_1_s_verdict_follows_the_numbers() -> None:
    """The paper's ordering is shown where it is there, and not where two algorithms change places."""

    def runs(**levels: int) -> Runs:
        rng = np.random.default_rng(0)
        return Runs([made_up(algo, seed, np.clip(level + rng.integers(-1, 2, 60), 0, 8))
                     for algo, level in levels.items() for seed in range(5)])  # fmt: skip

    judge = named("fig1").judge
    assert verdict(judge(runs(naive=0, ppo=3, dpo=5, topr=7), {})) == "shown"
    claims = {claim.text: claim.holds for claim in judge(runs(naive=0, ppo=5, dpo=3, topr=7), {})}
    assert claims["DPO ends above PPO"] is False
    assert claims["naive REINFORCE collapses: most of its seeds end below half of the base's pass@1"] is True


def test_a_collapse_is_decided_by_the_share_of_seeds() -> None:
    def naive(*levels: int) -> Runs:  # of 8; the base has 2
        return Runs([made_up("naive", seed, np.full(20, level)) for seed, level in enumerate(levels)])

    def collapse(runs: Runs) -> Claim:
        return claimed(named("fig1").judge(runs, {}), "naive REINFORCE collapses")

    assert collapse(naive(0, 0, 0, 0, 0)).holds is True
    assert collapse(naive(1, 1, 1, 1, 1)).holds is False  # half of the base is not below half of it
    assert collapse(naive(0, 0, 4, 4, 4)).word == "undecided"
    assert collapse(naive(0, 0, 4, 4, 4)).evidence == "2 of 5 seeds, 40.0 [11.8, 76.9] %"
    assert collapse(naive(0, 0, 0)).holds is None  # three seeds can't show it


def test_figure_6_says_where_topr_fails_too() -> None:
    rng = np.random.default_rng(0)

    def runs(algo: str, p: float, level: int) -> list[dict[str, Any]]:
        return [made_up(algo, seed, np.clip(level + rng.integers(-1, 2, 60), 0, 8), effective_positive=p)
                for seed in range(3)]  # fmt: skip

    found = Runs(runs("topr", 0.02, 1) + runs("tis", 0.02, 0) + runs("topr", 0.5, 6) + runs("tis", 0.5, 7))
    claims = named("fig6").judge(found, {})
    assert claimed(claims, "TIS below TOPR at p̃ = 2 %").holds is True
    assert claimed(claims, "TOPR does not fail at p̃ = 2 %").holds is False  # it ends below the base, 2 of 8
    assert claimed(claims, "TIS peaks higher").holds is True


def test_a_gain_a_nat_is_compared_by_seed() -> None:
    def runs(beta: float, level: int) -> Runs:
        return Runs([made_up("agro", seed, np.full(20, level), **{"algo.beta": beta}) for seed in range(3)])

    weak, strong = runs(0.05, 6), runs(0.5, 4)  # the base: 2 of 8
    distances = {json.dumps(each["settings"], sort_keys=True): distance + 0.01 * each["settings"]["seed"]
                 for group, distance in ((weak, 2.0), (strong, 0.5)) for each in group}  # fmt: skip
    assert a_nat(weak, distances) == pytest.approx({0: 0.25, 1: 0.5 / 2.01, 2: 0.5 / 2.02})
    claims = named("agro_kl").judge(Runs([*weak, *strong]), distances)
    assert claimed(claims, "the largest β gains more a nat").holds is True
    assert claimed(claims, "a strong β slows learning").holds is True


def test_balanced_accuracy_is_not_the_share_of_the_commoner_verdict() -> None:
    """A verifier that calls everything wrong: right in 9 of 10, and in half of what counts."""
    counts = {"right_on_correct": [0, 0], "verified_correct": [2, 2],
              "right_on_incorrect": [18, 18], "verified_incorrect": [18, 18]}  # fmt: skip
    assert balanced(counts) == 0.5


def test_the_grid_that_an_algorithm_bears() -> None:
    def runs(algo: str, *levels: int) -> list[dict[str, Any]]:
        return [made_up(algo, 0, np.full(20, level), **{"optim.lr": rate})
                for rate, level in zip((1e-5, 1e-4, 1e-3), levels, strict=True)]  # fmt: skip

    others = [each for algo in ("ppo", "dpo", "is") for each in runs(algo, 5, 5, 0)]
    claim = holding(Runs([*runs("topr", 4, 7, 6), *runs("naive", 4, 0, 0), *others]))
    assert claim.holds is True
    assert "TOPR 3 of 3, naive REINFORCE 1 of 3, PPO 2 of 3" in claim.evidence
    assert holding(Runs([*runs("topr", 4, 7, 1), *runs("naive", 4, 0, 0), *others])).holds is False
    assert holding(Runs(runs("topr", 4, 7, 6))).holds is None


def test_ratios_are_compared_at_the_best_rate_of_each() -> None:
    def runs(ratio: str, *levels: int) -> list[dict[str, Any]]:
        return [made_up("tis", seed, np.full(20, level), **{"algo.ratio": ratio, "optim.lr": rate})
                for rate, level in zip((1e-4, 3e-4), levels, strict=True) for seed in range(3)]  # fmt: skip

    claims = named("ratio").judge(Runs([*runs("sequence", 3, 5), *runs("token", 6, 0)]), {})
    assert claimed(claims, "above the token one").holds is False  # 6 of 8 against 5, not 0
