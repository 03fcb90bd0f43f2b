"""Beyond the papers: the ratio of a whole completion by the nats that it holds."""

from functools import partial

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, others_end_above
from reproduce.figure import Figure
from reproduce.groups import CHOICES, by_choice, everything, rates, wordings
from reproduce.numbers import effective_size, nats
from reproduce.panels import Panel, against_number, grid, legend_below
from reproduce.selection import Runs

RATIOS = {
    "TOPR": ["topr algo.ratio=sequence"],
    "TOPR, token ratio": ["topr algo.ratio=token"],
    "TOPR, geometric ratio": ["topr algo.ratio=geometric"],
}
RIVALS = {
    "TOPR": ["topr algo.ratio=sequence"],
    "TIS": ["tis"],
    "PPO, 0.2 to 5": ["ppo"],
    "VESPO": ["vespo"],
    "CISPO": ["cispo"],
    "naive REINFORCE": ["naive"],
}
losses = by_choice(RIVALS | RATIOS)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    by_nats = partial(against_number, key=CHOICES, at=nats)
    draw_ratios = partial(by_nats, groups=by_choice(RATIOS)(runs))
    draw_rivals = partial(by_nats, groups=by_choice(RIVALS)(runs))
    draw_sizes = partial(by_nats, groups=losses(runs), number=effective_size)
    legend = legend_below(3)
    labels = {"xlabel": "nats a completion"}
    size_labels = labels | {"ylabel": "effective sample size (%)"}
    return [
        Panel(draw_ratios, "TOPR by its ratios", legend=legend, labels=labels),
        Panel(draw_rivals, "TOPR and rivals", legend=legend, labels=labels),
        Panel(draw_sizes, "of the ratios in the last updates", legend=legend, labels=size_labels),
    ]


def against_topr(wording: str) -> list[Decision]:
    return [others_end_above(lambda loss: f"{wording}: {loss} ends above TOPR", losses, "TOPR")]


def few_against_many(loss: str) -> list[Decision]:
    return [ends_above(f"{loss}: 1 wording ends above 128", f"{CHOICES}=1", f"{CHOICES}=128")]


FIGURE = Figure(
    name="nats",
    title="Beyond the papers: how many nats",
    claim="Does the ratio of a whole completion degrade with the nats that it holds? Up to how many does it work, and "
    "what is better beyond?",
    experiments=(
        "nats",
        "nats algo=topr algo.ratio=token learning_rates.loss=topr_token_ratio",
        "nats algo=topr algo.ratio=geometric learning_rates.loss=topr_geometric_ratio",
        "nats algo=ppo algo.eps_low=0.8 algo.eps_high=4 learning_rates.loss=ppo_eps_low_0_8",
    ),
    draw=grid(panels, rows=everything, width=4.4),
    judge=judge_by(for_each(wordings, against_topr), for_each(losses, few_against_many)),
    levels=(losses, wordings, rates),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=("ess", "nats"),
    note="Stories of 22 turns, one epoch on 1,600 fixed completions; with k wordings a turn a completion has 22 log "
    "k nats more. Rates were chosen for each loss and k by seeds 100 and 101, which are not among those reported "
    "(`python -m reproduce.rates nats`). The ratios that the effective sample size is of are of whole completions.",
)
