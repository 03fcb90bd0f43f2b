"""Beyond the papers: which ratio at which length of answers, and what a loss does to their length (model tiny_long)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.beyond import best_rate
from topr_exp.paper.claims import Claim, above, below
from topr_exp.paper.figure import Extra
from topr_exp.paper.training import algorithms
from topr_exp.report.curves import band
from topr_exp.report.selection import Runs, difference, group_by, over_seeds
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TURNS, RATIO, NORMALIZED = "data.turns", "algo.ratio", "algo.length_normalize"
SEQUENCE, OTHERS = ("topr", "tis", "is"), ("token", "geometric")
RIVALS = ("gspo", "cispo", "vespo", "ppo", "opmd")
LENGTHS = ("length", "length_correct", "length_incorrect")


# ---- which ratio at which length


def methods(runs: Runs) -> dict[str, Runs]:
    """The runs by loss: an algorithm, and a ratio where it is not the sequence's."""
    return {
        method(name, ratio): each
        for name, group in algorithms(runs).items()
        for ratio, each in (group.split(RATIO) or {"": group}).items()
    }


def method(name: str, ratio: str = "") -> str:
    return draw.name_of(name) + (f", {ratio} ratio" if ratio in OTHERS else "")


def at_best_rates(runs: Runs) -> Runs:
    """The runs of each loss at each length with the rate that ended best there."""
    groups = (each for group in methods(runs).values() for each in group.split(TURNS).values())
    return Runs([record for group in groups for record in best_rate(group)])


def draw_length(runs: Runs, extra: Extra) -> Figure:
    figure, (row,) = draw.panels(2, width=4.6)
    weighed: dict[str, Runs] = {}
    rest: dict[str, Runs] = {}
    for name, group in methods(at_best_rates(runs)).items():
        (weighed if name.split(",")[0] in map(draw.name_of, SEQUENCE) else rest)[name] = group
    for ax, groups, title in zip(row, (weighed, rest), ("which ratio is tapered", "rivals"), strict=True):
        draw.against(ax, groups, TURNS)
        draw.base_line(ax, runs)
        ax.set(xlabel="turns of the story", title=title)
        draw.legend_below(ax, 3)
    return figure


def judge_length(runs: Runs, extra: Extra) -> list[Claim]:
    """The shortest and the longest stories."""
    found = []
    by_turns = {turns: methods(group) for turns, group in at_best_rates(runs).split(TURNS).items()}
    none = Runs([])
    for turns in sorted({min(by_turns), max(by_turns)}) if by_turns else ():
        here = by_turns[turns]
        for name in SEQUENCE:
            for ratio in OTHERS:
                text = f"{turns} turns, {draw.name_of(name)}: the {ratio} ratio ends above the sequence's"
                found.append(above(text, difference(here.get(method(name), none), here.get(method(name, ratio), none))))
        for name in RIVALS:
            text = f"{turns} turns: {draw.name_of(name)} ends above TOPR"
            found.append(above(text, difference(here.get("TOPR", none), here.get(method(name), none))))
    return found


def table_length(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (methods, str), (TURNS, "{} turns".format), ("optim.lr", "lr {:g}".format))


# ---- what a loss does to the length of answers


def with_and_without(runs: Runs) -> dict[str, Runs]:
    """The runs by algorithm, and by whether the loss is divided by the answer's length T."""
    return {
        f"{draw.name_of(name)}, {label} 1/T": each
        for name, group in algorithms(runs).items()
        for label, each in (("with", divided(group, True)), ("without", divided(group, False)))
        if len(each)
    }


def divided(runs: Runs, by_length: bool) -> Runs:
    """Those whose loss is divided by T, or not; the tapered family's is, unless a record says otherwise."""
    return Runs([each for each in runs if each["settings"].get(NORMALIZED, True) == by_length])


def last_length(record: Record, name: str) -> float:
    return float(record["lengths"][name][-1])


def draw_length_bias(runs: Runs, extra: Extra) -> Figure:
    figure, (row,) = draw.panels(3, width=3.8)
    titles = ("all sampled answers", "correct ones", "incorrect ones")
    for ax, name, title in zip(row, LENGTHS, titles, strict=True):
        length_curves(ax, with_and_without(runs), name)
        ax.set_title(title)
    draw.legend_below(row[1], 3)
    return figure


def length_curves(ax: Axes, groups: Mapping[str, Runs], name: str) -> None:
    """The mean length of the test problems' answers while training: the mean over seeds, every seed thin."""
    for i, (label, runs) in enumerate(groups.items()):
        style = draw.series_style(i)
        lines = [(np.array(each["lengths"]["step"], float), np.array(each["lengths"][name], float)) for each in runs]
        found = band(lines)
        if found is None:
            continue
        for x, y in lines:
            ax.plot(x, y, color=style["color"], lw=0.5, alpha=0.5)
        ax.plot(found.x, found.mean, label=label, **style)
    ax.set(xlabel="updates", ylabel="tokens")


def judge_length_bias(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        pairs = list(zip(*paired(divided(group, True), divided(group, False)), strict=True))
        for key, what in zip(LENGTHS, ("answers", "correct answers", "incorrect answers"), strict=True):
            differences = [last_length(one, key) - last_length(two, key) for one, two in pairs]
            text = f"{draw.name_of(name)}: {what} end shorter with 1/T than without"
            found.append(tokens(below(text, over_seeds(differences)), differences))
        gained = [one["lengths"]["length"][-1] - one["lengths"]["length"][0] for one in divided(group, True)]
        text = f"{draw.name_of(name)} with 1/T: answers end shorter than the base's"
        found.append(tokens(below(text, over_seeds(gained)), gained))
    return found


def paired(first: Runs, second: Runs) -> tuple[list[Record], list[Record]]:
    """The runs of the seeds that both have, by seed."""
    shared = sorted({*first.seeds} & {*second.seeds})
    one, two = ([group[group.seeds.index(seed)] for seed in shared] for group in (first, second))
    return one, two


def tokens(claim: Claim, values: list[float]) -> Claim:
    """A claim about lengths, its evidence in tokens of each seed instead of percent."""
    shown = " ".join(f"{value:+.1f}" for value in values)
    return Claim(claim.text, claim.holds, f"tokens of each seed: {shown}" if values else "no runs")


def table_length_bias(runs: Runs) -> Mapping[str, Runs]:
    return with_and_without(runs)
