"""Beyond the papers: long answers (model tiny_long) sampled anew every so many updates, TOPR four ways and rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from topr_exp.paper import draw
from topr_exp.paper.claims import Claim, above
from topr_exp.paper.figure import Extra
from topr_exp.paper.length import last_length, name_of, title
from topr_exp.paper.training import algorithms
from topr_exp.report.selection import Runs, difference, group_by
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UPDATES, EFFECTIVE = "schedule.updates", "ess"
# TOPR by whether its advantage is the group's and whether its loss is divided by the answer's length.
WAYS = {
    (False, True): "TOPR",
    (False, False): "TOPR, without 1/T",
    (True, True): "TOPR, the group's advantage",
    (True, False): "TOPR, both",
}


def way(record: Record) -> str:
    """The name of the loss that a run was trained with."""
    settings = record["settings"]
    if settings["algo.name"] != "topr":
        return title(name_of(record))
    return WAYS[settings.get("algo.advantage") == "group", settings.get("algo.length_normalize", True)]


def ways(runs: Runs) -> dict[str, Runs]:
    """The runs by loss, TOPR's ways first."""
    ordered = [record for group in algorithms(runs).values() for record in group]
    names = dict.fromkeys([*WAYS.values(), *map(way, ordered)])
    found = {name: Runs([each for each in ordered if way(each) == name]) for name in names}
    return {name: group for name, group in found.items() if len(group)}


def draw_staleness_long(runs: Runs, extra: Extra) -> Figure:
    """Above who ends where; below what TOPR's four ways do to the effective sample size and to the answers' length."""
    figure, (above_, below_) = draw.panels(2, 2, width=4.6)
    found = ways(runs)
    of_topr = {name: group for name, group in found.items() if name in WAYS.values()}
    rivals = {name: group for name, group in found.items() if name == "TOPR" or name not in of_topr}
    for ax, groups, name in zip(above_, (of_topr, rivals), ("TOPR four ways", "TOPR and rivals"), strict=True):
        draw.against(ax, groups, UPDATES, shift=0.06)
        draw.base_line(ax, runs)
        ax.set_title(name)
    every_seed(below_[0], of_topr, effective)
    below_[0].set(ylabel="effective sample size (%)", title="of the ratios in the last updates")
    every_seed(below_[1], of_topr, lambda record: last_length(record, "length"))
    below_[1].set(ylabel="tokens", title="mean length of the trained model's answers")
    for ax in (*above_, *below_):
        draw.log_ticks(ax, runs.split(UPDATES))
        ax.set_xlabel("updates before sampling again")
        draw.legend_below(ax, 2)
    return figure


def effective(record: Record) -> float:
    """Percent: what the answers of a batch are worth by their ratios, (Σ r)² / (B Σ r²), in the last updates."""
    return draw.PERCENT * float(record["metrics"][EFFECTIVE][-1])


def every_seed(ax: Axes, groups: Mapping[str, Runs], of: Callable[[Record], float]) -> None:
    """A number of each run against the updates before sampling again: the mean over seeds, every seed a dot."""
    for i, (label, runs) in enumerate(groups.items()):
        style = draw.series_style(i)
        values = {updates * 1.06**i: [of(each) for each in group] for updates, group in runs.split(UPDATES).items()}
        ax.plot([*values], [np.mean(each) for each in values.values()], marker=draw.MARKERS[i], ms=4, label=label,
                **style)  # fmt: skip
        for x, each in values.items():
            ax.plot([x] * len(each), each, ".", ms=2.5, color=style["color"], alpha=0.6)


def judge_staleness_long(runs: Runs, extra: Extra) -> list[Claim]:
    found = []
    by_updates = {updates: ways(group) for updates, group in runs.split(UPDATES).items()}
    fresh, stale = by_updates.get(1, {}), by_updates.get(64, {})
    none = Runs([])
    for name in ways(runs):
        text = f"{name}: sampling after every update ends above sampling after every 64"
        found.append(above(text, difference(stale.get(name, none), fresh.get(name, none))))
    for name in ways(runs):
        if name != "TOPR":
            text = f"64 updates: {name} ends above TOPR"
            found.append(above(text, difference(stale.get("TOPR", none), stale.get(name, none))))
    return found


def table_staleness_long(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (ways, str), (UPDATES, "{} updates".format))
