"""Figures of single trainings on all completions: TOPR's Figures 1, 3, 4 and 7, and relatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, Row, above, below, by_seeds, counted, judged, pick, where
from reproduce.draw import INSIDE, bars, curves, grid, metric, panel
from reproduce.figure import Extra, algorithms, name_of
from topr_exp.evaluation.intervals import Interval, crossed_interval
from topr_exp.report.results import unpacked
from topr_exp.report.selection import Runs, collapsed, contrast, difference
from topr_exp.runs.records import Record
from topr_exp.types import VERDICTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPERS_FOUR = ("naive", "ppo", "dpo", "topr")


# ---- Figure 1

draw_figure_1 = grid(panel(curves, algorithms, legend=4), columns=0)


def naive_collapses(runs: Runs, extra: Extra) -> Claim:
    """Whether more than half of the seeds collapse."""
    text = "naive REINFORCE collapses: most of its seeds end below half of the base's pass@1"
    found = collapsed(pick(runs, "naive"))
    return Claim(text, above(text, found, 0.5).holds, counted(found) if found else "no runs")


def ppo_stalls(runs: Runs, extra: Extra) -> Claim:
    text = "PPO stalls: it gains less than half of what TOPR gains"
    return above(text, half_of(pick(runs, "ppo"), pick(runs, "topr")))


def half_of(less: Runs, more: Runs) -> Interval | None:
    """Half of what `more` gained on the base, less what `less` gained."""
    if not len(less) or not len(more):
        return None
    base = more.values(part="base")[0]
    return contrast(lambda a, b: (b - base) / 2 - (a - base), less, more)


def second(runs: Runs) -> Runs:
    """The best of the other three; nothing where one of them was not run, which may be the best."""
    others = [pick(runs, name) for name in ("naive", "ppo", "dpo")]
    return max(others, key=lambda group: float(group.values().mean())) if all(map(len, others)) else Runs([])


judge_figure_1 = judged(
    naive_collapses,
    ppo_stalls,
    Row("DPO ends above PPO", "dpo", "ppo"),
    Row("TOPR ends above DPO", "topr", "dpo"),
    Row("TOPR ends above the best of the other three", "topr", second),
)


# ---- Figure 3


def draw_figure_3(runs: Runs, extra: Extra) -> Figure:
    each = [panel(shares, where(name), title=f"{name_of(name)}, {{model}}") for name in PAPERS_FOUR]
    figure = grid(*each, width=2.7, height=2.6)(runs, extra)
    figure.axes[0].legend(fontsize=7, frameon=True, facecolor="white", framealpha=1.0)
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
        ax.plot(steps, 100 * (1 - np.array(line["invalid"])), color="black", lw=0.5)
    ax.set(xlabel="updates", ylabel="share (%)", ylim=(0, 100))


def judge_figure_3(runs: Runs, extra: Extra) -> list[Claim]:
    found = [halved(pick(runs, "topr"), "TOPR leaves less than half of the base's invalid answers")]
    for name in ("naive", "ppo", "dpo"):
        claim = halved(pick(runs, name), "")
        other = None if claim.holds is None else not claim.holds
        found.append(Claim(f"{name_of(name)} does not", other, claim.evidence))
    return found


def halved(runs: Runs, text: str) -> Claim:
    """Whether the share of invalid answers went below half of the base's."""
    if not len(runs):
        return Claim(text, None, "no runs")
    found = below(text, crossed_interval(runs.values("invalid") - runs.values("invalid", "base") / 2))
    now, before = runs.interval("invalid"), runs.interval("invalid", "base")
    return Claim(text, found.holds, f"{before.percent()} → {now.percent()}")


# ---- Figure 4

FEW = 0.25  # of a problem's completions
STORIES, TASKS = where(data__name="gsm8k"), where(data__name="math")


def histogram(ax: Axes, groups: Mapping[str, Runs]) -> None:
    """The share of problems by their number of correct completions."""
    parts = [(name, runs, "final") for name, runs in groups.items() if len(runs)]
    parts = [("base", parts[0][1], "base"), *parts] if parts else []
    for name, runs, part in parts:
        n = runs[0][part]["n"]
        counts = [
            np.bincount(unpacked(each[part]["of_problems"]["correct"]).astype(int), minlength=n + 1) for each in runs
        ]
        mean = 100 * np.mean([count / count.sum() for count in counts], axis=0)
        style = {"color": "0.5", "ls": ":"} if name == "base" else draw.series_style(draw.place(name, [*groups]))
        ax.plot(range(n + 1), mean, marker=".", label=name_of(name), **style)
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")


draw_figure_4 = grid(
    panel(curves, algorithms, within=STORIES, legend=INSIDE, title="{model}, GSM8K-like"),
    panel(bars, algorithms, "maj", within=STORIES, title="", ylabel="maj@{k} (%)"),
    panel(histogram, algorithms, within=STORIES, title="", legend=3),
    panel(bars, algorithms, within=TASKS, title="", ylabel="MATH-like pass@1 (%)"),
    width=3.0,
    height=2.7,
)


def fewer(runs: Runs, extra: Extra) -> Claim:
    text = "fewer problems with at most a quarter of the completions correct"
    sft, topr = (pick(STORIES(runs), name) for name in ("sft", "topr"))
    return below(text, contrast(lambda a, b: (b <= FEW).astype(float) - (a <= FEW), sft, topr))


def doubled(runs: Runs, extra: Extra) -> Claim:
    on_math = pick(TASKS(runs), "topr")
    found = crossed_interval(on_math.values() - 1.8 * on_math.values(part="base")) if len(on_math) else None
    return above("MATH-like: pass@1 almost doubled (more than 1.8 times the base's)", found)


judge_figure_4 = judged(
    Row(
        "negatives help: TOPR above positives only, pass@1",
        where("topr", data__name="gsm8k"),
        where("sft", data__name="gsm8k"),
    ),
    Row("and in maj@n", where("topr", data__name="gsm8k"), where("sft", data__name="gsm8k"), "maj"),
    fewer,
    doubled,
    Row("MATH-like: TOPR above positives only", where("topr", data__name="math"), where("sft", data__name="math")),
)


# ---- Figure 7


def settings_7(runs: Runs) -> dict[str, Runs]:
    """The runs of Figure 7 by what it compares."""
    skewed = runs.where(compose__name="proportion")
    groups = {"default": runs.where(compose__name="uniform")}
    groups |= {f"60 % negatives, clip {clip:g}": each for clip, each in skewed.split("optim.grad_clip").items()}
    return groups


UNCHANGED = where(compose__name="uniform")


def panels_7(runs: Runs) -> list[draw.Panel]:
    def within(name: str) -> Callable[[Runs], Runs]:
        return lambda members: settings_7(members)[name]

    each = [
        panel(curves, algorithms, within=within(name), legend=INSIDE, title_size=8, title=f"{{model}}, {name}")
        for name in settings_7(runs)
    ]
    return [*each, panel(metric, algorithms, "grad_norm", within=UNCHANGED, log=True, title="gradient norm, default")]


draw_figure_7 = grid(panels_of=panels_7, width=2.7, height=2.6)


def last_over_first(record: Record) -> float:
    values = record["metrics"]["grad_norm"]
    part = max(1, len(values) // 5)
    return float(np.mean(values[-part:]) / np.mean(values[:part]))


def norms(runs: Runs, extra: Extra) -> Claim:
    text = "default: IS's gradient norm, last fifth against first, grows more than TOPR's"
    is_, topr = (runs.where(algo__name=name, compose__name="uniform") for name in ("is", "topr"))
    return higher(text, "IS", is_, "TOPR", topr, last_over_first)


def higher(text: str, name: str, first: Runs, other_name: str, other: Runs, number: Callable[[Record], float]) -> Claim:
    """Whether a number of each run is higher in `first` than in `other`, by the interval over seeds that both have."""
    pairs = [(number(one), number(two)) for one in first for two in other if seed_of(one) == seed_of(two)]
    shown = "; ".join(
        f"{label} {' '.join(f'{pair[i]:.2f}' for pair in pairs)}" for i, label in enumerate((name, other_name))
    )
    return by_seeds(text, [one - two for one, two in pairs], shown)


def seed_of(record: Record) -> int:
    return int(record["settings"]["seed"])


LOOSE = {"compose__name": "proportion", "optim__grad_clip": 100.0}
judge_figure_7 = judged(
    Row(
        "default: IS at most 3 points below TOPR",
        where("is", compose__name="uniform"),
        where("topr", compose__name="uniform"),
        least=-0.03,
    ),
    norms,
    Row("60 % negatives, clip 100: IS ends below the base", where("is", **LOOSE), rule=below),
    Row("60 % negatives, clip 100: TOPR ends above the base", where("topr", **LOOSE)),
)


# ---- relatives

draw_related = grid(panel(curves, algorithms, legend=INSIDE), panel(bars, algorithms, title=""))


def judge_related(runs: Runs, extra: Extra) -> list[Claim]:
    topr = pick(runs, "topr")
    return [
        above(f"TOPR ends above {name_of(name)}", difference(group, topr))
        for name, group in algorithms(runs).items()
        if name != "topr"
    ]
