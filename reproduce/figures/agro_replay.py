"""AGRO, Figure 4: learning from samples of earlier rounds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, number_above
from reproduce.distance import KL_TITLE, compute_distances, gain_per_nat, recorded_distances
from reproduce.figure import ALL_SEEDS, BOTH_BASES, Figure
from reproduce.groups import Groups, by_choice, by_setting
from reproduce.panels import PERCENT, Panel, bars, grid, metric
from reproduce.selection import Runs
from topr_exp.report import MARKERS, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEY = "schedule.replay"
WITHOUT, WITH = f"{KEY}=0.0", f"largest {KEY}"
replays = by_setting(KEY, "replay {:g}")
with_fresh = by_choice({"replay 0.5": [f"{KEY}=0.5", WITHOUT], "replay 0.9": [f"{KEY}=0.9", WITHOUT]})


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    groups = replays(runs)
    sampled = partial(metric, groups=groups, name="sampled_correct")
    return [
        Panel(sampled, model, legend={}, labels={"ylabel": "correct among the new samples"}),
        Panel(partial(bars, groups=groups)),
        Panel(partial(score_against_kl, groups=groups, extra=extra), legend={}),
    ]


def score_against_kl(ax: Axes, groups: Groups, extra: Extra) -> None:
    """pass@1 of each seed against its KL."""
    for i, (label, group) in enumerate(groups.items()):
        ax.plot(
            recorded_distances(group, extra),
            PERCENT * np.array(group.seed_means()),
            MARKERS[i],
            color=series_style(i)["color"],
            ms=4,
            label=label,
        )
    ax.set(xlabel=KL_TITLE, ylabel="pass@1 (%)", xlim=(0, None))


def claims_with(replay: str) -> list[Decision]:
    return [
        ends_above(f"{replay}: AGRO ends above the base", WITH),
        ends_above(f"{replay}: at most 3 points below the run without", WITH, WITHOUT, limit=-0.03),
        number_above(
            f"{replay}: as KL-efficient as without (gain a nat at least 0.8 of the other's)",
            (replay, WITH),
            ("without", WITHOUT),
            gain_per_nat,
            form="{:.1f} points a nat",
            factor=0.8,
        ),
    ]


FIGURE = Figure(
    name="agro_replay",
    title="AGRO, replay",
    claim="AGRO goes on to learn, and is as KL-efficient, when a part of its samples comes from earlier rounds.",
    experiments=("agro_replay",),
    draw=grid(panels),
    judge=judge_by(for_each(with_fresh, claims_with)),
    levels=(replays,),
    full_words=(ALL_SEEDS, BOTH_BASES, f"{KEY}=0.0,0.5,0.9"),
    metrics=("sampled_correct",),
    compute_extra=compute_distances,
)
