"""Beyond the papers: long answers (model tiny_long) sampled anew every so many updates, TOPR four ways and rivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reproduce import draw
from reproduce.claims import Claim, above, below
from reproduce.figure import Extra
from reproduce.length import last_length, name_of, paired, title, tokens
from reproduce.training import algorithms
from topr_exp.report.selection import Runs, difference, group_by, over_seeds
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UPDATES, EFFECTIVE = "schedule.updates", "ess"
# Losses in which an answer or token too far from where it was sampled has no gradient.
CLIPS = ("PPO", "GRPO", "GSPO", "M2PO")
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
    """Above who ends where; below how long the answers are, and what TOPR's batches are worth."""
    figure, (above_, below_) = draw.panels(3, 2, width=4.4)
    found = ways(runs)
    of_topr = {name: group for name, group in found.items() if name in WAYS.values()}
    clips = {name: group for name, group in found.items() if name == "TOPR" or name.split(",")[0] in CLIPS}
    rest = {name: group for name, group in found.items() if name not in {*clips, *of_topr} or name == "TOPR"}
    shares = {"TOPR four ways": of_topr, "TOPR and what weighs": rest, "TOPR and what clips or masks": clips}
    for ax, (name, groups) in zip(above_, shares.items(), strict=True):
        draw.against(ax, groups, UPDATES, shift=0.05)
        draw.base_line(ax, runs)
        ax.set_title(name)
    for ax, groups in zip(below_, (of_topr, rest), strict=False):
        draw.each_seed(ax, groups, UPDATES, lambda record: last_length(record, "length"), shift=0.05)
        ax.set(ylabel="tokens", title="mean length of the trained model's answers")
    draw.each_seed(below_[2], of_topr, UPDATES, effective, shift=0.05)
    below_[2].set(ylabel="effective sample size (%)", title="of the ratios in the last updates")
    for ax in (*above_, *below_):
        ax.set_xlabel("updates before sampling again")
        draw.legend_below(ax, 2)
    return figure


def effective(record: Record) -> float:
    """Percent: what the answers of a batch are worth by their ratios, (Σ r)² / (B Σ r²), in the last updates."""
    return draw.PERCENT * float(record["metrics"][EFFECTIVE][-1])


def judge_staleness_long(runs: Runs, extra: Extra) -> list[Claim]:
    """What staleness costs each loss; at each staleness every other loss against TOPR, and what 1/T does to length."""
    found = []
    by_updates = {updates: ways(group) for updates, group in runs.split(UPDATES).items()}
    fresh, stale = by_updates.get(1, {}), by_updates.get(64, {})
    none = Runs([])
    for name in ways(runs):
        text = f"{name}: sampling after every update ends above sampling after every 64"
        found.append(above(text, difference(stale.get(name, none), fresh.get(name, none))))
    for updates, here in by_updates.items():
        for name, group in here.items():
            if name != "TOPR":
                text = f"{counted(updates)}: {name} ends above TOPR"
                found.append(above(text, difference(here.get("TOPR", none), group)))
        pairs = zip(*paired(here.get("TOPR", none), here.get("TOPR, without 1/T", none)), strict=True)
        gaps = [last_length(one, "length") - last_length(two, "length") for one, two in pairs]
        found.append(tokens(below(f"{counted(updates)}: TOPR's answers end shorter with 1/T", over_seeds(gaps)), gaps))
    return found


def counted(updates: int) -> str:
    return f"{updates} update{'' if updates == 1 else 's'}"


def table_staleness_long(runs: Runs) -> Mapping[str, Runs]:
    return group_by(runs, (ways, str), (UPDATES, counted))
