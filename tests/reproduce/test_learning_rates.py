"""The choice of learning rates: worlds in which what is claimed of it is true, and worlds in which it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from reproduce.learning_rates import best_are_used, choose, read_rates, tried_on_models
from tests.reproduce.worlds import Group, World, group
from topr_exp.report.selection import Runs

USED = "the other figures use the best of the grid (conf/learning_rates.yaml)"
HOLDS = "TOPR ends above the base at every rate of the grid, naive REINFORCE, PPO, DPO and IS do not (means)"
EVEN = "every algorithm was tried with the same learning rates and seeds"  # said only where it is not so
GRID = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
ALGOS = ("topr", "naive", "ppo", "dpo", "is", "sft")


def runs(algo: str, levels: Mapping[float, float], **more: Any) -> list[Group]:
    """pass@1 on validation problems by learning rate; the base has 30 %."""
    return [group(algo, level, optim__lr=rate, data__test_split="validation", **more) for rate, level in levels.items()]


def worlds() -> Sequence[World]:
    conf = read_rates()

    def levels(model: str, algo: str, best: float | None = None, falls: bool = True) -> dict[float, float]:
        """70 % at the best rate, the one of conf where none is named, and 34 elsewhere; where it falls, 26 at one."""
        top = best or conf[model][algo]
        low = {"topr": None, "sft": None}.get(algo, 1e-3 if top != 1e-3 else 1e-5) if falls else None
        return {rate: 70 if rate == top else 26 if rate == low else 34 for rate in GRID}

    def world(what: str, model: str, own: Mapping[str, Mapping[float, float]] = {}, **decided: Sequence[str]) -> World:
        groups = [one for algo in ALGOS for one in runs(algo, own.get(algo) or levels(model, algo), model__name=model)]
        return World("learning_rates", what, groups, **decided)

    ties = {rate: 70 if rate in (conf["tiny"]["topr"], 1e-3) else 60 for rate in GRID}
    dips = levels("tiny", "topr") | {1e-5: 20}
    return [
        *[world(f"{model}: each is best at the rate that conf has; TOPR and positives only stay above 30 everywhere, "
                "the others fall at one rate", model, shown=(USED, HOLDS)) for model in ("tiny", "tiny_noise")],
        world("TOPR is best elsewhere, and IS falls nowhere", "tiny",
              {"topr": levels("tiny", "topr", best=1e-5), "is": levels("tiny", "is", falls=False)},
              not_shown=(USED, HOLDS)),
        world("positives only are best elsewhere, and TOPR falls at one rate", "tiny",
              {"sft": levels("tiny", "sft", best=1e-5), "topr": dips}, not_shown=(USED, HOLDS)),
        *[world(f"{algo} falls nowhere", "tiny", {algo: levels("tiny", algo, falls=False)}, shown=(USED,),
                not_shown=(HOLDS,)) for algo in ("naive", "ppo", "dpo")],
        world("TOPR's best is shared by a larger rate: the lower one counts", "tiny", {"topr": ties},
              shown=(USED, HOLDS)),
        World("learning_rates", "TOPR alone was tried", runs("topr", levels("tiny", "topr")), shown=(USED,),
              undecided=(HOLDS,)),
        World("learning_rates", "IS was not tried with one of the rates",
              [*runs("topr", levels("tiny", "topr")), *runs("is", levels("tiny", "is"))[1:]], not_shown=(EVEN,)),
        World("learning_rates", "IS was tried with other seeds",
              [*runs("topr", levels("tiny", "topr")), *runs("is", levels("tiny", "is"), seeds=(0, 1, 3))],
              not_shown=(EVEN,)),
    ]  # fmt: skip


def test_the_claims() -> None:
    for each in worlds():
        each.check()


def test_a_loss_that_conf_does_not_know_is_said_to_have_none() -> None:
    groups = [one for algo in ("topr", "mine") for one in runs(algo, {1e-4: 60, 3e-4: 40}, model__name="nowhere")]
    found = best_are_used(tried_on_models(Runs([record for each in groups for record in each.records()])), "used")
    assert [(claim.text, claim.word) for claim in found] == [("used", "not shown")]
    assert found[0].evidence.startswith("topr 0.0001 (used none); mine 0.0001 (used none)")


def test_the_choice_is_of_each_model_and_algorithm() -> None:
    """By the mean over seeds: the highest single run is at another rate."""
    levels: dict[tuple[str, str], dict[float, Any]] = {
        ("tiny", "topr"): {1e-5: (60, 60, 60), 1e-4: (85, 40, 40), 1e-3: (20, 20, 20)},
        ("tiny", "is"): {1e-5: (40, 40, 40), 1e-4: (85, 20, 20), 1e-3: (50, 45, 50)},
        ("tiny_noise", "topr"): {1e-5: (60, 60, 60), 1e-4: (60, 61, 60), 1e-3: (20, 20, 20)},
        ("tiny_noise", "is"): {1e-5: (40, 40, 40), 1e-4: (40, 40, 40), 1e-3: (20, 20, 20)},
    }
    groups = [one for (model, algo), each in levels.items() for one in runs(algo, each, model__name=model)]
    records = [record for each in groups for record in each.records()]
    assert choose(tried_on_models(Runs(records))) == {
        "tiny": {"topr": 1e-5, "is": 1e-3},
        "tiny_noise": {"topr": 1e-4, "is": 1e-5},
    }
    with pytest.raises(ValueError, match="tiny: the algorithms were not tried with the same learning rates and seeds"):
        choose(tried_on_models(Runs(records[1:])))
