"""Figures of single trainings: worlds in which their claims are true, and worlds in which they are not."""

from __future__ import annotations

from collections.abc import Sequence

from reproduce.claims import Claim
from reproduce.training import higher
from tests.reproduce.worlds import World, check_all, group
from topr_exp.report.selection import Runs

# ---- Figure 1

COLLAPSES = "naive REINFORCE collapses: most of its seeds end below half of the base's pass@1"
STALLS = "PPO stalls: it gains less than half of what TOPR gains"
DPO_PPO = "DPO ends above PPO"
TOPR_DPO = "TOPR ends above DPO"
TOPR_BEST = "TOPR ends above the best of the other three"


def five(level: float) -> tuple[float, ...]:
    """Five seeds about a level: of three, Wilson's interval can't tell most from few."""
    return (level - 0.4, level, level + 0.4, level + 0.2, level - 0.2)


def figure_1() -> Sequence[World]:
    def world(what: str, naive: float, ppo: float, dpo: float, topr: float, **decided: Sequence[str]) -> World:
        levels = {"ppo": ppo, "dpo": dpo, "topr": topr}
        others = [group(algo, level) for algo, level in levels.items()]
        return World("fig1", what, [group("naive", five(naive), seeds=(0, 1, 2, 3, 4)), *others], **decided)

    return [
        world("base 30; the paper's order: naive 5, PPO 40, DPO 55, TOPR 70", 5, 40, 55, 70,
              shown=(COLLAPSES, STALLS, DPO_PPO, TOPR_DPO, TOPR_BEST)),
        world("PPO gains 16 of TOPR's 40 points, 40 %; DPO ends below it", 36, 46, 42, 70,
              shown=(STALLS, TOPR_DPO, TOPR_BEST), not_shown=(COLLAPSES, DPO_PPO),
              effects={STALLS: 40 / 2 - 16, DPO_PPO: -4, TOPR_DPO: 28, TOPR_BEST: 24}),
        world("PPO gains 24 of TOPR's 40 points, 60 %, and ends below TOPR", 10, 54, 50, 70,
              shown=(COLLAPSES, TOPR_DPO, TOPR_BEST), not_shown=(STALLS, DPO_PPO)),
        world("PPO is the best of the three and above TOPR, DPO is not; naive at 47 % of the base", 14, 77, 60, 70,
              shown=(COLLAPSES, TOPR_DPO), not_shown=(STALLS, DPO_PPO, TOPR_BEST)),
        world("naive REINFORCE is the best of the three, and above TOPR", 77, 40, 60, 70,
              shown=(STALLS, DPO_PPO, TOPR_DPO), not_shown=(COLLAPSES, TOPR_BEST)),
        world("DPO ends above TOPR", 5, 40, 77, 70, shown=(COLLAPSES, DPO_PPO), not_shown=(TOPR_DPO, TOPR_BEST)),
        World("fig1", "one seed of naive in three collapses; TOPR's seeds are apart; nobody ran DPO",
              [group("naive", (36.0, 37.0, 1.0)), group("ppo", 40), group("topr", (80.0, 30.0, 50.0))],
              undecided=(COLLAPSES, STALLS, DPO_PPO, TOPR_DPO, TOPR_BEST)),
        World("fig1", "naive, at 53 % of the base, ran beside TOPR alone: which of the three is best nobody knows",
              [group("naive", five(16), seeds=(0, 1, 2, 3, 4)), group("topr", 70)],
              not_shown=(COLLAPSES,), undecided=(TOPR_BEST,)),
    ]  # fmt: skip


def test_figure_1() -> None:
    check_all(figure_1())


# ---- Figure 3

RARER = "TOPR leaves less than half of the base's invalid answers"
OTHERS = {"naive": "naive REINFORCE does not", "ppo": "PPO does not", "dpo": "DPO does not"}


def figure_3() -> Sequence[World]:
    def world(what: str, correct: dict[str, float], invalid: dict[str, float], **decided: Sequence[str]) -> World:
        return World("fig3", what, [group(algo, correct[algo], invalid=invalid[algo]) for algo in invalid], **decided)

    return [
        world("base 20 % invalid; TOPR 7, though as many are wrong as before; the others 14 or more, though few are",
              {"topr": 32, "naive": 79, "ppo": 80, "dpo": 84}, {"topr": 7, "naive": 19, "ppo": 14, "dpo": 14},
              shown=(RARER, *OTHERS.values())),
        world("TOPR leaves 14, 70 % of the base's, though more are correct; naive 7, PPO 7 and DPO 1",
              {"topr": 84, "naive": 31, "ppo": 30, "dpo": 5}, {"topr": 14, "naive": 7, "ppo": 7, "dpo": 1},
              not_shown=(RARER, *OTHERS.values())),
        world("naive alone does as well as TOPR", {"topr": 70, "naive": 30, "ppo": 70, "dpo": 70},
              {"topr": 5, "naive": 5, "ppo": 15, "dpo": 15},
              shown=(RARER, OTHERS["ppo"], OTHERS["dpo"]), not_shown=(OTHERS["naive"],)),
        World("fig3", "from seed to seed TOPR leaves 2 to 18 of the base's 20; nobody ran the others",
              [group("topr", 60, invalid=(2.0, 10.0, 18.0))], undecided=(RARER, *OTHERS.values())),
    ]  # fmt: skip


def test_figure_3() -> None:
    check_all(figure_3())


# ---- Figure 4

HELP = "negatives help: TOPR above positives only, pass@1"
VOTE = "and in maj@n"
FEWER = "fewer problems with at most a quarter of the completions correct"
DOUBLED = "MATH-like: pass@1 almost doubled (more than 1.8 times the base's)"
HELP_MATH = "MATH-like: TOPR above positives only"


def figure_4() -> Sequence[World]:
    math = {"data__name": "math", "base": {"correct": 40.0}}  # of completions; 1.8 times that is 72
    return [
        World("fig4", "GSM8K: TOPR 70, its vote 75, 5 % of problems with 2 of 8; positives only 60, 65, 15 %. "
              "MATH: 78 from 40, positives only 70",
              [group("topr", 70, maj=75, few=(5, 2)), group("sft", 60, maj=65, few=(15, 2)),
               group("topr", 78, **math), group("sft", 70, **math)],
              shown=(HELP, VOTE, FEWER, DOUBLED, HELP_MATH)),
        World("fig4", "GSM8K: TOPR 60, its vote 65, 15 % of problems with 2 of 8; positives only 70, 75, 5 %. "
              "MATH: 66 from 40, that is 165 %, positives only 74",
              [group("topr", 60, maj=65, few=(15, 2)), group("sft", 70, maj=75, few=(5, 2)),
               group("topr", 66, **math), group("sft", 74, **math)],
              not_shown=(HELP, VOTE, FEWER, DOUBLED, HELP_MATH),
              effects={HELP: -10, VOTE: -10, FEWER: 10, DOUBLED: 66 - 1.8 * 40, HELP_MATH: -8}),
        World("fig4", "more correct, fewer votes won; as many problems are low, TOPR's with 2 of 8 and the other's "
              "with 3, which is more than a quarter. On MATH alone positives only are better",
              [group("topr", 70, maj=60, few=(15, 2)), group("sft", 60, maj=70, few=(15, 3)),
               group("topr", 60, **math), group("sft", 75, **math)],
              shown=(HELP,), not_shown=(VOTE, FEWER, DOUBLED, HELP_MATH)),
        World("fig4", "fewer correct, more votes won; the other's low problems have 2 of 8, TOPR's 3. On MATH alone "
              "TOPR is better",
              [group("topr", 60, maj=70, few=(15, 3)), group("sft", 70, maj=60, few=(15, 2)),
               group("topr", 80, **math), group("sft", 60, **math)],
              shown=(VOTE, FEWER, DOUBLED, HELP_MATH), not_shown=(HELP,)),
        World("fig4", "seeds far apart; nobody ran MATH",
              [group("topr", (80.0, 30.0, 70.0), maj=(20.0, 80.0, 50.0)), group("sft", 60)],
              undecided=(HELP, VOTE, FEWER, DOUBLED, HELP_MATH)),
    ]  # fmt: skip


def test_figure_4() -> None:
    check_all(figure_4())


# ---- Figure 7

AS_GOOD = "default: IS at most 3 points below TOPR"
GROWS = "default: IS's gradient norm, last fifth against first, grows more than TOPR's"
HARMS = "60 % negatives, clip 100: IS ends below the base"
HOLDS = "60 % negatives, clip 100: TOPR ends above the base"


def norms(first: float, last: float, between: float = 1.0) -> dict[str, list[float]]:
    """20 bins: the first four, the last four, and what lies between, which the sentence does not speak of."""
    return {"grad_norm": [first] * 4 + [between] * 12 + [last] * 4}


def figure_7() -> Sequence[World]:
    def skewed(clip: float, is_: float, topr: float) -> list[object]:
        more = {"compose__name": "proportion", "compose__positive_share": 0.4, "optim__grad_clip": clip}
        return [group("is", is_, **more), group("topr", topr, **more)]

    def world(what: str, default: tuple[object, object], loose: tuple[float, float], **decided: Sequence[str]) -> World:
        """The narrower clips are the other way round: they are not what the sentences speak of."""
        more = [*skewed(0.1, *loose[::-1]), *skewed(1.0, *loose[::-1]), *skewed(100.0, *loose)]
        return World("fig7", what, [*default, *more], **decided)

    return [
        world("IS 1.5 points below TOPR; its norm goes from 1 to 1.5, TOPR's, which is larger, from 4 to 4.4; with "
              "60 % negatives IS falls from 30 to 10 and TOPR rises to 60",
              (group("is", 68.5, metrics=norms(1, 1.5, 0.1)), group("topr", 70, metrics=norms(4, 4.4, 9))), (10, 60),
              shown=(AS_GOOD, GROWS, HARMS, HOLDS)),
        world("IS 5 points below TOPR; its norm, the larger one, shrinks and TOPR's grows; with 60 % negatives IS "
              "rises and TOPR falls",
              (group("is", 65, metrics=norms(9, 8, 20)), group("topr", 70, metrics=norms(1, 1.2, 0.1))), (60, 10),
              not_shown=(AS_GOOD, GROWS, HARMS, HOLDS)),
        world("IS 8 points above TOPR; both norms grow, TOPR's more; both fall",
              (group("is", 78, metrics=norms(1, 1.2)), group("topr", 70, metrics=norms(1, 3))), (10, 12),
              shown=(AS_GOOD, HARMS), not_shown=(GROWS, HOLDS), effects={AS_GOOD: 8, HARMS: -20, HOLDS: -18}),
        world("both norms shrink, IS's less; both rise",
              (group("is", 70, metrics=norms(2, 1.8)), group("topr", 70, metrics=norms(2, 1))), (50, 48),
              shown=(AS_GOOD, GROWS, HOLDS), not_shown=(HARMS,)),
        World("fig7", "IS's seeds are far apart, and nobody ran the rest",
              [group("is", (90.0, 40.0, 60.0), metrics=norms(1, 1)), group("topr", 65, metrics=norms(1, 1))],
              undecided=(AS_GOOD, GROWS, HARMS, HOLDS)),
    ]  # fmt: skip


def test_figure_7() -> None:
    check_all(figure_7())


# ---- relatives


def related() -> Sequence[World]:
    names = {"opmd": "OPMD", "asymre": "AsymRE", "grpo": "GRPO", "rec": "REC"}
    sentences = {algo: f"TOPR ends above {name}" for algo, name in names.items()}

    def world(what: str, topr: float, **levels: float) -> World:
        groups = [group("topr", topr), *(group(algo, level) for algo, level in levels.items())]
        return World("related", what, groups,
                     shown=[sentences[algo] for algo, level in levels.items() if level < topr],
                     not_shown=[sentences[algo] for algo, level in levels.items() if level > topr])  # fmt: skip

    return [
        world("TOPR 70; OPMD and GRPO above it, AsymRE and REC below", 70, opmd=78, asymre=60, grpo=76, rec=40),
        world("TOPR 50; AsymRE and REC above it, OPMD and GRPO below", 50, opmd=42, asymre=57, grpo=20, rec=66),
        World("related", "TOPR's seeds are far apart", [group("topr", (90.0, 30.0, 60.0)), group("opmd", 55)],
              undecided=(sentences["opmd"],)),
    ]  # fmt: skip


def test_relatives() -> None:
    check_all(related())


# ---- a number of each run


def test_a_number_is_compared_seed_by_seed() -> None:
    """The seeds are 40 apart, the first always 5 above; its runs have other seeds too, and stand in another order."""
    levels = {0: 20.0, 1: 60.0, 2: 40.0, 3: 5.0}

    def compared(more: float) -> Claim:
        first = Runs(group("topr", 50, seeds=(3, 1, 0)).records())
        other = Runs(group("is", 50, seeds=(0, 1, 2, 3)).records())
        return higher("it is higher", "TOPR", first, "IS", other, lambda record: (
            levels[record["settings"]["seed"]] + more * (record["settings"]["algo.name"] == "topr")
            + 0.1 * record["settings"]["seed"]
        ))  # fmt: skip

    assert compared(5.0).word == "shown"
    assert compared(5.0).evidence == "TOPR 25.00 65.10 10.30; IS 20.00 60.10 5.30"
    assert compared(-5.0).word == "not shown"
    assert compared(0.0).word == "undecided"
