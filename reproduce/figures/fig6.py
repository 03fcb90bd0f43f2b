"""TOPR, Figure 6: TOPR against TIS by the effective proportion of positives."""

from functools import partial

from reproduce.claims import (
    Claim,
    Decision,
    Extra,
    all_within,
    ends_above,
    for_each,
    judge_by,
    open_if_collapsed,
)
from reproduce.figure import Figure
from reproduce.groups import EFFECTIVE, algorithms, by_setting, data_sets, effective, name_of
from reproduce.panels import Panel, against, grid
from reproduce.selection import Runs, join, pick
from topr_exp.report import difference

few_positives = by_setting(EFFECTIVE, "p̃ = {:.0%}", only=(0.02, 0.05, 0.1))
many_positives = by_setting(EFFECTIVE, "p̃ = {:.0%}", only=(0.5, 0.8, 1.0))
LARGEST_DIFFERENCE = 0.03


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    labels = {"xlabel": "effective proportion of positives p̃"}
    panels_of_data = []
    for data_set, members in data_sets(runs).items():
        by_proportion = partial(against, groups=algorithms(members), key=EFFECTIVE)
        title = f"{model}, {name_of(data_set)}"
        panels_of_data.append(Panel(by_proportion, title, base=members, legend={}, labels=labels))
    return panels_of_data


def alike_where_many(data_set: str) -> Decision:
    def judge(runs: Runs, extra: Extra) -> Claim:
        leads, topr_groups, tis_groups = {}, [], []
        for label, group in many_positives(runs).items():
            topr, tis = pick(group, "topr"), pick(group, "tis")
            leads[label] = difference(topr, tis)
            topr_groups.append(topr)
            tis_groups.append(tis)
        text = f"{data_set}: no difference of more than 3 points from p̃ = 50 % on"
        claim = all_within(text, leads, LARGEST_DIFFERENCE)
        return open_if_collapsed(claim, join(topr_groups), join(tis_groups), lead=0.0)

    return judge


def claims_on(data_set: str) -> list[Decision]:
    def tis_below(proportion: str) -> list[Decision]:
        return [ends_above(f"{data_set}: TIS below TOPR at {proportion}", "topr", "tis")]

    def topr_above_base(proportion: str) -> list[Decision]:
        return [ends_above(f"{data_set}: TOPR does not fail at {proportion}: it ends above the base", "topr")]

    return [
        for_each(few_positives, tis_below),
        for_each(few_positives, topr_above_base),
        alike_where_many(data_set),
        ends_above(f"{data_set}: TIS peaks higher than TOPR", f"best {EFFECTIVE} tis", f"best {EFFECTIVE} topr"),
    ]


FIGURE = Figure(
    name="fig6",
    title="Figure 6",
    claim="Where positives are few, TIS fails and TOPR does not; where they are many the two are alike; TIS has the "
    "slightly higher peak.",
    experiments=("fig6",),
    draw=grid(panels),
    judge=judge_by(for_each(data_sets, claims_on)),
    levels=(data_sets, algorithms, effective),
)
