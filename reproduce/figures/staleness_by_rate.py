"""Beyond the papers: how stale completions may be, each loss at the rate that was chosen for it at that staleness."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, others_end_above
from reproduce.figure import Figure
from reproduce.groups import by_choice, by_setting, everything, name_of, stalenesses
from reproduce.numbers import effective_size
from reproduce.panels import Panel, against, grid, legend_below, make_log_axis
from reproduce.records import TRIED_RATES, read_rates
from reproduce.selection import Runs
from topr_exp.report import series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UPDATES = "schedule.updates"
# With new completions after every update losses are one: the runs of a second choice are those of the first name, too.
TOPR = "topr algo.length_normalize=null algo.b_neg=null"
FRESH_TOPR = f"{TOPR} {UPDATES}=1"
FRESH_GRPO = f"grpo {UPDATES}=1"
FRESH_GSPO = f"gspo algo.eps_low=null {UPDATES}=1"
LOSSES_OF_COMPLETIONS = {
    "TOPR": [TOPR],
    "TOPR, negatives to 5": ["topr algo.b_pos=null algo.b_neg=5", FRESH_TOPR],
    "TOPR, 0.2 to 5": ["topr algo.b_pos=5 algo.b_neg=5", FRESH_TOPR],
    "TOPR, without 1/T": ["topr algo.length_normalize=false"],
    "TIS": ["tis", FRESH_TOPR],
    "PPO, 0.2 to 5": ["ppo algo.eps_low=0.8", FRESH_TOPR],
    "PPO, 0.8 to 1.2": ["ppo algo.eps_low=null", FRESH_TOPR],
}
LOSSES_OF_GROUPS = {
    "GRPO": ["grpo"],
    "CISPO": ["cispo", FRESH_GRPO],
    "M2PO": ["m2po", FRESH_GRPO],
    "GSPO": ["gspo algo.eps_low=null"],
    "GSPO, ε = 0.03": ["gspo algo.eps_low=0.03", FRESH_GSPO],
    "SAPO": ["sapo", FRESH_GSPO],
    "VESPO": ["vespo algo.c1_pos=null"],
    "VESPO, a quarter": ["vespo algo.c1_pos=0.5", f"vespo algo.c1_pos=null {UPDATES}=1"],
}
losses = by_choice(LOSSES_OF_GROUPS | LOSSES_OF_COMPLETIONS)
# TIS, PPO and other limits would compare the three fresh runs of TOPR again.
COMPARED_LOSSES = {name: LOSSES_OF_COMPLETIONS[name] for name in ("TOPR", "TOPR, without 1/T")}
losses_with_fresh_runs = by_choice(LOSSES_OF_GROUPS | COMPARED_LOSSES)
losses_after_8 = by_choice({name: LOSSES_OF_GROUPS[name] for name in ("GRPO", "CISPO", "VESPO")})
stale_updates = by_setting(UPDATES, "{} updates", only=(8, 64))
WIDENED = {
    "PPO": ("ppo algo.eps_low=0.8", "ppo algo.eps_low=null"),
    "GSPO": ("gspo algo.eps_low=0.03", "gspo algo.eps_low=null"),
    "VESPO": ("vespo algo.c1_pos=0.5", "vespo algo.c1_pos=null"),
    "TOPR": ("topr algo.b_pos=5 algo.b_neg=5", TOPR),
}


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    """Above the reported seeds, below those that chose the rates."""
    by_updates = partial(against, key=UPDATES, shift=0.05)
    draw_completions = partial(by_updates, groups=by_choice(LOSSES_OF_COMPLETIONS)(runs))
    draw_groups = partial(by_updates, groups=by_choice(LOSSES_OF_GROUPS)(runs))
    draw_sizes = partial(by_updates, groups=losses(runs), number=effective_size)
    legend = legend_below(2)
    labels = {"xlabel": "updates before sampling again"}
    size_labels = labels | {"ylabel": "effective sample size (%)"}
    return [
        Panel(draw_completions, "losses of single completions", base=runs, legend=legend, labels=labels),
        Panel(draw_groups, "losses of whole groups", base=runs, legend=legend, labels=labels),
        Panel(draw_sizes, "of the ratios in the last updates", legend=legend_below(3), labels=size_labels),
        tried_panel(runs, "tiny_long_10_turns_1_updates", "the seeds that chose the rates, 1 update"),
        tried_panel(runs, "tiny_long_10_turns_8_updates", "the same, 8 updates"),
        tried_panel(runs, "tiny_long_10_turns_64_updates", "the same, 64 updates"),
    ]


def tried_panel(runs: Runs, place: str, title: str) -> Panel:
    labels = {"xlabel": "learning rate", "ylabel": "pass@1 on validation problems (%)"}
    return Panel(partial(tried_rates, runs=runs, place=place), title, legend=legend_below(3), labels=labels)


def tried_rates(ax: Axes, runs: Runs, place: str) -> None:
    """pass@1 on validation problems by learning rate, of the seeds that chose it: the means, every seed a dot."""
    algorithms = tuple({record["settings"]["algo.name"] for record in runs})
    scores_by_loss = read_rates(TRIED_RATES).get(place, {})
    losses_of_runs = [loss for loss in scores_by_loss if loss.startswith(algorithms)]
    for i, loss in enumerate(losses_of_runs):
        style = series_style(i)
        scores_by_rate = scores_by_loss[loss]
        means = list(map(np.mean, scores_by_rate.values()))
        ax.plot(list(scores_by_rate), means, label=name_of(loss), **style)
        for rate, scores in scores_by_rate.items():
            ax.plot([rate] * len(scores), scores, ".", ms=3, color=style["color"])
    make_log_axis(ax, "x")


def cost_of(updates: int) -> Callable[[str], list[Decision]]:
    def claims_about(loss: str) -> list[Decision]:
        return [ends_above(f"{loss}: 1 update ends above {updates}", f"{UPDATES}=1", f"{UPDATES}={updates}")]

    return claims_about


def against_topr(staleness: str) -> list[Decision]:
    return [others_end_above(lambda loss: f"{staleness}: {loss} ends above TOPR", losses, "TOPR")]


def wider_is_better(loss: str) -> Decision:
    wide, usual = WIDENED[loss]
    text = f"64 updates: {loss} with wide limits ends above its usual ones"
    return ends_above(text, f"{wide} {UPDATES}=64", f"{usual} {UPDATES}=64")


FIGURE = Figure(
    name="staleness_by_rate",
    title="Beyond the papers: staleness, each loss at its rate for it",
    claim="The same 64 updates on completions of about 110 tokens, sampled anew after every 1, 8 or 64 of them, each "
    "loss at the rate that was chosen for it at that staleness: which ones need fresh completions?",
    experiments=(
        "staleness_by_rate",
        "staleness_by_rate algo.length_normalize=false learning_rates.loss=topr_undivided schedule.updates=1,64",
        "staleness_by_rate algo=ppo algo.eps_low=0.8 algo.eps_high=4 learning_rates.loss=ppo_eps_low_0_8 "
        "schedule.updates=8,64",
        "staleness_by_rate algo.b_neg=5 learning_rates.loss=topr_b_neg_5 schedule.updates=64",
        "staleness_by_rate algo.a_pos=0.2 algo.b_pos=5 algo.a_neg=0.2 algo.b_neg=5 learning_rates.loss=topr_b_pos_5 "
        "schedule.updates=64",
        "staleness_by_rate algo=tis schedule.updates=64",
        "staleness_by_rate algo=grpo,vespo data.n=8 optim.whole_groups=true",
        "staleness_by_rate algo=cispo data.n=8 optim.whole_groups=true schedule.updates=8,64",
        "staleness_by_rate algo=gspo data.n=8 optim.whole_groups=true schedule.updates=1,64",
        "staleness_by_rate algo=m2po,sapo data.n=8 optim.whole_groups=true schedule.updates=64",
        "staleness_by_rate algo=ppo schedule.updates=64",
        "staleness_by_rate algo=gspo algo.eps_low=0.03 algo.eps_high=0.03 learning_rates.loss=gspo_eps_low_0_03 "
        "data.n=8 optim.whole_groups=true schedule.updates=64",
        "staleness_by_rate algo=vespo algo.c1_pos=0.5 algo.c2_pos=0.75 algo.c1_neg=0.75 algo.c2_neg=0.5 "
        "learning_rates.loss=vespo_c1_pos_0_5 data.n=8 optim.whole_groups=true schedule.updates=64",
    ),
    draw=grid(panels, rows=everything, columns=3, width=4.4),
    judge=judge_by(
        for_each(losses_after_8, cost_of(8)),
        for_each(losses_with_fresh_runs, cost_of(64)),
        for_each(stale_updates, against_topr),
        *map(wider_is_better, WIDENED),
    ),
    levels=(losses, stalenesses),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=("ess",),
    note="Stories of 10 turns. Rates were chosen for each loss and staleness by seeds 100 and 101, which are not among "
    "those reported, on validation problems (below; `python -m reproduce.rates staleness_by_rate`). A batch of fresh "
    "and one of stale completions hold equally many problems: 32 with a completion each, or 4 whole groups of 8. With "
    "new completions after every update TOPR, TIS and PPO are one loss, so are GRPO, CISPO and M2PO, so are GSPO and "
    "SAPO: run once there, and drawn for each; so is a loss with other limits. A single claim rests on the three fresh "
    "runs of TOPR, TIS and PPO. A quarter: of all four of VESPO's exponents.",
)
