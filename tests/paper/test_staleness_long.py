"""How stale long answers may be: worlds in which the claims are true, and worlds in which they are not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.paper.worlds import Group, Level, World, check_all, group

FRESH = "{}: sampling after every update ends above sampling after every 64"
ABOVE = "64 updates: {} ends above TOPR"
WAYS = {
    "TOPR": {},
    "TOPR, without 1/T": {"algo__length_normalize": False},
    "TOPR, the group's advantage": {"algo__advantage": "group"},
    "TOPR, both": {"algo__advantage": "group", "algo__length_normalize": False},
}
RIVALS = {"tis": "TIS", "gspo": "GSPO", "cispo": "CISPO", "vespo": "VESPO", "ppo": "PPO", "grpo": "GRPO",
          "sapo": "SAPO", "m2po": "M2PO"}  # fmt: skip
ALL = (*WAYS, *RIVALS.values())


def runs(name: str, fresh: Level, between: Level, stale: Level) -> list[Group]:
    """pass@1 with new completions after 1, 8 and 64 updates."""
    algo = next((algo for algo, known in RIVALS.items() if known == name), "topr")
    return [group(algo, level, schedule__updates=updates, schedule__rounds=128 // updates, **WAYS.get(name, {}))
            for updates, level in ((1, fresh), (8, between), (64, stale))]  # fmt: skip


def worlds() -> Sequence[World]:
    fresh, beaten = [FRESH.format(name) for name in ALL], [ABOVE.format(name) for name in ALL[1:]]
    return [
        World("staleness_long", "old answers cost TOPR 20 points and the others 10; with 8 updates all gain",
              [*runs("TOPR", 60, 80, 40), *(one for name in ALL[1:] for one in runs(name, 60, 80, 50))],
              shown=(*fresh, *beaten), effects={fresh[0]: 20, fresh[1]: 10, beaten[0]: 10}),
        World("staleness_long", "old answers are better; TOPR is best with them, last with new ones",
              [*runs("TOPR", 40, 20, 70), *(one for name in ALL[1:] for one in runs(name, 50, 80, 60))],
              not_shown=(*fresh, *beaten), effects={fresh[0]: -30, beaten[-1]: -10}),
        World("staleness_long", "of TOPR's ways the one without 1/T is best with old answers, the group's last",
              [*runs("TOPR", 60, 60, 50), *runs("TOPR, without 1/T", 60, 60, 70),
               *runs("TOPR, the group's advantage", 60, 60, 30), *runs("TOPR, both", 60, 60, (75.0, 30.0, 50.0))],
              shown=(fresh[0], beaten[0], fresh[2]), not_shown=(fresh[1], beaten[1]), undecided=(fresh[3], beaten[2])),
        World("staleness_long", "nobody sampled after every update", runs("VESPO", 60, 50, 40)[1:],
              undecided=(FRESH.format("VESPO"), ABOVE.format("VESPO"))),
    ]  # fmt: skip


def test_how_stale_long_answers_may_be() -> None:
    check_all(worlds())
