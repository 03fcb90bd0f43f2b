"""How long answers may be, and what a loss does to their length: worlds in which the claims are true and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from reproduce.learning_rates import choose, key_of, read_rates
from reproduce.length import SPENT, tried_at_lengths
from reproduce.registry import LOG_RATIOS
from tests.reproduce.made_up import named
from tests.reproduce.worlds import Group, Level, World, check_all, group
from topr_exp.report.selection import Runs

# ---- which ratio at which length

RIVALS: dict[str, tuple[str, dict[str, Any]]] = {  # what a claim calls a loss: its algorithm and settings
    "TIS": ("tis", {}), "IS": ("is", {}), "GSPO": ("gspo", {}), "CISPO": ("cispo", {}), "PPO": ("ppo", {}),
    "TOPR, token ratio": ("topr", {"algo__ratio": "token"}),
    "TOPR, geometric ratio": ("topr", {"algo__ratio": "geometric"}),
    "GSPO, eps_low 0.03": ("gspo", {"algo__eps_low": 0.03, "algo__eps_high": 0.03}),
    "OPMD, tau 0.01": ("opmd", {"algo__tau": 0.01}),
    "VESPO": ("vespo", {}), "OPMD": ("opmd", {}),
    "PPO, eps_low 0.8": ("ppo", {"algo__eps_low": 0.8, "algo__eps_high": 4.0}),
    "CISPO, cap 1": ("cispo", {"algo__cap": 1.0}),
    "VESPO, c1_pos 0.5": ("vespo", {"algo__c1_pos": 0.5}),
}  # fmt: skip
RIVAL = "{} turns: {} ends above TOPR"
DEAD = "TOPR: more of the negatives no longer push with 22 turns than with 2"


def length_worlds() -> Sequence[World]:
    def topr(turns: int, level: Level, spent: float = 0.1, **more: Any) -> Group:
        """spent: of the last updates' negatives; of the updates before half of them."""
        return group("topr", level, data__turns=turns, metrics={SPENT: [0.5] * 19 + [spent]}, **more)

    def runs(turns: int, rival: str, level: Level) -> Group:
        algo, settings = RIVALS[rival]
        return group(algo, level, data__turns=turns, **settings)

    def everywhere(turns: int, ours: float, others: float, **own: float) -> list[Group]:
        return [topr(turns, ours), *[runs(turns, name, own.get(name, others)) for name in RIVALS]]

    def pushes(of_short: Sequence[float], of_long: Sequence[float]) -> list[Group]:
        """TOPR, by seed."""
        return [topr(turns, 60, share, seeds=(seed,))
                for turns, shares in ((2, of_short), (10, (0.9, 0.0, 0.5)), (22, of_long))
                for seed, share in enumerate(shares)]  # fmt: skip

    short, four, ten, long = ([RIVAL.format(turns, name) for name in RIVALS] for turns in (2, 4, 10, 22))
    return [
        World("length", "with 2 and 10 turns TOPR is first, with 4 and 22 it is last",
              [*everywhere(2, 70, 50), *everywhere(4, 50, 65), *everywhere(10, 65, 50), *everywhere(22, 50, 70)],
              shown=(*four, *long), not_shown=(*short, *ten), effects={short[0]: -20, four[0]: 15, long[0]: 20}),
        World("length", "the other way round",
              [*everywhere(2, 50, 70), *everywhere(4, 65, 50), *everywhere(10, 50, 65), *everywhere(22, 70, 50)],
              shown=(*short, *ten), not_shown=(*four, *long)),
        *[World("length", f"{name} alone is below TOPR with 2 turns and above it with 22",
                [*everywhere(2, 60, 70, **{name: 50}), *everywhere(22, 60, 50, **{name: 70})],
                shown=(RIVAL.format(22, name), *(one for one in short if one != RIVAL.format(2, name))),
                not_shown=(RIVAL.format(2, name), *(one for one in long if one != RIVAL.format(22, name))))
          for name in RIVALS],
        World("length", "seeds far apart",
              [topr(22, (85.0, 30.0, 60.0)), runs(22, "TOPR, token ratio", 55), runs(22, "VESPO", 55)],
              undecided=(RIVAL.format(22, "TOPR, token ratio"), RIVAL.format(22, "VESPO"))),
        World("length", "of TOPR's negatives a fifth no longer pushes with 2 turns, two thirds do not with 22",
              pushes((0.2, 0.21, 0.19), (0.65, 0.64, 0.66)), shown=(DEAD,), effects={DEAD: 45}),
        World("length", "the other way round", pushes((0.65, 0.64, 0.66), (0.2, 0.21, 0.19)), not_shown=(DEAD,)),
        World("length", "seeds disagree", pushes((0.2, 0.6, 0.1), (0.6, 0.2, 0.3)), undecided=(DEAD,)),
    ]  # fmt: skip


def test_how_long() -> None:
    check_all(length_worlds())


def test_losses_stand_by_their_width_and_the_base_at_each_length() -> None:
    told = {"TOPR": ("topr", {}), **RIVALS}
    bases = {2: 30.0, 22: 20.0}
    metrics = {name: [0.1] * 20 for name in (SPENT, *LOG_RATIOS)}
    given = [
        group(algo, 60, data__turns=turns, base={"correct": base}, metrics=metrics, **settings)
        for algo, settings in told.values()
        for turns, base in bases.items()
    ]
    figure = named("length").draw(Runs(World("length", "", given).records()), {})
    above = figure.axes[:3]
    others = {name for name in RIVALS if ", " in name and not name.startswith("TOPR")}
    relatives = {"TOPR", "TOPR, token ratio", "TOPR, geometric ratio", "TIS", "IS"}
    panels = [{text.get_text() for text in ax.get_legend().get_texts()} for ax in above]
    assert panels == [relatives, {"TOPR", *RIVALS} - others - (relatives - {"TOPR"}), {"TOPR", *others}]
    for ax in above:
        (dotted,) = [line for line in ax.lines if line.get_linestyle() == ":"]
        assert [*dotted.get_xdata()] == [*bases]
        assert [*dotted.get_ydata()] == pytest.approx([*bases.values()], abs=0.06)


# ---- which learning rate at which length

USED = "{} turns: the best of the grid is used (conf/learning_rates.yaml)"
EVEN = "every algorithm was tried with the same learning rates and seeds"  # said only where it is not so
GRID = (1e-4, 3e-4, 1e-3)
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "topr": ("topr", {}), "topr, token ratio": ("topr", {"algo__ratio": "token"}), "vespo": ("vespo", {}),
    "gspo": ("gspo", {}), "gspo, eps_low 0.03": ("gspo", {"algo__eps_low": 0.03, "algo__eps_high": 0.03}),
}  # fmt: skip


def tried(turns: int, best: Mapping[str, float]) -> list[Group]:
    """One seed of each loss at each rate: 70 % at its best one, 50 elsewhere."""
    return [
        group(algo, 70 if rate == best[loss] else 50, seeds=(0,), data__turns=turns, optim__lr=rate,
              data__test_split="validation", model__name="tiny_long", **settings)
        for loss, (algo, settings) in LOSSES.items() if loss in best for rate in GRID
    ]  # fmt: skip


def rates_worlds() -> Sequence[World]:
    conf = read_rates()
    used = {
        turns: {loss: conf[f"tiny_long_{turns}_turns"][key_of(loss)] for loss in LOSSES} for turns in (2, 4, 10, 22)
    }

    def with_other(turns: int, loss: str) -> dict[str, float]:
        return used[turns] | {loss: next(rate for rate in GRID if rate != used[turns][loss])}

    everywhere = [one for turns, best in used.items() for one in tried(turns, best)]
    claims = tuple(USED.format(turns) for turns in used)
    return [
        World("length_rates", "each is best at the rate that conf has for its length", everywhere, shown=claims),
        *[World("length_rates", f"with {turns} turns {loss} is best at another rate",
                tried(turns, with_other(turns, loss)), not_shown=(USED.format(turns),))
          for turns in used for loss in LOSSES],
        World("length_rates", "VESPO was not tried with one of the rates", tried(2, used[2])[:-1], not_shown=(EVEN,)),
    ]  # fmt: skip


def test_the_best_rates() -> None:
    check_all(rates_worlds())


def test_the_grid_is_told_apart_by_length_and_ratio() -> None:
    best = {"topr": 1e-4, "topr, token ratio": 3e-4, "vespo": 1e-3}
    other = {"topr": 1e-3, "topr, token ratio": 1e-4, "vespo": 3e-4}
    records = [record for each in (*tried(2, best), *tried(22, other)) for record in each.records()]
    assert choose(tried_at_lengths(Runs(records))) == {"tiny_long, 2 turns": best, "tiny_long, 22 turns": other}


# ---- what a loss does to the length of answers

SHORTER = "{}: {} end shorter with 1/T than without"
THAN_BASE = "{} with 1/T: answers end shorter than the base's"
NAMES = {"topr": "TOPR", "tis": "TIS", "sft": "positives only"}
KINDS = ("answers", "correct answers", "incorrect answers")


def bias_worlds() -> Sequence[World]:
    def runs(algo: str, divided: Mapping[str, Level], not_divided: Mapping[str, Level]) -> list[Group]:
        """Mean tokens at the end, the base's being 100."""
        return [group(algo, 50, lengths=divided),
                group(algo, 50, lengths=not_divided, algo__length_normalize=False)]  # fmt: skip

    def tokens(everything: Level, correct: Level, incorrect: Level) -> dict[str, Level]:
        return {"length": everything, "length_correct": correct, "length_incorrect": incorrect}

    told = {algo: [SHORTER.format(name, kind) for kind in KINDS] for algo, name in NAMES.items()}
    base = {algo: THAN_BASE.format(name) for algo, name in NAMES.items()}
    everything = [one for algo in NAMES for one in told[algo]]
    return [
        World("length_bias", "with 1/T answers go from 100 to 80 tokens, without to 120; all kinds alike",
              [one for algo in NAMES for one in runs(algo, tokens(80, 70, 90), tokens(120, 110, 130))],
              shown=(*everything, *base.values())),
        World("length_bias", "the other way round",
              [one for algo in NAMES for one in runs(algo, tokens(120, 110, 130), tokens(80, 70, 90))],
              not_shown=(*everything, *base.values())),
        World("length_bias", "with 1/T TOPR's correct answers are shorter and its incorrect ones longer than without; "
              "all together the seeds are apart",
              runs("topr", tokens((130.0, 110.0, 120.0), 80, 150), tokens((110.0, 130.0, 120.0), 110, 120)),
              shown=(told["topr"][1],), not_shown=(told["topr"][2],), undecided=(told["topr"][0], base["topr"])),
        World("length_bias", "nobody trained without 1/T", runs("tis", tokens(80, 70, 90), tokens(9, 9, 9))[:1],
              shown=(base["tis"],), undecided=told["tis"]),
    ]  # fmt: skip


def test_how_long_answers_become() -> None:
    check_all(bias_worlds())


def test_the_evidence_is_the_seeds_tokens() -> None:
    claims = named("length_bias").judge(Runs(bias_worlds()[0].records()), {})
    told = next(claim for claim in claims if claim.text == SHORTER.format("TOPR", "answers"))
    assert told.evidence == "tokens of each seed: -40.0 -40.0 -40.0"
    assert [claim.evidence for claim in claims].count("no runs") == 0


@pytest.mark.parametrize("name", ["length", "length_rates", "length_bias"])
def test_no_runs_are_no_verdict(name: str) -> None:
    assert {claim.word for claim in named(name).judge(Runs([]), {})} <= {"undecided"}
