"""Beyond the papers: score centering where the sampler is noisy, rounded or older; raw and group-relative rewards."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, within
from reproduce.figure import Figure
from reproduce.groups import by_choice, crossed
from reproduce.panels import (
    LEVEL_LINE,
    MARKERS,
    PERCENT,
    Panel,
    error_lengths,
    grid,
    legend_below,
    name_ticks,
    style_of,
)
from reproduce.selection import Runs
from topr_exp.report import Interval, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOISE = "sampler.mismatch.logits_noise"
WEIGHTS = "sampler.mismatch.weights"
GRPO = "algo=policy_gradient algo.rule=ppo algo.ratio=token algo.advantage=group_std algo.b_pos=1.2 algo.a_neg=0.8"
ROUNDED = f"{NOISE}=0 {WEIGHTS}=int4"
STALE = f"{NOISE}=0 schedule=async schedule.lag=4,16"
CENTERED = "algo.center_scores=true sampler.top_logprobs=310"  # the whole vocabulary, which makes it exact
HARDLY = 0.03  # of pass@1
SPACING = 0.15  # of the losses at a mismatch
raw_losses = by_choice({"TOPR": ["topr"], "TIS": ["tis"], "IS": ["is"]})
group_losses = by_choice({"GRPO": ["policy_gradient"]})
losses = by_choice({"TOPR": ["topr"], "TIS": ["tis"], "IS": ["is"], "GRPO": ["policy_gradient"]})
mismatches = by_choice({
    "noise 0.1": [f"{NOISE}=0.1"],
    "noise 0.3": [f"{NOISE}=0.3"],
    "noise 1": [f"{NOISE}=1.0"],
    "int4": [f"{WEIGHTS}=int4"],
    "lag 4": ["schedule.lag=4"],
    "lag 16": ["schedule.lag=16"],
})  # fmt: skip
with_and_without = by_choice({"as it is": ["algo.center_scores=null"], "centered": ["algo.center_scores=true"]})
centered_by_mismatch = crossed(mismatches, with_and_without)


def experiments() -> tuple[str, ...]:
    """The sweeps: both kinds of losses, all kinds of mismatch, with and without."""
    sweeps = []
    for loss in ("", GRPO):
        for mismatch in ("", ROUNDED, STALE):
            for centering in ("", CENTERED):
                sweeps.append(" ".join(filter(None, ["centering", loss, mismatch, centering])))
    return tuple(sweeps)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    draw_gains = partial(gains, runs=runs)
    return [Panel(draw_gains, legend=legend_below(4), labels={"ylabel": "centered minus as it is (points)"})]


def gains(ax: "Axes", runs: Runs) -> None:
    """The difference in pass@1 that centering makes, by mismatch and loss, with its interval."""
    runs_of_loss = losses(runs)
    middle = (len(runs_of_loss) - 1) / 2
    for place, (loss, members) in enumerate(runs_of_loss.items()):
        pairs = mismatches(members).values()
        intervals = list(filter(None, map(gain, pairs)))
        positions = np.arange(len(intervals)) + SPACING * (place - middle)
        values = [PERCENT * interval.value for interval in intervals]
        style = {"color": style_of(loss, runs_of_loss)["color"], "marker": MARKERS[place], "ls": "", "capsize": 2}
        ax.errorbar(positions, values, error_lengths(intervals), label=loss, **style)
    ax.axhline(0, **LEVEL_LINE)
    name_ticks(ax, list(mismatches(runs)))


def gain(pair: Runs) -> Interval | None:
    """What centering adds, paired by seed and problem."""
    groups = with_and_without(pair)
    return difference(groups["as it is"], groups["centered"])


def helps(loss: str) -> list[Decision]:
    def claims_at(mismatch: str) -> list[Decision]:
        text = f"{loss}, {mismatch}: centered ends above as it is"
        return [ends_above(text, "algo.center_scores=true", "algo.center_scores=null")]

    return [for_each(mismatches, claims_at)]


def hardly_helps(loss: str) -> list[Decision]:
    def claims_at(mismatch: str) -> list[Decision]:
        text = f"{loss}, {mismatch}: centering makes no difference (within 3 points)"
        return [ends_above(text, "algo.center_scores=true", "algo.center_scores=null", rule=within, limit=HARDLY)]

    return [for_each(mismatches, claims_at)]


FIGURE = Figure(
    name="centering",
    title="Beyond the papers: score centering",
    claim="Predicted before any run: where the sampler is not the policy, score centering helps TOPR, TIS and IS, "
    "whose rewards are 1 and −1, and hardly GRPO, whose advantages are 0 on average over the completions to a prompt.",
    experiments=experiments(),
    draw=grid(panels, width=8),
    judge=judge_by(for_each(raw_losses, helps), for_each(group_losses, hardly_helps)),
    levels=(losses, centered_by_mismatch),
    full_words=(),
    only_full=True,
    names_models=True,
    note="Stories of 10 turns, 32 updates at 3e-4, μ as the sampler drew. Completions are new or, with a lag, of the "
    "weights 4 or 16 updates before. GRPO: "
    "`algo=policy_gradient` with PPO's rule, token ratios and standardised advantages. Centered: by the whole "
    "distribution of the sampler. TOPR, TIS and IS weigh the whole completion, where centering is exact only at weight "
    "1.",
)
