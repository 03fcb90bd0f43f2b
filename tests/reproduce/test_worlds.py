"""Claims in worlds where a reader knows what is true: the code's words must be those of the sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from reproduce.figure import key_of
from tests.reproduce.worlds import Group, figure_named, group, planted_runs

pytestmark = pytest.mark.extended

TRUE, FALSE, OPEN = "shown", "reversed", "undecided"
SIX_SEEDS = range(6)  # of five, Clopper and Pearson's interval can't tell most from few


@dataclass(frozen=True)
class World:
    """Runs of one model, and which claims of a figure are true of them."""

    figure: str
    word: str  # of every claim but the exceptions
    groups: Sequence[Group]
    exceptions: Mapping[str, str] = field(default_factory=dict)  # the word by a part of the sentence
    extra: Mapping[str, Any] = field(default_factory=dict)


def invalid_completions(**levels):
    """Groups with these shares of invalid completions; the base's is 20 %."""
    return [group(algo, 60, invalid=level) for algo, level in levels.items()]


def betas(algo, *levels):
    return [group(algo, level, algo__beta=beta) for beta, level in zip((0.05, 1.0), levels, strict=True)]


def distances(groups, kl_of):
    """The KL of each run by its β, with 2 % more for each seed."""
    kls = {}
    for record in planted_runs(*groups):
        settings = record["settings"]
        kls[key_of(record)] = kl_of(settings["algo.beta"]) * (1 + 0.02 * settings["seed"])
    return kls


AGRO_ABOVE = betas("agro", 60, 45) + betas("kl_pg", 50, 35)
AGRO_BELOW = betas("agro", 45, 60) + betas("kl_pg", 50, 70)
WORLDS = [
    World("fig1", TRUE, [group("naive", 5, seeds=SIX_SEEDS), group("ppo", 40), group("dpo", 55), group("topr", 70)]),
    World(
        "fig1",  # naive REINFORCE stays above half of the base's 30 %, PPO gains 24 of TOPR's 40 points
        FALSE,
        [group("naive", 18, seeds=SIX_SEEDS), group("ppo", 54), group("dpo", 50), group("topr", 70)],
        {"TOPR ends above": TRUE},
    ),
    World("fig3", TRUE, invalid_completions(topr=7, naive=19, ppo=14, dpo=14)),
    World("fig3", FALSE, invalid_completions(topr=14, naive=7, ppo=7, dpo=1)),
    World("agro_kl", TRUE, AGRO_ABOVE, {"on-policy": OPEN}, distances(AGRO_ABOVE, lambda beta: 1 / (5 * beta))),
    World("agro_kl", FALSE, AGRO_BELOW, {"on-policy": OPEN}, distances(AGRO_BELOW, lambda beta: 5 * beta)),
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"{world.figure} {world.word}")
def test_a_sentence_is_true_where_the_world_is_so(world):
    claims = figure_named(world.figure).judge(planted_runs(*world.groups), dict(world.extra))

    assert claims
    for claim in claims:
        expected = world.word
        for part, word in world.exceptions.items():
            if part in claim.text:
                expected = word
        assert claim.word.replace("not shown", FALSE) == expected, f"{claim.text}: {claim.evidence}"
