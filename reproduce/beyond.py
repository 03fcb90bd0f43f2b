"""Questions beyond the papers: which ratio, whose log μ, how stale completions may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reproduce import draw
from reproduce.claims import Claim, above, between
from reproduce.figure import Extra
from reproduce.training import algorithms, by_model
from topr_exp.report.selection import Runs, difference, group_by

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The algorithms of the staleness figure by what keeps them in place on old completions.
KINDS = {
    "each response weighed": ("topr", "tis", "is", "sft", "naive"),
    "clipped next to ratio 1": ("ppo", "grpo", "rec"),
    "no ratio to μ": ("opmd", "asymre", "agro"),
}
RATE, RATIO, UPDATES, TOP_K = "optim.lr", "algo.ratio", "schedule.updates", "sampler.top_k"


# ---- which ratio


def draw_ratio(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    columns = max(len(algorithms(members)) for members in models.values())
    figure, grid = draw.panels(columns, len(models), width=3.2)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (name, group) in zip(row, algorithms(members).items(), strict=False):
            draw.against(ax, group.split(RATIO), RATE)
            draw.base_line(ax, group)
            ax.set(xlabel="learning rate", title=f"{model}, {draw.name_of(name)}")
            ax.legend(fontsize=7)
    return figure


def best_rate(runs: Runs) -> Runs:
    """The runs with the learning rate whose mean pass@1 is highest (on the test problems: see the figure's note)."""
    return max(runs.split(RATE).values(), key=lambda each: float(each.values().mean()), default=Runs([]))


def judge_ratio(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        by_ratio = {ratio: best_rate(each) for ratio, each in group.split(RATIO).items()}
        for other in ("token", "geometric"):
            if {"sequence", other} <= set(by_ratio):
                text = f"{draw.name_of(name)}, each at its best rate: the sequence's ratio ends above the {other} one"
                found.append(above(text, difference(by_ratio[other], by_ratio["sequence"])))
    return found


def table_ratio(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (algorithms, draw.name_of), (RATIO, str), (RATE, "lr {:g}".format))


# ---- whose log μ


def settings_mu(runs: Runs) -> dict[str, Runs]:
    return {
        f"{mu}, {f'top-k {k}' if k else 'no top-k'}": each
        for k, group in runs.split(TOP_K).items()
        for mu, each in group.split("mu").items()
    }


def table_mu(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (algorithms, draw.name_of), (settings_mu, str))


def draw_mu(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    columns = max(len(algorithms(members)) for members in models.values())
    figure, grid = draw.panels(columns, len(models), width=3.2)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        for ax, (name, group) in zip(row, algorithms(members).items(), strict=False):
            draw.bars(ax, settings_mu(group), base=False)
            ax.set_title(f"{model}, {draw.name_of(name)}")
    return figure


def judge_mu(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        for k, some in group.split(TOP_K).items():
            sources = some.split("mu")
            if not {"scored", "sampler"} <= set(sources):
                continue
            gained = difference(sources["sampler"], sources["scored"])
            if k:
                text = f"{draw.name_of(name)}, top-k {k}: recomputing log μ ends above taking the sampler's"
                found.append(above(text, gained))
            else:
                text = f"{draw.name_of(name)}, no top-k: whose log μ it is makes no difference (within a point)"
                found.append(between(text, [("difference", gained)], 0.01))
    return found


# ---- how stale


def draw_staleness(runs: Runs, extra: Extra) -> Figure:
    models = by_model(runs)
    figure, grid = draw.panels(len(KINDS), len(models), width=3.6)
    for row, (model, members) in zip(grid, models.items(), strict=True):
        found = algorithms(members)
        for ax, (kind, names) in zip(row, KINDS.items(), strict=True):
            draw.against(ax, {name: found[name] for name in names if name in found}, UPDATES, shift=0.06)
            draw.base_line(ax, members)
            ax.set(xlabel="updates before sampling again", title=f"{model}, {kind}", ylim=(0, 90))
            ax.legend(fontsize=7, ncols=2, loc="lower left")
    return figure


def judge_staleness(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    for name, group in algorithms(runs).items():
        fresh, stale = group.where(schedule__updates=1), group.where(schedule__rounds=1)
        text = f"{draw.name_of(name)}: sampling after every update ends above one epoch on old completions"
        found.append(above(text, difference(stale, fresh)))
    return found


def table_staleness(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (algorithms, draw.name_of), (UPDATES, "{} updates".format))
