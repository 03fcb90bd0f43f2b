"""Figures of single trainings on all completions: TOPR's Figures 1, 3, 4 and 7, and relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, below, counted
from reproduce.figure import Extra
from topr_exp.evaluation.intervals import Interval, crossed_interval
from topr_exp.report.results import unpacked
from topr_exp.report.selection import Runs, collapsed, contrast, difference, gain, group_by, over_seeds
from topr_exp.runs.records import Record
from topr_exp.types import VERDICTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPERS_FOUR = ("naive", "ppo", "dpo", "topr")


def algorithms(runs: Runs) -> dict[str, Runs]:
    """The runs by algorithm, the paper's first and in its order."""
    found = runs.split("algo.name")
    order = [*draw.ORDER, *found]
    return {name: found[name] for name in sorted(found, key=order.index)}


def by_model(runs: Runs) -> dict[str, Runs]:
    return runs.split("model.name")


# ---- Figure 1


def draw_figure_1(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(len(models))
    for ax, (model, members) in zip(grid[0], models.items(), strict=True):
        draw.curves(ax, algorithms(members))
        ax.set_title(model)
        draw.legend_below(ax, 4)
    return figure


def judge_figure_1(runs: Runs, extra: Extra) -> list[Claim]:
    algos = algorithms(runs)
    naive, ppo, dpo, topr = (algos.get(name, Runs([])) for name in PAPERS_FOUR)
    others = [group for group in (naive, ppo, dpo) if len(group)]
    known = others if len(others) == 3 else []  # of two, the best may be the third
    second = max(known, key=lambda group: float(group.values().mean()), default=Runs([]))
    return [
        collapses("naive REINFORCE collapses: most of its seeds end below half of the base's pass@1", naive),
        above("PPO stalls: it gains less than half of what TOPR gains", half_of(ppo, topr)),
        above("DPO ends above PPO", difference(ppo, dpo)),
        above("TOPR ends above DPO", difference(dpo, topr)),
        above("TOPR ends above the best of the other three", difference(second, topr)),
    ]


def collapses(text: str, runs: Runs) -> Claim:
    """Whether more than half of the seeds collapse."""
    found = collapsed(runs)
    return Claim(text, above(text, found, 0.5).holds, counted(found) if found else "no runs")


def half_of(less: Runs, more: Runs) -> Interval | None:
    """Half of what `more` gained on the base, less what `less` gained."""
    if not len(less) or not len(more):
        return None
    base = more.values(part="base")[0]
    return contrast(lambda a, b: (b - base) / 2 - (a - base), less, more)


# ---- Figure 3


def draw_figure_3(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(len(PAPERS_FOUR), len(models), width=2.7, height=2.6)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, name in zip(row, PAPERS_FOUR, strict=True):
            shares(ax, members.where(algo__name=name))
            ax.set_title(f"{draw.name_of(name)}, {model}")
    grid[0][0].legend(fontsize=7, frameon=True, facecolor="white", framealpha=1.0)
    return figure


def shares(ax: Axes, runs: Runs) -> None:
    """Stacked shares of the three verdicts while training, the mean over seeds; each seed's invalid share as a line."""
    lines = [each["curve"] for each in runs if "curve" in each]
    if not lines:
        return
    steps = lines[0]["step"]
    means = [100 * np.mean([line[name] for line in lines], axis=0) for name in VERDICTS]
    ax.stackplot(steps, *means, labels=VERDICTS, colors=("#009E73", "0.8", "#D55E00"))
    for line in lines:
        low = 100 * (1 - np.array(line["invalid"]))
        ax.plot(steps, low, color="black", lw=0.5)
    ax.set(xlabel="updates", ylabel="share (%)", ylim=(0, 100))


def judge_figure_3(runs: Runs, extra: Extra) -> list[Claim]:
    algos = algorithms(runs)
    found = [halved(algos.get("topr", Runs([])), "TOPR leaves less than half of the base's invalid answers")]
    for name in ("naive", "ppo", "dpo"):
        claim = halved(algos.get(name, Runs([])), "")
        other = None if claim.holds is None else not claim.holds
        found.append(Claim(f"{draw.name_of(name)} does not", other, claim.evidence))
    return found


def halved(runs: Runs, text: str) -> Claim:
    """Whether the share of invalid answers went below half of the base's."""
    if not len(runs):
        return Claim(text, None, "no runs")
    found = below(text, crossed_interval(runs.values("invalid") - runs.values("invalid", "base") / 2))
    now, before = runs.interval("invalid"), runs.interval("invalid", "base")
    return Claim(text, found.holds, f"{before.percent()} → {now.percent()}")


# ---- Figure 4


def draw_figure_4(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(4, len(models), width=3.0, height=2.7)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        stories = algorithms(members.where(data__name="gsm8k"))
        draw.curves(row[0], stories)
        row[0].legend(fontsize=7)
        draw.bars(row[1], stories, "maj")
        row[1].set(ylabel=majority(members))
        histogram(row[2], stories)
        draw.bars(row[3], algorithms(members.where(data__name="math")))
        row[3].set(ylabel="MATH-like pass@1 (%)")
        row[0].set_title(f"{model}, GSM8K-like")
    return figure


def majority(runs: Runs) -> str:
    return f"maj@{runs[0]['final']['k']} (%)" if len(runs) else "maj"


def histogram(ax: Axes, groups: Mapping[str, Runs]) -> None:
    """The share of problems by their number of correct completions."""
    parts = [(name, runs, "final") for name, runs in groups.items() if len(runs)]
    parts = [("base", parts[0][1], "base"), *parts] if parts else []
    for name, runs, part in parts:
        n = runs[0][part]["n"]
        counts = [np.bincount(unpacked(each[part]["of_problems"]["correct"]).astype(int), minlength=n + 1)
                  for each in runs]  # fmt: skip
        mean = 100 * np.mean([count / count.sum() for count in counts], axis=0)
        style = {"color": "0.5", "ls": ":"} if name == "base" else draw.series_style(draw.place(name, [*groups]))
        ax.plot(range(n + 1), mean, marker=".", label=draw.name_of(name), **style)
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")
    draw.legend_below(ax, 3)


FEW = 0.25  # of a problem's completions


def judge_figure_4(runs: Runs, extra: Extra) -> list[Claim]:
    stories, tasks = (algorithms(runs.where(data__name=name)) for name in ("gsm8k", "math"))
    none = Runs([])
    sft, topr = stories.get("sft", none), stories.get("topr", none)
    fewer = contrast(lambda a, b: (b <= FEW).astype(float) - (a <= FEW), sft, topr)
    on_math = tasks.get("topr", none)
    doubled = crossed_interval(on_math.values() - 1.8 * on_math.values(part="base")) if len(on_math) else None
    return [
        above("negatives help: TOPR above positives only, pass@1", difference(sft, topr)),
        above("and in maj@n", difference(sft, topr, "maj")),
        below("fewer problems with at most a quarter of the completions correct", fewer),
        above("MATH-like: pass@1 almost doubled (more than 1.8 times the base's)", doubled),
        above("MATH-like: TOPR above positives only", difference(tasks.get("sft", none), on_math)),
    ]


# ---- Figure 7


def settings_7(runs: Runs) -> dict[str, Runs]:
    """The runs of Figure 7 by what it compares."""
    skewed = runs.where(compose__name="proportion")
    groups = {"default": runs.where(compose__name="uniform")}
    groups |= {f"60 % negatives, clip {clip:g}": each for clip, each in skewed.split("optim.grad_clip").items()}
    return groups


def table_7(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (settings_7, str), (algorithms, draw.name_of))


def draw_figure_7(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(5, len(models), width=2.7, height=2.6)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (setting, group) in zip(row, settings_7(members).items(), strict=False):
            draw.curves(ax, algorithms(group))
            ax.set_title(f"{model}, {setting}", fontsize=8)
            ax.legend(fontsize=7)
        draw.metric(row[-1], algorithms(settings_7(members)["default"]), "grad_norm")
        draw.log_axis(row[-1], "y")
        row[-1].set(title="gradient norm, default")
    return figure


def judge_figure_7(runs: Runs, extra: Extra) -> list[Claim]:
    groups = settings_7(runs)
    default = algorithms(groups["default"])
    loose = algorithms(next((each for name, each in groups.items() if name.endswith("100")), Runs([])))
    none = Runs([])
    is_, topr = default.get("is", none), default.get("topr", none)
    return [
        above("default: IS at most 3 points below TOPR", difference(topr, is_), -0.03),
        norms(is_, topr),
        below("60 % negatives, clip 100: IS ends below the base", gain(loose.get("is", none))),
        above("60 % negatives, clip 100: TOPR ends above the base", gain(loose.get("topr", none))),
    ]


def norms(is_: Runs, topr: Runs) -> Claim:
    """Whether IS's gradient norm grows with training, compared with TOPR's."""
    text = "default: IS's gradient norm, last fifth against first, grows more than TOPR's"
    return higher(text, "IS", is_, "TOPR", topr, last_over_first)


def higher(text: str, name: str, first: Runs, other_name: str, other: Runs, number: Callable[[Record], float]) -> Claim:
    """Whether a number of each run is higher in `first` than in `other`, by the interval over seeds that both have."""
    pairs = [(number(one), number(two)) for one in first for two in other if seed_of(one) == seed_of(two)]
    shown = "; ".join(
        f"{name} {' '.join(f'{pair[i]:.2f}' for pair in pairs)}" for i, name in enumerate((name, other_name))
    )
    found = over_seeds([one - two for one, two in pairs])
    return Claim(text, above(text, found).holds, shown if pairs else "no runs")


def seed_of(record: Record) -> int:
    return int(record["settings"]["seed"])


def last_over_first(record: dict[str, dict[str, list[float]]]) -> float:
    values = record["metrics"]["grad_norm"]
    part = max(1, len(values) // 5)
    return float(np.mean(values[-part:]) / np.mean(values[:part]))


# ---- relatives


def draw_related(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(2, len(models))
    for row, (model, members) in zip(grid, models.items(), strict=True):
        draw.curves(row[0], algorithms(members))
        row[0].set_title(model)
        row[0].legend(fontsize=7)
        draw.bars(row[1], algorithms(members))
    return figure


def judge_related(runs: Runs, extra: Extra) -> list[Claim]:
    algos = algorithms(runs)
    topr = algos.get("topr", Runs([]))
    return [
        above(f"TOPR ends above {draw.name_of(name)}", difference(group, topr))
        for name, group in algos.items()
        if name != "topr"
    ]
