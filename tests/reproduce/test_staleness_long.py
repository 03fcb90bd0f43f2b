"""How stale long answers may be: worlds in which the claims are true, and worlds in which they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from reproduce.beyond import EFFECTIVE
from reproduce.records import LENGTHS
from tests.reproduce.made_up import named
from tests.reproduce.worlds import Group, Level, World, check_all, group
from topr_exp.report.selection import Runs

FRESH = "{}: sampling after every update ends above sampling after every 64"
ABOVE = "{}: {} ends above TOPR"
SHORTER = "{}: TOPR's answers end shorter with 1/T"
AT = ("1 update", "8 updates", "64 updates")
WAYS: dict[str, dict[str, Any]] = {
    "TOPR": {},
    "TOPR, without 1/T": {"algo__length_normalize": False},
    "TOPR, the group's advantage": {"algo__advantage": "group"},
    "TOPR, both": {"algo__advantage": "group", "algo__length_normalize": False},
}
RIVALS: dict[str, tuple[str, dict[str, Any]]] = {  # what a claim calls a loss: its algorithm and settings
    "TIS": ("tis", {}), "GSPO": ("gspo", {}), "CISPO": ("cispo", {}), "VESPO": ("vespo", {}), "PPO": ("ppo", {}),
    "GRPO": ("grpo", {}), "SAPO": ("sapo", {}), "M2PO": ("m2po", {}),
    "GSPO, eps_low 0.03": ("gspo", {"algo__eps_low": 0.03, "algo__eps_high": 0.03}),
    "PPO, eps_low 0.8": ("ppo", {"algo__eps_low": 0.8, "algo__eps_high": 4.0}),
    "VESPO, c1_pos 0.5": ("vespo", {"algo__c1_pos": 0.5}),
}  # fmt: skip
ALL = (*WAYS, *RIVALS)


def runs(name: str, fresh: Level, between: Level, stale: Level, lengths: Sequence[Level] = (100,) * 3) -> list[Group]:
    """pass@1, and the answers' mean tokens, with new completions after 1, 8 and 64 updates."""
    algo, settings = RIVALS.get(name, ("topr", WAYS.get(name, {})))
    return [group(algo, level, schedule__updates=updates, schedule__rounds=64 // updates, **settings,
                  lengths=dict.fromkeys(LENGTHS, length), metrics={EFFECTIVE: [1.0]})
            for updates, level, length in zip((1, 8, 64), (fresh, between, stale), lengths, strict=True)]  # fmt: skip


def worlds() -> Sequence[World]:
    fresh = [FRESH.format(name) for name in ALL]
    new, between, old = ([ABOVE.format(at, name) for name in ALL[1:]] for at in AT)
    return [
        World("staleness_long", "old answers cost TOPR 20 points and the others 10; with 8 updates TOPR is first",
              [*runs("TOPR", 60, 80, 40), *(one for name in ALL[1:] for one in runs(name, 60, 70, 50))],
              shown=(*fresh, *old), not_shown=between, undecided=new,
              effects={fresh[0]: 20, fresh[1]: 10, old[0]: 10, between[0]: -10}),
        World("staleness_long", "old answers are better; TOPR is best with them, last with newer ones",
              [*runs("TOPR", 40, 20, 70), *(one for name in ALL[1:] for one in runs(name, 50, 80, 60))],
              shown=(*new, *between), not_shown=(*fresh, *old), effects={fresh[0]: -30, old[-1]: -10, new[0]: 10}),
        World("staleness_long", "with new answers TOPR is first, with answers of 8 updates last",
              [*runs("TOPR", 70, 50, 60), *(one for name in ALL[1:] for one in runs(name, 60, 65, 60))],
              shown=between, not_shown=new, effects={between[0]: 15, new[0]: -10}),
        World("staleness_long", "of TOPR's ways the one without 1/T is best with old answers, the group's last",
              [*runs("TOPR", 60, 60, 50), *runs("TOPR, without 1/T", 60, 60, 70),
               *runs("TOPR, the group's advantage", 60, 60, 30), *runs("TOPR, both", 60, 60, (75.0, 30.0, 50.0))],
              shown=(fresh[0], old[0], fresh[2]), not_shown=(fresh[1], old[1]), undecided=(fresh[3], old[2])),
        World("staleness_long", "1/T takes 40 tokens with new answers, adds 10 with older ones; then seeds disagree",
              [*runs("TOPR", 60, 60, 60, (110, 110, (100.0, 110.0, 120.0))),
               *runs("TOPR, without 1/T", 60, 60, 60, (150, 100, (120.0, 110.0, 100.0)))],
              shown=(SHORTER.format("1 update"),), not_shown=(SHORTER.format("8 updates"),),
              undecided=(SHORTER.format("64 updates"),)),
        World("staleness_long", "1/T adds 40 tokens with new and old answers, takes 10 with those of 8 updates",
              [*runs("TOPR", 60, 60, 60, (150, 100, 150)), *runs("TOPR, without 1/T", 60, 60, 60, (110, 110, 110))],
              shown=(SHORTER.format("8 updates"),),
              not_shown=(SHORTER.format("1 update"), SHORTER.format("64 updates"))),
        World("staleness_long", "1/T takes tokens with answers of 64 updates",
              [*runs("TOPR", 60, 60, 60, (100, 100, 90)), *runs("TOPR, without 1/T", 60, 60, 60)],
              shown=(SHORTER.format("64 updates"),)),
        World("staleness_long", "nobody sampled after every update", runs("VESPO", 60, 50, 40)[1:],
              undecided=(FRESH.format("VESPO"), ABOVE.format("64 updates", "VESPO"))),
        *[World("staleness_long", f"{name} alone is above TOPR and not hurt by old answers",
                [*runs("TOPR", 60, 60, 50), *runs(name, 60, 60, 60),
                 *(one for each in ALL[1:] if each != name for one in runs(each, 60, 60, 40))],
                shown=(ABOVE.format("64 updates", name), *(FRESH.format(each) for each in ALL if each != name)),
                not_shown=tuple(ABOVE.format("64 updates", each) for each in ALL[1:] if each != name),
                undecided=(FRESH.format(name),))
          for name in ALL[1:]],
    ]  # fmt: skip


def test_how_stale_long_answers_may_be() -> None:
    check_all(worlds())


def test_the_lower_panels_have_the_last_updates_and_the_last_answers() -> None:
    """Each way's effective sample size in percent, and its answers' mean tokens, by updates and as a mean of seeds."""
    levels = {"TOPR": (0.9, (150.0, 160.0, 170.0)), "TOPR, both": (0.25, (90.0, 90.0, 120.0))}
    groups = [group("topr", 60, schedule__updates=updates, lengths=dict.fromkeys(LENGTHS, tokens), **WAYS[name],
                    metrics={EFFECTIVE: [1.0] * 19 + [share / updates]})
              for name, (share, tokens) in levels.items() for updates in (1, 8)]  # fmt: skip
    figure = named("staleness_long").draw(Runs(World("staleness_long", "", groups).records()), {})
    lengths, _, sizes = (
        {line.get_label(): [*map(float, line.get_ydata())] for line in ax.lines if line.get_label() in levels}
        for ax in figure.axes[3:]
    )
    assert sizes == {name: pytest.approx([100 * share, 100 * share / 8]) for name, (share, _) in levels.items()}
    assert lengths == {name: pytest.approx([sum(tokens) / 3] * 2) for name, (_, tokens) in levels.items()}
    seeds = sorted(float(y) for line in figure.axes[3].lines if line.get_marker() == "." for y in line.get_ydata())
    assert seeds == [90, 90, 90, 90, 120, 120, 150, 150, 160, 160, 170, 170]


def test_every_loss_has_one_panel_and_topr_stands_in_all() -> None:
    given = [one for name in ALL for one in runs(name, 60, 50, 40)]
    figure = named("staleness_long").draw(Runs(World("staleness_long", "", given).records()), {})
    panels = [{text.get_text() for text in ax.get_legend().get_texts()} for ax in figure.axes[:3]]
    assert panels == [
        set(WAYS),
        {"TOPR", "TIS", "CISPO", "VESPO", "VESPO, c1_pos 0.5", "SAPO"},
        {"TOPR", "PPO", "PPO, eps_low 0.8", "GRPO", "GSPO", "GSPO, eps_low 0.03", "M2PO"},
    ]


def test_no_runs_are_no_verdict() -> None:
    assert named("staleness_long").judge(Runs([]), {}) == []
