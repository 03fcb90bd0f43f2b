"""Kinds of panels that one figure alone has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.difficulty import EFFECTIVE_POSITIVE
from reproduce.draw import OF_BARS, SEED, grid, log_axis, names_below, panel, series_style, style_of
from reproduce.figure import Extra, key_of, of_model
from reproduce.groups import BETA, EFFECTIVE, RATE, Groups, algorithms, name_of
from reproduce.records import TRIED, read_rates
from reproduce.selection import Runs, pick
from reproduce.variance import LIMITS
from topr_exp.algorithms.topr import Ratio, Tapered
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.drawing import MARKERS, plain_number
from topr_exp.report.repetitions import counts_of, problem_shares
from topr_exp.types import VERDICTS, Batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

APART = "KL(π ‖ π_ref), nats a completion"


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


def histogram(ax: Axes, groups: Groups) -> None:
    """The share of problems by their number of correct completions."""
    parts = [(name, runs, "final") for name, runs in groups.items() if len(runs)]
    parts = [("base", parts[0][1], "base"), *parts] if parts else []
    for name, runs, part in parts:
        n = runs[0][part]["n"]
        correct = [counts_of(each[part]["of_problems"]["correct"]).astype(int) for each in runs]
        counts = [np.bincount(each, minlength=n + 1) for each in correct]
        mean = 100 * np.mean([count / count.sum() for count in counts], axis=0)
        style = {"color": "0.5", "ls": ":"} if name == "base" else style_of(name, groups)
        ax.plot(range(n + 1), mean, marker=".", label=name_of(name), **style)
    ax.set(xlabel="correct completions of a problem", ylabel="problems (%)")


def tried(ax: Axes, runs: Runs, place: str) -> None:
    """pass@1 on validation problems by learning rate, of the seeds that chose it: the means, every seed a dot."""
    names = tuple({run["settings"]["algo.name"] for run in runs})  # other figures choose rates in this place, too
    chosen = [(loss, rates) for loss, rates in read_rates(TRIED).get(place, {}).items() if loss.startswith(names)]
    for i, (loss, rates) in enumerate(chosen):
        style = series_style(i)
        ax.plot([*rates], [np.mean(values) for values in rates.values()], label=name_of(loss), **style)
        for rate, values in rates.items():
            ax.plot([rate] * len(values), values, ".", ms=3, color=style["color"])
    log_axis(ax, "x")


def negative_weights(ax: Axes, runs: Runs) -> None:
    """The weight by TOPR's three ratios of a wrong answer of 10, 100 and 1,000 tokens, one of which has all of Δ."""
    import torch

    delta = torch.linspace(-20, 4, 121)
    ratios: tuple[Ratio, ...] = ("geometric", "sequence", "token")
    for i, ratio in enumerate(ratios):
        for j, tokens in enumerate((10, 100, 1000)):
            zero = torch.zeros(len(delta), tokens)
            moved, whole = zero.index_fill(1, torch.tensor([0]), 1.0) * delta[:, None], torch.ones_like(zero).bool()
            wrong = Batch(moved, zero, whole, -torch.ones(len(delta)), torch.zeros(len(delta)).bool())
            weight = Tapered("topr", *LIMITS["topr"], ratio, length_normalize=True)(wrong).metrics["weight"]
            if ratio != "sequence" or j == 0:  # which is the same at every length
                label = ratio if ratio == "sequence" else f"{ratio}, T = {tokens}"
                ax.plot(delta, weight, color=series_style(i)["color"], ls=("-", "--", ":")[j], label=label)
    ax.set(ylabel="weight", ylim=(0, 1.05))


def in_turn(ax: Axes, groups: Groups, name: str) -> None:
    """The mean after each iteration with its interval over seeds and problems, every seed thin."""
    for i, (label, runs) in enumerate(groups.items()):
        values = np.stack([[problem_shares(each, name) for each in record["iterations"]] for record in runs])
        found = [crossed_interval(values[:, step], share=True) for step in range(values.shape[1])]
        steps, style = range(len(found)), series_style(i)
        for line in 100 * values.mean(axis=2):
            ax.plot(steps, line, color=style["color"], lw=0.5, alpha=0.5)
        examples = " ".join(sorted({f"{record['summary']['n_train']:,.0f}" for record in runs}))
        ax.plot(steps, [100 * one.value for one in found], label=f"{name_of(label)} ({examples} examples)", **style)
        low, high = ([100 * getattr(one, end) for one in found] for end in ("low", "high"))
        ax.fill_between(steps, low, high, color=style["color"], alpha=0.12, lw=0)
        ax.set_xticks(steps)


def weights(ax: Axes, runs: Runs, extra: Extra) -> None:
    """The weight of a problem by the base's accuracy on it, a line for each p̃: the mean and the range of the seeds."""
    seeds = of_model(runs, extra)
    for i, p in enumerate(EFFECTIVE_POSITIVE):
        lines = np.array([each["per_problem"][i] for each in seeds], dtype=np.float64)  # nan: no such problems
        x = np.flatnonzero(np.isfinite(lines).all(axis=0))
        lines, style = lines[:, x], series_style(i)
        ax.plot(x, lines.mean(axis=0), label=f"{100 * p:g} %", **style)
        ax.fill_between(x, lines.min(axis=0), lines.max(axis=0), color=style["color"], alpha=0.15, lw=0)
    ax.set_xticks(range(10), [f"{tenth / 10:.1f}" for tenth in range(10)])
    ax.set(xlabel="accuracy of the base on a problem, from", ylabel="weight of a problem (1: all alike)")
    ax.legend(fontsize=7, title="p̃", ncols=2)


def noises(ax: Axes, runs: Runs, extra: Extra) -> None:
    noise(ax, [name for name in algorithms(runs) if name in LIMITS], of_model(runs, extra))


def noise(ax: Axes, names: Sequence[str], seeds: Sequence[Extra]) -> None:
    """The variance of an example's gradient by choice of limits at the weights where TOPR ended; every seed a dot."""
    for i, name in enumerate(names):
        values = np.array([each[name][0] for each in seeds])
        if len(values):
            color = style_of(name, names)["color"]
            ax.bar(i, float(np.exp(np.log(values).mean())), color=color, alpha=OF_BARS)
            ax.plot(np.full(len(values), i), values, **SEED)
    ax.set_ylim(bottom=0.5 * min((each[name][0] for each in seeds for name in names), default=1))
    log_axis(ax, "y")
    names_below(ax, [name_of(name) for name in names])
    ax.set(ylabel="trace of the covariance")


def cells(ax: Axes, runs: Runs, key: str = EFFECTIVE, written: str = "{:g}", scale: float = 1.0) -> None:
    """Mean pass@1 by learning rate and another setting."""
    values, rates = sorted(runs.split(key)), sorted(runs.split(RATE))
    table = np.full((len(rates), len(values)), np.nan)
    for (i, rate), (j, value) in ((a, b) for a in enumerate(rates) for b in enumerate(values)):
        cell = runs.where({RATE: rate, key: value})
        if len(cell):
            table[i, j] = 100 * cell.values().mean()
            ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", color="white", fontsize=8)
    ax.imshow(table, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=100)
    ax.set_xticks(range(len(values)), [written.format(scale * value) for value in values])
    ax.set_yticks(range(len(rates)), [plain_number(rate) for rate in rates])
    ax.set(ylabel="learning rate")
    ax.grid(visible=False)


def efficiency(ax: Axes, groups: Groups, extra: Extra) -> None:
    """pass@1 against KL: the mean over seeds for each β, every seed a dot."""
    for i, (name, group) in enumerate(groups.items()):
        betas = group.split(BETA)
        points = sorted(
            (float(np.mean(distances(each, extra))), 100 * float(each.values().mean()), beta)
            for beta, each in betas.items()
        )
        style = style_of(name, groups)
        x, y, _ = zip(*points, strict=True) if points else ((), (), ())
        ax.plot(x, y, marker=MARKERS[i], ms=4, label=name_of(name), **style)
        for at, height, beta in points:
            ax.plot(at, height, MARKERS[i], ms=4 + 3 * [*betas].index(beta), color=style["color"], alpha=0.7)
        ax.plot(distances(group, extra), 100 * np.array(group.each()), ".", ms=3, color=style["color"], alpha=0.6)
    ax.set(xlabel=f"{APART} (larger marks: larger β)", ylabel="pass@1 (%)")


def apart(ax: Axes, groups: Groups, extra: Extra) -> None:
    """pass@1 of each seed against its KL."""
    for i, (label, group) in enumerate(groups.items()):
        values = 100 * np.array(group.each())
        ax.plot(distances(group, extra), values, MARKERS[i], color=series_style(i)["color"], ms=4, label=label)
    ax.set(xlabel=APART, ylabel="pass@1 (%)", xlim=(0, None))


def distances(runs: Runs, extra: Extra) -> list[float]:
    """KL(π ‖ π_ref) of each run."""
    return [extra[key_of(each)] for each in runs]


def draw_figure_3(runs: Runs, extra: Extra) -> Figure:
    four = [
        panel(shares, partial(pick, choice=name), title=f"{name_of(name)}, {{model}}")
        for name in ("naive", "ppo", "dpo", "topr")
    ]
    figure = grid(lambda runs: four, width=2.7, height=2.6)(runs, extra)
    figure.axes[0].legend(fontsize=7, frameon=True, facecolor="white", framealpha=1.0)
    return figure
