"""The grid of learning rates: how much of it each algorithm tolerates."""

from functools import partial

from reproduce.claims import FEWEST_SEEDS, Claim, Extra, judge_by
from reproduce.figure import BOTH_BASES, Figure
from reproduce.groups import PAPERS, RATE, algorithms, by_setting, name_of
from reproduce.panels import Panel, against, grid, legend_below
from reproduce.selection import Runs

bare_rates = by_setting(RATE, "{:g}")
FRAGILE = ("naive", "ppo", "dpo", "is")


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    papers, relatives = {}, {}
    for name, group in algorithms(runs).items():
        if name in PAPERS:
            papers[name] = group
        else:
            relatives[name] = group
    legend = legend_below(4)
    labels = {"xlabel": "learning rate", "ylabel": "pass@1 on validation problems (%)"}
    right_labels = labels | {"ylabel": ""}
    return [
        Panel(partial(against, groups=papers, key=RATE), model, base=runs, legend=legend, labels=labels),
        Panel(partial(against, groups=relatives, key=RATE), model, base=runs, legend=legend, labels=right_labels),
    ]


def tolerated_rates(runs: Runs, extra: Extra) -> Claim:
    """At how many rates of the grid each algorithm's mean is above the base's."""
    text = "TOPR ends above the base at every rate of the grid, naive REINFORCE, PPO, DPO and IS do not (means)"
    groups = algorithms(runs)
    counts, seed_counts = [], []
    tolerant = set()
    for name, group in groups.items():
        rate_groups = group.split(RATE).values()
        above_base = 0
        for members in rate_groups:
            gains = members.values() - members.values(stage="base")
            above_base += bool(gains.mean() > 0)
            seed_counts.append(len(members))
        counts.append(f"{name_of(name)} {above_base} of {len(rate_groups)}")
        if above_base == len(rate_groups):
            tolerant.add(name)
    evidence = ", ".join(counts)
    has_seeds = min(seed_counts, default=0) >= FEWEST_SEEDS
    if not has_seeds:
        evidence += f"; fewer than {FEWEST_SEEDS} seeds"
    if not has_seeds or not {*FRAGILE, "topr"} <= groups.keys():
        return Claim(text, None, evidence)
    return Claim(text, "topr" in tolerant and not tolerant & set(FRAGILE), evidence)


FIGURE = Figure(
    name="learning_rates",
    title="Learning rates",
    claim="How much of one grid of learning rates does each algorithm tolerate?",
    experiments=(
        "learning_rates",
        "learning_rates algo=rloo,agro_on_policy compose.n_examples=null sampler.top_k=0 schedule.rounds=100",
    ),
    draw=grid(panels, width=4.6),
    judge=judge_by(tolerated_rates),
    levels=(algorithms, bare_rates),
    full_words=(BOTH_BASES,),
    only_full=True,
    note="Validation problems. No figure takes its rates from here: `python -m reproduce.rates` chose them by two "
    "other seeds (docs/results/rates.yaml).",
)
