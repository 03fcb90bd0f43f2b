"""Beyond the papers: which tokens to drop in a policy gradient, by the age of completions and the sampler's top-k."""

from functools import partial

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by, others_end_above
from reproduce.figure import Figure
from reproduce.groups import by_choice, everything, stalenesses
from reproduce.panels import Panel, against, bars, grid, legend_below
from reproduce.selection import Runs, pick

UPDATES = "schedule.updates"
MASKS = {
    "none": ["policy_gradient algo.rule=null sampler.top_k=0"],
    "PPO's clipping": ["algo.rule=ppo"],
    "DPPO, variation": ["dppo_tv"],
    "DPPO, KL": ["dppo_kl"],
    "trust region": ["trust_region_mask"],
}
TOP_K_WAYS = {
    "unknown": ["policy_gradient sampler.top_k=2 mu=scored"],
    "sampler's μ": ["policy_gradient sampler.top_k=2 mu=sampler algo.denominator=null algo.renormalize=null"],
    "renormalised": ["algo.renormalize=true"],
    "corrected": ["policy_gradient algo.correction=2.0"],
    "IcePop": ['policy_gradient sampler.top_k=2 algo.correction=".inf"'],
}
masks, top_k_ways = by_choice(MASKS), by_choice(TOP_K_WAYS)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    by_updates = partial(against, key=UPDATES, shift=0.05)
    labels = {"xlabel": "updates before sampling again"}
    legend = legend_below(2)
    short = pick(runs, "model.name=tiny sampler.top_k=0")
    long = pick(runs, "model.name=tiny_long")
    draw_short = partial(by_updates, groups=masks(short))
    draw_long = partial(by_updates, groups=masks(long))
    top_2 = pick(runs, "sampler.top_k=2")
    draw_top_2 = partial(bars, groups=top_k_ways(top_2))
    return [
        Panel(draw_short, "GSM8K-like", base=short, legend=legend, labels=labels),
        Panel(draw_long, "stories of 10 turns", base=long, legend=legend, labels=labels),
        Panel(draw_top_2, "GSM8K-like, top-k 2, new completions", base=top_2),
    ]


def fresh_is_better(mask: str) -> list[Decision]:
    return [ends_above(f"{mask}: 8 updates ends above 64", f"{UPDATES}=8", f"{UPDATES}=64")]


def against_none(staleness: str) -> list[Decision]:
    return [others_end_above(lambda mask: f"{staleness}: {mask} ends above none", masks, "none")]


FIGURE = Figure(
    name="masks",
    title="Beyond the papers: which tokens to drop",
    claim="One policy gradient with the ratio of each token, the same 64 updates on completions up to 1, 8 or 64 "
    "updates old: does it help to drop tokens or completions on which the policy has moved? And where the sampler "
    "draws of the two best tokens?",
    experiments=(
        "masks schedule.updates=1,8,64",
        "masks algo.rule=ppo algo.b_pos=1.2 algo.a_neg=0.8 learning_rates.loss=policy_gradient_ppo",
        "masks algo=dppo_tv,dppo_kl,trust_region_mask",
        "staleness_by_rate algo=policy_gradient algo.ratio=token algo.advantage=group data.n=8 optim.whole_groups=true",
        "staleness_by_rate algo=policy_gradient algo.ratio=token algo.advantage=group data.n=8 optim.whole_groups=true "
        "schedule.updates=8,64 algo.rule=ppo algo.b_pos=1.2 algo.a_neg=0.8 learning_rates.loss=policy_gradient_ppo",
        "staleness_by_rate algo=dppo_tv,dppo_kl,trust_region_mask data.n=8 optim.whole_groups=true "
        "schedule.updates=8,64",
        "masks schedule.updates=1 sampler.top_k=2 learning_rates.place=tiny_top_2",
        "masks schedule.updates=1 sampler.top_k=2 learning_rates.place=tiny_top_2 learning_rates.loss=told mu=sampler",
        "masks schedule.updates=1 sampler.top_k=2 learning_rates.place=tiny_top_2 learning_rates.loss=renormalized "
        "mu=sampler algo.renormalize=true",
        "masks schedule.updates=1 sampler.top_k=2 learning_rates.place=tiny_top_2 learning_rates.loss=corrected "
        "mu=sampler algo.denominator=old algo.correction=2",
        "masks schedule.updates=1 sampler.top_k=2 learning_rates.place=tiny_top_2 learning_rates.loss=icepop "
        "mu=sampler algo.denominator=old algo.correction=.inf algo.mask=[{statistic:old_ratio,low:0.5,high:5}]",
    ),
    draw=grid(panels, rows=everything, columns=3, width=4.4),
    judge=judge_by(
        for_each(masks, fresh_is_better),
        for_each(stalenesses, against_none),
        others_end_above(lambda way: f"top-k 2: {way} ends above the sampler's μ unknown", top_k_ways, "unknown"),
    ),
    levels=(by_choice(TOP_K_WAYS | MASKS), stalenesses),
    full_words=(),
    only_full=True,
    names_models=True,
    metrics=("ess",),
    note="Rates were chosen for each mask, model and staleness by seeds 100 and 101, which are not among those "
    "reported (`python -m reproduce.rates masks`). All masks have the advantage reward minus the group's mean, summed "
    "over tokens, and 4 whole groups of 8 in an update. With new completions after every update they are one loss: "
    "run once. Top-k 2: unknown takes training's log-probabilities for μ, the others know what the sampler drew with; "
    "renormalised: π is, too, over the two; corrected: π/π_old times π_old/μ up to 2; IcePop: without tokens with "
    "π_old/μ outside [0.5, 5].",
)
