"""Claims in worlds where a reader knows what is true: what the code computes must come out as the sentence says.

Rows of figures.yaml are decided by one mechanism (test_rules.py); each function that decides a claim has its worlds.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.reproduce.worlds import Group, Level, World, group, of_seed

pytestmark = pytest.mark.extended

YES, NO, OPEN = "shown", "reversed", "undecided"
APART = (80.0, 20.0, 50.0)  # seeds that decide nothing


def six(level: float) -> tuple[float, ...]:
    """Six seeds about a level: of five, Clopper and Pearson's interval can't tell most from few."""
    return (level - 0.4, level, level + 0.4, level + 0.2, level - 0.2, level)


def fig1(naive: float, **others: Level) -> list[Group]:
    return [group("naive", six(naive), seeds=tuple(range(6))), *(group(algo, level) for algo, level in others.items())]


def fig3(**invalid: Level) -> list[Group]:
    """Of the base's 20 % invalid answers; as many are correct in each."""
    return [group(algo, 60, invalid=level) for algo, level in invalid.items()]


def fig4(gsm8k: Sequence[Group], topr: Level, sft: Level) -> list[Group]:
    math = {"data__name": "math", "base": {"correct": 40.0}}  # 1.8 times that is 72
    return [*gsm8k, group("topr", topr, **math), group("sft", sft, **math)]


def sweep(algo: str, levels: Mapping[float, Level], **settings: object) -> list[Group]:
    """pass@1 by p̃."""
    more = {"compose__name": "proportion", "compose__positive_share": 0.1, **settings}
    return [group(algo, level, effective_positive=p, **more) for p, level in levels.items()]


def fig5(ten: Mapping[float, Level], fifty: Mapping[float, Level]) -> list[Group]:
    return [*sweep("topr", ten), *sweep("topr", fifty, compose__positive_share=0.5)]


def fig6(**data: tuple[Mapping[float, Level], Mapping[float, Level]]) -> list[Group]:
    """TOPR and TIS by data."""
    return [one for name, both in data.items() for algo, levels in zip(("topr", "tis"), both, strict=True)
            for one in sweep(algo, levels, data__name=name)]  # fmt: skip


def fig8(**after: tuple[Level, Level, Level, Level]) -> list[Group]:
    """pass@1 after iterations 1 to 3, and the vote at the end; from a base of 30."""
    return [group("topr", last, between=(first, second), maj=maj, n=16, compose__name=compose)
            for compose, (first, second, last, maj) in after.items()]  # fmt: skip


def hard(*seeds: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """The weight, in percent, of problems below 50 % by p̃; their last tenth alone moves. other: of another base."""

    def shares(levels: Sequence[float]) -> dict[str, list[list[float]]]:
        return {"share": [[x / 100 for x in (5, 5, 5, 5, one - 20, *[(100 - one) / 5] * 5)] for one in levels]}

    return {f"tiny {seed}": shares(each) for seed,
        each in enumerate(seeds)} | {"tiny_noise 0": shares(other)}  # fmt: skip


def table1(levels: Mapping[str, Level], quarter: Mapping[str, float], weight: float = 0.0) -> list[Group]:
    """pass@1 at the end, and after a quarter of the updates, before and after which the others lead."""

    def curve(level: float) -> dict[str, list[float]]:
        return {"step": [0, 25, 50, 100, 200], "pass@1": [30, 100 - level, level, 100 - level, 100 - level]}

    return [group(algo, level, curve=curve(quarter.get(algo, 50)),
                  metrics={"grad_norm": [1.0] * 20, "weight_neg": [0.5] * 19 + [weight if algo == "sft" else 0.5]})
            for algo, level in levels.items()]  # fmt: skip


def variances(**times: float) -> dict[str, Any]:
    """The variance of a gradient, times TOPR's, whose own differs by far; another base's is the other way round, and so
    is the squared norm of the mean."""
    return {f"{model} {seed}": {"topr": [own, 1.0]} | {name: [own * each**power, each**-power]
                                                       for name, each in times.items()}
            for seed, own in enumerate((2.0, 0.1, 70.0)) for model, power in (("tiny", 1), ("tiny_noise",
                -1))}  # fmt: skip


def beta_sweep(algo: str, *cells: tuple[Level, float]) -> list[Group]:
    """pass@1 and KL at β = 0.05, 0.2 and 1."""
    more = {"schedule__prompts": 2} if algo in ("agro_on_policy", "rloo") else {}
    return [group(algo, level, algo__beta=beta, noted=lambda seed, kl=kl: kl * (1 + 0.02 * seed), **more)
            for beta, (level, kl) in zip((0.05, 0.2, 1.0), cells, strict=True)]  # fmt: skip


def tokens(algo: str, divided: tuple[Level, Level, Level], without: tuple[Level, Level, Level]) -> list[Group]:
    """Mean tokens at the end of all, correct and incorrect answers; the base's are 100."""
    names = ("length", "length_correct", "length_incorrect")
    return [group(algo, 50, lengths=dict(zip(names, levels, strict=True)), **more)
            for levels, more in ((divided, {}), (without, {"algo__length_normalize": False}))]  # fmt: skip


def dropping(
    lengths: tuple[int, int], levels: tuple[int, int], verdicts: tuple[int, int], left: tuple[int, int, int]
) -> list[Group]:
    """MATH-like problems, ages by lengths: percent dropped of two kinds each, mean tokens of what is left by seed."""
    kinds = ("length32", "length16", "level5", "level1", "incorrect", "correct")
    shares = dict(zip(kinds, (*lengths, *levels, *verdicts), strict=True))
    places = {"data__name": "math", "schedule__concurrency": 8}
    return [
        group("topr", 50, schedule__when_stale=way, seeds=(seed,), **places, metrics={
            "sampled_length": [number] * 20, **{f"dropped_share_{kind}": [0.5, (share + seed * (i % 2)) / 100]
                                                for i, (kind, share) in enumerate(shares.items())}})
        for seed in range(3) for way, number in ((None, 30 + seed), ("drop", left[seed]))
    ]  # fmt: skip


def the_map(topr: Sequence[Level], tis: Sequence[Level]) -> list[Group]:
    """Cells: rate 1e-4 at p̃ = 10 and 50 %, then 3e-4."""
    cells = [(rate, p) for rate in (1e-4, 3e-4) for p in (0.1, 0.5)]
    return [one for algo, levels in (("topr", topr), ("tis", tis)) for (rate, p), level in zip(cells, levels,
        strict=True)
            for one in sweep(algo, {p: level}, optim__lr=rate)]  # fmt: skip


def grid(model: str, bears: str = "topr") -> list[Group]:
    """At some rate each ends below the base's 30, but for TOPR and one other."""
    return [group(algo, 26 if rate == 1e-3 and algo not in ("topr", bears) else 34, optim__lr=rate, model__name=model)
            for algo in ("topr", "naive", "ppo", "dpo", "is") for rate in (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)]  # fmt: skip


def verdicts(on_correct: float, on_incorrect: float, invalid: float, weighted: float, maj: float) -> dict[str, Any]:
    """What a verifier's run notes, in percent: one of four solutions is correct, each verified twice."""

    def dealt(share: float, most: int) -> list[float]:
        least, more = divmod(round(share / 100 * 60 * most), 60)
        return [float(least + (place < more)) for place in np.random.default_rng(most).permutation(60)]

    right, wrong = dealt(on_correct, 2), dealt(on_incorrect, 6)
    return {"right": [a + b for a, b in zip(right, wrong, strict=True)], "unparsable": dealt(invalid, 8),
            "verified": [8.0] * 60, "right_on_correct": right, "verified_correct": [2.0] * 60,
            "right_on_incorrect": wrong, "verified_incorrect": [6.0] * 60, "weighted_sc": dealt(weighted, 1),
            "maj": dealt(maj, 1), "oracle": dealt(80, 1), "solved": [0.25] * 60}  # fmt: skip


def verifier(before: tuple[float, ...], after: tuple[float, ...]) -> list[Group]:
    def noted(seed: int) -> dict[str, Any]:
        now = verdicts(*(of_seed(level, seed) for level in after))
        return {"before": verdicts(*before), "after": now, "problems": [], "solutions": 4, "verifications": 2}

    return [group("topr", 1.0, model__name="tiny_verifier", noted=noted)]


# The papers' objectives for R = +1 and R = −1, ε = 0.2, b⁺ = 1.2, b⁻ = 1 (TOPR, Equations 6 and 11).
Curve = Callable[[float], float]
PPO: dict[str, Curve] = {"positive": lambda r: min(r, 1.2), "negative": lambda r: -max(r, 0.8)}
TOPR: dict[str, Curve] = {
    "positive": lambda r: 1 + math.log(r) if r < 1 else r if r <= 1.2 else 1.2 * (1 + math.log(r / 1.2)),
    "negative": lambda r: -r if r <= 1 else -(1 + math.log(r)),
}


def objectives(topr: Mapping[str, Curve] = TOPR, ppo: Mapping[str, Curve] = PPO) -> dict[str, Any]:
    ratio = [i / 100 for i in range(1, 301)]
    return {"eps": 0.2, "ratio": ratio} | {
        sign: {"topr": [{**TOPR, **topr}[sign](r) for r in ratio], "ppo": [{**PPO, **ppo}[sign](r) for r in ratio]}
        for sign in ("positive", "negative")
    }


LOW, HIGH = {0.02: 10, 0.1: 20, 0.5: 80, 1.0: 70}, {0.02: 45, 0.1: 50, 0.5: 70, 1.0: 70}
AGES = {"age 0": OPEN, "at 3e-4": OPEN, "drop ends": "equal"}  # of losses at constant ages, which have no runs here
WORLDS = [
    World("fig1", "the paper's order", fig1(5, ppo=40, dpo=55, topr=70), YES),
    World("fig1", "naive falls to 53 % of the base; PPO gains 24 of 40 points, 60 %, DPO less", fig1(16, ppo=54,
          dpo=50, topr=70),
          NO, {"TOPR ends above": YES}, effects={"PPO stalls": 40 / 2 - 24, "above DPO": 20, "best of": 16}),
    World("fig2", "the papers' objectives", [], YES, extra=objectives()),
    World("fig2", "beyond, TOPR turns back", [], YES, {"goes on": NO}, extra=objectives(
        {"positive": lambda r: r if r <= 1.2 else 2.4 - r, "negative": lambda r: -r if r >= 0.8 else r - 1.6})),
    World("fig3", "of 20 % TOPR leaves 7, the others more than half", fig3(topr=7, naive=19, ppo=14, dpo=14), YES),
    World("fig3", "TOPR leaves 14, the others 7", fig3(topr=14, naive=7, ppo=7, dpo=1), NO),
    World("fig4", "TOPR is better in all; 78 from 40", fig4([group("topr", 70, maj=75, few=(5, 2)), group("sft", 60,
          maj=65, few=(15, 2))], 78, 70), YES),
    World("fig4", "positives only are; 66 is 165 % of 40", fig4([group("topr", 60, maj=65, few=(15, 2)), group("sft",
          70, maj=75, few=(5, 2))], 66, 74),
          NO, effects={"help": -10, "maj@n": -10, "fewer": 10, "doubled": 66 - 1.8 * 40, "MATH-like: TOPR": -8}),
    World("fig5", "20 % is best, sampling is", fig5({0.05: 40, 0.1: 60, 0.2: 70, 0.5: 61}, {0.05: 40, 0.1: 50, 0.2: 74,
          0.5: 66}), YES),
    World("fig5", "50 % is best at 10 %, 5 % at 50 %, a baseline is", fig5({0.05: 40, 0.1: 55, 0.2: 70, 0.5: 77},
          {0.05: 76, 0.1: 65, 0.2: 68, 0.5: 50}),
          NO, effects={"p = 10 %": -7, "p = 50 %": -8, "10 % by sampling": -10, "50 % by sampling": -27}),
    World("fig6", "stories as in the paper, tasks the other way round", fig6(
        gsm8k=({0.02: 40, 0.1: 50, 0.2: 60, 0.5: 72, 1.0: 70}, {0.02: 5, 0.1: 20, 0.2: 77, 0.5: 73.5, 1.0: 71}),
            math=(LOW, HIGH)), YES, {"MATH": NO}),
    World("fig8", "Anna Karenina before uniform before positives", fig8(uniform=(50, 70, 60, 65), positives=(45, 70,
          50, 80), anna_karenina=(64, 64, 70, 75)),
          YES, effects={"positives only": 10, "uniform, pass@1": 10, "maj@n": 10, "uniform: goes": 10,
              "TOPR on positives: goes": 5}),
    World("fig9", "falls in every seed", [group("topr", 50)], YES, extra=hard((90, 85, 80, 75, 70, 65), (87, 82, 77,
          72, 67, 62), other=range(60, 72, 2))),
    World("fig9", "in one seed it is as high at the fourth", [group("topr", 50)], NO, extra=hard((90, 85, 80, 75, 70,
          65), (90, 85, 80, 80, 70, 65), other=range(90, 60, -5))),
    World("table1", "as in the paper", table1({"sft": 50, "topr": 60, "naive": 5, "is": 45, "tis": 70}, {"topr": 60,
          "tis": 50, "is": 55}), YES,
          {"^positives only: and": NO, "naive REINFORCE: and": NO, "^IS: and": NO},
          extra=variances(sft=1.9, tis=0.5, naive=1.7, **{"is": 1.3})),
    World("table1", "as in the paper, but in one seed TOPR's mean gradient is lost in noise",
          table1({"sft": 50, "topr": 60, "naive": 5, "is": 45, "tis": 70}, {"topr": 60, "tis": 50, "is": 55}), YES,
          {": and less": OPEN},
          extra=variances(sft=1.9, tis=0.5, naive=1.7, **{"is": 1.3}) | {"tiny 1": {"topr": [0.1, -1e-9], "sft": [0.19,
              1.0], "tis": [0.05, 1.0], "naive": [0.17, 1.0], "is": [0.13, 1.0]}}),
    World("table1", "turned", table1({"sft": 50, "topr": 10, "naive": 60, "is": 20, "tis": 5}, {"topr": 40, "tis": 50,
          "is": 45}, weight=0.2), NO, {"^IS: and": YES},
          extra=variances(sft=2.1, tis=3.0, naive=20.0, **{"is": 0.8})),
    World("table2", "better in all", verifier((60, 40, 30, 35, 45), (70, 80, 8, 60, 45)), YES,
          effects={"more accurate": (70 + 3 * 80 - 60 - 3 * 40) / 4, "in balanced": (70 + 80 - 60 - 40) / 2,
              "less than half": 8 - 30 / 2, "gains": 25, "beats": 15}),
    World("table2", "it learns to say 'wrong' always", verifier((80, 40, 30, 30, 75), (5, 95, 3, 50, 75)), YES,
          {"balanced": NO, "beats": NO}),
    World("agro_fig1", "AGRO finds it", [group("agro", 60), group("kl_pg", 50)], YES, extra={"final": {"agro": [1e-9,
          5e-4], "kl_pg": [0.3, 0.02]}}),
    World("agro_kl", "AGRO above at each β; 30 points in 2 nats, 15 in a half; on-policy best where RLOO is not",
          [*beta_sweep("agro", (60, 2.0), (55, 9.0), (45, 0.5)), *beta_sweep("kl_pg", (50, 1), (45, 1), (35, 1)),
           *beta_sweep("agro_on_policy", (60, 4.0), (70, 9.0), (50, 1.0)), *beta_sweep("rloo", (65, 1), (20, 1), (60,
               1))], YES),
    World("agro_kl", "AGRO below; a large β learns more, less a nat; RLOO's best is above AGRO's",
          [*beta_sweep("agro", (45, 0.5), (40, 1), (60, 4)), *beta_sweep("kl_pg", (50, 1), (45, 1), (70, 1)),
           *beta_sweep("agro_on_policy", (35, 0.2), (55, 9.0), (50, 9)), *beta_sweep("rloo", (65, 1), (20, 1), (50,
               1))], NO),
    World("learning_rates", "TOPR alone bears the whole grid", grid("tiny"), YES),
    World("learning_rates", "naive REINFORCE does too", grid("tiny", bears="naive"), NO),
    World("lag", "long answers are dropped, short ones left",
          dropping((90, 10), (50, 20), (30, 25), (20, 21, 19)), YES, AGES),
    World("lag", "short answers, easy problems and right answers are",
          dropping((10, 90), (20, 50), (25, 30), (40, 41, 39)), NO, AGES),
    World("length_bias", "80 tokens with 1/T and 120 without", [*tokens("topr", (80, 70, 90), (120, 110, 130)),
          *tokens("tis", (120, 110, 130), (80, 70, 90))], YES,
          {"TIS: answers": NO, "TIS: correct": NO, "TIS: incorrect": NO, "TIS with": NO, "pass@1": "equal"}),
    World("map", "60 in the mean and 40 at worst against 50 and 10", the_map((70, 70, 60, 40), (10, 60, 60, 70)), YES,
          effects={"averaged": 10, "worst": 30}),
    World("map", "above in the mean, below at worst", the_map((75, 75, 70, 20), (55, 45, 50, 50)), YES, {"worst": NO}),
]  # fmt: skip


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"{world.figure}: {world.what[:30]}")
def test_sentences_are_true_where_the_world_is_so(world: World) -> None:
    world.check()
