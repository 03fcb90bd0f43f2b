"""How long answers may be, and what a loss does to their length: worlds in which the claims are true and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.paper.made_up import named
from tests.paper.worlds import Group, Level, World, check_all, group
from topr_exp.paper.length import at_best_rates
from topr_exp.report.selection import Runs

# ---- which ratio at which length

RATIO = "{} turns, {}: the {} ratio ends above the sequence's"
RIVAL = "{} turns: {} ends above TOPR"
WEIGHED = {"topr": "TOPR", "tis": "TIS", "is": "IS"}
RIVALS = {"gspo": "GSPO", "cispo": "CISPO", "vespo": "VESPO", "ppo": "PPO", "opmd": "OPMD"}


def length_worlds() -> Sequence[World]:
    def runs(turns: int, algo: str, level: Level, ratio: str = "sequence", rate: float = 1e-4) -> Group:
        return group(algo, level, data__turns=turns, algo__ratio=ratio, optim__lr=rate)

    def everywhere(turns: int, sequence: float, other: float, rival: float) -> list[Group]:
        """Each at two rates, of which the second is the worse one."""
        levels = [(algo, "sequence", sequence) for algo in WEIGHED]
        levels += [(algo, ratio, other) for algo in WEIGHED for ratio in ("token", "geometric")]
        levels += [(algo, "sequence", rival) for algo in RIVALS]
        return [runs(turns, algo, level - loss, ratio, rate)
                for algo, ratio, level in levels for rate, loss in ((1e-4, 0), (3e-4, 35))]  # fmt: skip

    def told(turns: int) -> tuple[list[str], list[str]]:
        ratios = [RATIO.format(turns, name, other) for name in WEIGHED.values() for other in ("token", "geometric")]
        return ratios, [RIVAL.format(turns, name) for name in RIVALS.values()]

    (short, beaten_short), (long, beaten_long) = told(2), told(22)
    between = everywhere(10, 40, 70, 70)  # says nothing: only the shortest and the longest are spoken of
    mixed = [runs(2, "topr", 60), runs(2, "topr", 70, "token"), runs(2, "topr", 50, "geometric"),
             runs(22, "topr", 60), runs(22, "topr", 50, "token"), runs(22, "topr", 70, "geometric")]  # fmt: skip
    return [
        World("length", "with 2 turns the sequence's ratio is best and the rivals are last, with 22 they are first",
              [*everywhere(2, 70, 60, 50), *between, *everywhere(22, 50, 60, 70)],
              shown=(*long, *beaten_long), not_shown=(*short, *beaten_short),
              effects={short[0]: -10, long[0]: 10, beaten_short[0]: -20, beaten_long[0]: 20}),
        World("length", "the other way round",
              [*everywhere(2, 50, 60, 70), *between, *everywhere(22, 70, 60, 50)],
              shown=(*short, *beaten_short), not_shown=(*long, *beaten_long)),
        World("length", "of TOPR's ratios the token one is best with 2 turns, the geometric one with 22", mixed,
              shown=(short[0], long[1]), not_shown=(short[1], long[0]), undecided=(*beaten_short, *beaten_long)),
        World("length", "seeds far apart",
              [runs(22, "topr", (85.0, 30.0, 60.0)), runs(22, "topr", 55, "token"), runs(22, "vespo", 55)],
              undecided=(long[0], RIVAL.format(22, "VESPO"))),
    ]  # fmt: skip


def test_how_long() -> None:
    check_all(length_worlds())


def test_each_loss_is_at_its_best_rate_at_each_length() -> None:
    levels = {(2, 1e-4): 60, (2, 3e-4): 50, (22, 1e-4): 40, (22, 3e-4): 55}
    groups = [group("gspo", level, data__turns=turns, optim__lr=rate) for (turns, rate), level in levels.items()]
    groups += [group("topr", level, data__turns=2, algo__ratio=ratio, optim__lr=rate)
               for ratio, rate, level in (("sequence", 1e-4, 60), ("sequence", 3e-4, 50), ("token", 1e-4, 30),
                                          ("token", 3e-4, 40))]  # fmt: skip
    kept = at_best_rates(Runs([record for each in groups for record in each.records()]))
    keys = ("algo.name", "data.turns", "algo.ratio", "optim.lr")
    assert {tuple(each["settings"][key] for key in keys) for each in kept} == {
        ("gspo", 2, "sequence", 1e-4),
        ("gspo", 22, "sequence", 3e-4),
        ("topr", 2, "sequence", 1e-4),
        ("topr", 2, "token", 3e-4),
    }
    assert len(kept) == 12


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


@pytest.mark.parametrize("name", ["length", "length_bias"])
def test_no_runs_are_no_verdict(name: str) -> None:
    assert {claim.word for claim in named(name).judge(Runs([]), {})} <= {"undecided"}
