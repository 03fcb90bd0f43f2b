"""TOPR's Figure 2 and AGRO's Figure 1: worlds in which their claims are true, and worlds in which they are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reproduce.tabular import objectives
from tests.reproduce.worlds import World, check_all, group

# ---- Figure 2

EQUAL = {sign: f"{sign}: TOPR equals PPO next to ratio 1" for sign in ("positive", "negative")}
FLAT = {sign: f"{sign}: beyond, PPO is flat and TOPR goes on" for sign in ("positive", "negative")}
Curve = Callable[[float], float]

# The papers' objectives for R = +1 and R = −1, ε = 0.2, b⁺ = 1.2, b⁻ = 1 (TOPR, Equations 6 and 11).
PPO: dict[str, Curve] = {"positive": lambda r: min(r, 1.2), "negative": lambda r: -max(r, 0.8)}
TOPR: dict[str, Curve] = {
    "positive": lambda r: 1 + math.log(r) if r < 1 else r if r <= 1.2 else 1.2 * (1 + math.log(r / 1.2)),
    "negative": lambda r: -r if r <= 1 else -(1 + math.log(r)),
}


def curves(topr: dict[str, Curve], ppo: dict[str, Curve]) -> dict[str, Any]:
    ratio = [i / 100 for i in range(1, 301)]
    found: dict[str, Any] = {"eps": 0.2, "ratio": ratio}
    for sign in ("positive", "negative"):
        found[sign] = {"topr": [topr[sign](r) for r in ratio], "ppo": [ppo[sign](r) for r in ratio],
                       "importance_sampling": ratio}  # fmt: skip
    return found


def figure_2() -> Sequence[World]:
    runs = [group("topr", 60), group("ppo", 50)]

    def world(what: str, topr: dict[str, Curve], ppo: dict[str, Curve], **decided: Sequence[str]) -> World:
        return World("fig2", what, runs, extra=curves({**TOPR, **topr}, {**PPO, **ppo}), **decided)

    return [
        world("the papers' objectives", {}, {}, shown=(*EQUAL.values(), *FLAT.values())),
        world("for R = +1 TOPR is a tenth steeper next to ratio 1; for R = −1 PPO is never clipped",
              {"positive": lambda r: 1.1 * r - 0.1}, {"negative": lambda r: -r},
              shown=(EQUAL["negative"], FLAT["positive"]), not_shown=(EQUAL["positive"], FLAT["negative"])),
        world("for R = −1 TOPR is a tenth steeper next to ratio 1; for R = +1 PPO is never clipped",
              {"negative": lambda r: 0.1 - 1.1 * r}, {"positive": lambda r: r},
              shown=(EQUAL["positive"], FLAT["negative"]), not_shown=(EQUAL["negative"], FLAT["positive"])),
        world("TOPR is flat too: from ratio 2 on for R = +1, below 0.3 for R = −1",
              {"positive": lambda r: min(TOPR["positive"](r), 1.2 * (1 + math.log(2 / 1.2))),
               "negative": lambda r: -max(r, 0.3) if r <= 1 else -1.0}, {},
              shown=(*EQUAL.values(),), not_shown=(*FLAT.values(),)),
        world("beyond, TOPR turns back",
              {"positive": lambda r: r if r <= 1.2 else 2.4 - r, "negative": lambda r: -r if r >= 0.8 else r - 1.6}, {},
              shown=(*EQUAL.values(),), not_shown=(*FLAT.values(),)),
    ]  # fmt: skip


def test_figure_2() -> None:
    check_all(figure_2())


def test_figure_2_s_slopes_are_those_of_the_curves() -> None:
    """1.2 / r at r = 3 for R = +1, and 1 for R = −1."""
    claims = {claim.text: claim.evidence for claim in figure_2()[0].claims()}
    assert claims[FLAT["positive"]] == "largest slope of PPO 0, least of TOPR 0.4"
    assert claims[FLAT["negative"]] == "largest slope of PPO 0, least of TOPR 1"


def test_figure_2_s_curves_are_the_papers_objectives() -> None:
    ours, theirs = objectives(), curves(TOPR, PPO)
    assert ours["ratio"] == theirs["ratio"]
    for sign in ("positive", "negative"):
        for name in ("topr", "ppo"):
            assert ours[sign][name] == pytest.approx(theirs[sign][name])


# ---- AGRO's Figure 1

REACHES = "bandit: AGRO reaches the optimum off-policy (KL below 0.001 in every seed)"
ELSEWHERE = "bandit: the KL-regularised policy gradient does not (above 0.01 in every seed)"
BELOW = "language model: the KL-regularised policy gradient ends below AGRO"


def agro_figure_1() -> Sequence[World]:
    def world(what: str, agro: Sequence[float], kl_pg: Sequence[float], levels: Any, **decided: Sequence[str]) -> World:
        groups = [group(algo, level, algo__beta=0.05) for algo, level in zip(("agro", "kl_pg"), levels, strict=True)]
        return World("agro_fig1", what, groups, extra={"final": {"agro": agro, "kl_pg": kl_pg}}, **decided)

    return [
        world("AGRO's KL to the optimum ends at 5e-4 at most, the other's at 0.02 at least; 60 % against 50",
              [1e-9, 5e-4], [0.3, 0.02], (60, 50), shown=(REACHES, ELSEWHERE, BELOW)),
        world("AGRO's KL is 0.005 in one seed, the other's too; 50 % against 60",
              [1e-9, 5e-3], [0.3, 5e-3], (50, 60), not_shown=(REACHES, ELSEWHERE, BELOW)),
        world("both reach it", [1e-9, 1e-9], [1e-9, 1e-9], (60, (85.0, 20.0, 60.0)),
              shown=(REACHES,), not_shown=(ELSEWHERE,), undecided=(BELOW,)),
        world("neither reaches it", [0.3, 0.2], [0.3, 0.2], (60, 50), shown=(ELSEWHERE, BELOW), not_shown=(REACHES,)),
    ]  # fmt: skip


def test_agro_s_figure_1() -> None:
    check_all(agro_figure_1())
