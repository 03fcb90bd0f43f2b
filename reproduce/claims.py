"""Claims that a row of figures.yaml can't say, numbers that rows compare, and what figures compute of finished runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reproduce.difficulty import EFFECTIVE_POSITIVE, difficulty_of_run
from reproduce.draw import PERCENT
from reproduce.figure import (
    Claim,
    Extra,
    above,
    below,
    between,
    by_seeds,
    combined,
    contrary,
    counted,
    in_pairs,
    model_and_seed,
    of_model,
    row,
    sound,
    versus,
)
from reproduce.groups import EFFECTIVE, RATE, algorithms, grouping, name_of
from reproduce.panels import distances
from reproduce.records import LENGTHS
from reproduce.selection import Runs, collapsed, mean_of, pick
from reproduce.variance import LIMITS
from topr_exp.evaluation.intervals import FEWEST_SEEDS, crossed_interval
from topr_exp.report.repetitions import contrast, difference, problem_shares
from topr_exp.runs.records import Record

# ---- Figures 1, 3 and 4


def naive_collapses(runs: Runs, extra: Extra) -> Claim:
    text = "naive REINFORCE collapses: most of its seeds end below half of the base's pass@1"
    found = collapsed(pick(runs, "naive"))
    if found is None:
        return Claim(text, None, "no runs")
    holds = True if found.low > 0.5 else False if found.high < 0.5 else None
    return Claim(text, holds, counted(found), half_or_fewer(round(found.value * found.seeds), found.seeds))


def half_or_fewer(count: int, total: int) -> float:
    """Two-sided p of the binomial test of a share of one half."""
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(count, total - count), total, 0.5)))


def ppo_stalls(runs: Runs, extra: Extra) -> Claim:
    found = combined(runs, lambda ppo, topr, base: (topr - base) / 2 - (ppo - base), "ppo", "topr")
    claim = above("PPO stalls: it gains less than half of what TOPR gains", found)
    return sound(claim, pick(runs, "topr"), pick(runs, "ppo"), found.value if found else 0.0)


def halved(runs: Runs, name: str, text: str) -> Claim:
    """Decide that the share of invalid answers went below half of the base's."""
    group = pick(runs, name)
    if not len(group):
        return Claim(text, None, "no runs")
    found = below(text, crossed_interval(group.values("invalid") - group.values("invalid", "base") / 2))
    now, before = group.interval("invalid"), group.interval("invalid", "base")
    return replace(found, evidence=f"{before.percent()} → {now.percent()}")


def judge_figure_3(runs: Runs, extra: Extra) -> list[Claim]:
    first = halved(runs, "topr", "TOPR leaves less than half of the base's invalid answers")
    return [first, *(contrary(f"{name_of(name)} does not", halved(runs, name, "")) for name in ("naive", "ppo", "dpo"))]


def fewer(runs: Runs, extra: Extra) -> Claim:
    pair = "sft data.name=gsm8k", "topr data.name=gsm8k"
    found = combined(runs, lambda sft, topr, base: (topr <= 0.25).astype(float) - (sft <= 0.25), *pair)
    return below("fewer problems with at most a quarter of the completions correct", found)


def doubled(runs: Runs, extra: Extra) -> Claim:
    found = combined(runs, lambda topr, base: topr - 1.8 * base, "topr data.name=math")
    return above("MATH-like: pass@1 almost doubled (more than 1.8 times the base's)", found)


# ---- Figures 5 and 6, and the map


def best_proportions(runs: Runs, extra: Extra) -> list[Claim]:
    """The paper's proportions against the others, for each share of positives; and how far the best ones lie apart."""
    found, peaks = [], []
    for label, group in grouping("shares")(runs).items():
        parts = [[one for one in group if (one["settings"][EFFECTIVE] in (0.1, 0.2)) == ours] for ours in (True, False)]
        if not all(parts):
            continue
        ours, others, peak = (pick(Runs(part), f"best {EFFECTIVE}") for part in (*parts, group))
        text = f"{label}: the better of 10 and 20 % ends above the best other effective proportion"
        claim = versus(text, others, ours)
        found.append(replace(claim, evidence=f"{share(ours)} against {share(others)}: {claim.evidence}"))
        peaks.append(peak)
    text = "the best effective proportion hardly depends on p (highest means the same, or neighbours on the grid)"
    if len(peaks) == 2:
        one, other = ([*runs.split(EFFECTIVE)].index(each[0]["settings"][EFFECTIVE]) for each in peaks)
        found.append(Claim(text, abs(one - other) <= 1, " and ".join(map(share, peaks))))
    return found


def share(runs: Runs) -> str:
    return f"{100 * float(runs[0]['settings'][EFFECTIVE]):g} %"


def alike_where_many(runs: Runs, extra: Extra) -> Claim:
    many = grouping("many")(runs).items()
    leads = ((label, difference(pick(group, "topr"), pick(group, "tis"))) for label, group in many)
    claim = between("{data_sets}: no difference of more than 3 points from p̃ = 50 % on", leads, 0.03)
    topr, tis = (Runs(one for _, group in many for one in pick(group, name)) for name in ("topr", "tis"))
    return sound(claim, topr, tis, 0.0)


def over_the_map(runs: Runs, extra: Extra) -> list[Claim]:
    """Which of the two holds what it has where the learning rate or p̃ is not the best one."""
    places = [(rate, p) for rate in runs.split(RATE) for p in runs.split(EFFECTIVE)]  # the same for both
    cells = [runs.where({RATE: rate, EFFECTIVE: p}) for rate, p in places]
    pairs = [(pick(cell, "tis"), pick(cell, "topr")) for cell in cells]
    pairs = [pair for pair in pairs if all(map(len, pair))]
    if not pairs:
        return []
    flat = [group for pair in pairs for group in pair]
    mean = contrast(lambda *m: sum(b - a for a, b in zip(m[::2], m[1::2], strict=True)) / len(pairs), *flat)
    tis, topr = (min(column, key=mean_of) for column in zip(*pairs, strict=True))
    all_tis, all_topr = (Runs(one for group in column for one in group) for column in zip(*pairs, strict=True))
    over = above("averaged over the map TOPR is above TIS", mean)
    return [
        sound(over, all_topr, all_tis, mean.value if mean is not None else 0.0),
        versus("the worst cell of TOPR is above the worst of TIS", tis, topr),
    ]


# ---- Figures 7 to 9


def last_over_first(record: Record, extra: Extra) -> float:
    """The gradient's norm in the last fifth of the updates, as a multiple of that in the first."""
    values = record["metrics"]["grad_norm"]
    part = max(1, len(values) // 5)
    return float(np.mean(values[-part:]) / np.mean(values[:part]))


def improves(runs: Runs, extra: Extra) -> Claim:
    first, last = (np.stack([problem_shares(one["iterations"][i], "pass@1") for one in runs]) for i in (1, -1))
    return above("{compositions}: goes on to improve after the first iteration", crossed_interval(last - first))


def weights_by_difficulty(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """`difficulty_of_run` of each run's completions, by model and seed."""
    return {model_and_seed(record): difficulty_of_run(folder, EFFECTIVE_POSITIVE) for record, folder in finished}


def more_weight(runs: Runs, extra: Extra) -> Claim:
    hard = np.array([[sum(part[:5]) for part in one["share"]] for one in of_model(runs, extra)])  # [seeds, p̃]
    text = "the smaller p̃, the more weight on problems with an accuracy below 50 %, in every seed"
    if not len(hard):
        return Claim(text, None, "no runs")
    means = zip(EFFECTIVE_POSITIVE, hard.mean(axis=0), strict=True)
    shown = ", ".join(f"{100 * p:g} %: {100 * weight:.1f}" for p, weight in means)
    return Claim(text, bool((np.diff(hard, axis=1) < 0).all()), f"share of the weight by p̃: {shown}")


def holding(runs: Runs, extra: Extra) -> Claim:
    """How much of the grid each algorithm bears: at how many rates its mean is above the base's."""
    text = "TOPR ends above the base at every rate of the grid, naive REINFORCE, PPO, DPO and IS do not (means)"
    bears = {}
    for name, group in algorithms(runs).items():
        gains = [float((each.values() - each.values(stage="base")).mean()) for each in group.split(RATE).values()]
        bears[name] = (sum(gain > 0 for gain in gains), len(gains))
    evidence = ", ".join(f"{name_of(name)} {count} of {total}" for name, (count, total) in bears.items())
    whole, others = {name for name, (count, total) in bears.items() if count == total}, {"naive", "ppo", "dpo", "is"}
    fewest = min((len(cell) for group in algorithms(runs).values() for cell in group.split(RATE).values()), default=0)
    known = others | {"topr"} <= bears.keys() and fewest >= FEWEST_SEEDS
    evidence += f"; fewer than {FEWEST_SEEDS} seeds" * (fewest < FEWEST_SEEDS)
    return Claim(text, "topr" in whole and not others & whole if known else None, evidence)


# ---- Table 1


def no_weight(runs: Runs, extra: Extra) -> Claim:
    weights = [one["metrics"]["weight_neg"][-1] for one in pick(runs, "sft")]
    shown = f"weight of negatives at the end {np.mean(weights):.2g}" if weights else "no runs"
    return Claim("positives only: no weight on negatives", not any(weights) if weights else None, shown)


def variances_compared(runs: Runs, extra: Extra) -> list[Claim]:
    """How much a gradient varies, by the interval over seeds of the log of the ratio to TOPR's."""
    found, limit = [], float(np.log(2))
    for name in ("sft", "tis", "naive", "is"):
        claimed = "more than" if name == "is" else "at most twice as much as"
        text = f"{name_of(name)}: at the same weights a gradient varies {claimed} with TOPR's limits"
        seeds = of_model(runs, extra)
        times = [one[name][0] / one["topr"][0] for one in seeds]
        shown, logs = " ".join(f"{value:.3g}" for value in times), [float(np.log(value)) for value in times]
        text += " (trace of the covariance, times TOPR's)"
        found.append(by_seeds(text, logs, shown) if name == "is" else by_seeds(text, logs, shown, below, limit))
        text = f"{name_of(name)}: and less in units of the squared mean gradient (trace over ‖E g‖², times TOPR's)"
        logs = [noise_to_signal(one[name]) - noise_to_signal(one["topr"]) for one in seeds]
        shown = " ".join(f"{np.exp(value):.3g}" if np.isfinite(value) else "–" for value in logs)
        known = bool(np.isfinite(logs).all())
        found.append(by_seeds(text, logs, shown, below) if known else Claim(text, None, f"{shown}: no signal", 1.0))
    return found


def noise_to_signal(moments: Sequence[float]) -> float:
    """log of the trace of a gradient's covariance over ‖E g‖²; NaN where the estimate of that is not above 0."""
    trace, signal = moments
    return float(np.log(trace / signal)) if signal > 0 else float("nan")


def early(record: Record, extra: Extra) -> float:
    """pass@1, in percent, after a quarter of the updates, on the problems of the curve; between two points linear."""
    steps = record["curve"]["step"]
    return 100 * float(np.interp(steps[-1] / 4, steps, record["curve"]["pass@1"]))


WHERE = {" start": "at the start", " near": "near μ", "": "where TOPR ended", " own": "where its own run ended"}


def table_1(runs: Runs, extra: Extra) -> list[str]:
    """The paper's table with what was measured: a row for each choice of limits; then the gradients' variance."""
    lines = [
        "| | a⁺ b⁺ a⁻ b⁻ | weight of negatives at the end | objective bounded | pass@1 after a quarter | at the end |",
        "|---|---|---|---|---|---|",
    ]
    groups = {name: group for name, group in algorithms(runs).items() if name in LIMITS}
    for name, group in groups.items():
        cells = (
            name_of(name),
            " ".join(f"{limit:g}".replace("inf", "∞") for limit in LIMITS[name]),
            f"{np.mean([one['metrics']['weight_neg'][-1] for one in group]):.2g}",
            "yes" if LIMITS[name][2] == 0 else "no",
            f"{np.mean([early(one, extra) for one in group if 'curve' in one]):.1f}",
            group.interval().percent(),
        )
        lines.append(f"| {' | '.join(cells)} |")
    told = "Variance of an example's gradient, as a multiple of TOPR's: trace of the covariance; the same over ‖E g‖²"
    told += " (–: of some seed's mean gradient the estimate is not above 0)."
    lines += ["", told, "", f"| | {' | '.join(WHERE.values())} |", "|---" * (1 + len(WHERE)) + "|"]
    for name in groups:
        seeds = ([one for one in of_model(runs, extra, place) if {name, "topr"} <= one.keys()] for place in WHERE)
        lines.append(f"| {' | '.join([name_of(name), *(times_topr(each, name) for each in seeds)])} |")
    return lines


def times_topr(seeds: Sequence[Extra], name: str) -> str:
    """A variance, and it over the squared mean gradient, as multiples of TOPR's: geometric means over seeds.

    A dash where the estimate of a squared mean is not above 0.
    """
    if not seeds:
        return ""
    times = np.mean([np.log(one[name][0] / one["topr"][0]) for one in seeds])
    ratio = np.mean([noise_to_signal(one[name]) - noise_to_signal(one["topr"]) for one in seeds])
    return f"{np.exp(times):.2g}; {f'{np.exp(ratio):.2g}' if np.isfinite(ratio) else '–'}"


# ---- AGRO


def a_nat(record: Record, extra: Extra) -> float:
    """Points that a run gained in pass@1, divided by its KL to the reference."""
    one = Runs([record])
    return 100 * float((one.values() - one.values(stage="base")).mean()) / distances(one, extra)[0]


def at_beta(runs: Runs, extra: Extra) -> Claim:
    text, pair = "off-policy, β = {bare_betas}: AGRO above the KL-regularised policy gradient", ("kl_pg", "agro")
    claim = row(runs, extra, text=text, group="agro", reference="kl_pg")
    groups = {name_of(name): pick(runs, name) for name in pair}
    kl = ", ".join(f"{name} {np.mean(distances(group, extra)):.2f}" for name, group in groups.items() if len(group))
    return replace(claim, evidence=f"{claim.evidence}; KL {kl}")


# ---- beyond the papers


def effective_size(record: Record) -> float:
    """Percent: what the answers of a batch are worth by their ratios, (Σ r)² / (B Σ r²), in the last updates."""
    return PERCENT * last(record, "ess")


def nats(record: Record) -> float:
    """Nats an answer in the first updates, where the policy is still near the base."""
    return float(record["metrics"]["nats"][0])


NUMBERS = ("effective_size", "nats")  # that panels draw


def last_length(record: Record, name: str = LENGTHS[0]) -> float:
    return float(record["lengths"][name][-1])


def shorter(text: str, differences: list[float]) -> Claim:
    """A claim that answers are shorter, by the difference of each seed in tokens."""
    shown = " ".join(f"{value:+.1f}" for value in differences)
    return by_seeds(text, differences, f"tokens of each seed: {shown}", below)


def gaps(first: Runs, second: Runs, number: Callable[[Record], float]) -> list[float]:
    return [number(one) - number(two) for one, two in in_pairs(first, second)]


def length_bias(runs: Runs, extra: Extra) -> list[Claim]:
    """Of one algorithm: the length of its answers with and without 1/T."""
    pair = pick(runs, "algo.length_normalize=null"), pick(runs, "algo.length_normalize=false")
    found = []
    for name, what in zip(LENGTHS, ("answers", "correct answers", "incorrect answers"), strict=True):
        differences = [last_length(one, name) - last_length(two, name) for one, two in in_pairs(*pair)]
        found.append(shorter(f"{{algorithms}}: {what} end shorter with 1/T than without", differences))
    gained = [one["lengths"]["length"][-1] - one["lengths"]["length"][0] for one in pair[0]]
    return [*found, shorter("{algorithms} with 1/T: answers end shorter than the base's", gained)]


def what_is_dropped(runs: Runs, extra: Extra) -> list[Claim]:
    """Where stale answers are dropped: which ones more often, and whether what is trained on is shorter than all."""
    dropping, keeping = (pick(runs, f"schedule.concurrency=8 schedule.when_stale={word}") for word in ("drop", "null"))
    found = []
    for often, rarely, text in (
        ("length32", "length16", "drop: answers of 32 to 63 tokens are dropped more often than those of 16 to 31"),
        ("level5", "level1", "drop: answers to problems of level 5 are dropped more often than of level 1"),
        ("incorrect", "correct", "drop: wrong answers are dropped more often than right ones"),
    ):
        pairs = [[PERCENT * last(record, f"dropped_share_{kind}") for kind in (often, rarely)] for record in dropping]
        shown = f"% of each seed: {', '.join(f'{one:.1f} against {other:.1f}' for one, other in pairs)}"
        found.append(by_seeds(text, [one - other for one, other in pairs], shown))
    return [
        *found,
        shorter("the answers that drop trains on are shorter than keep's", gaps(dropping, keeping, trained)),
    ]


def last(record: Record, name: str) -> float:
    return float(record["metrics"][name][-1])


def trained(record: Record) -> float:
    """Mean tokens of the answers that a run trained on."""
    return float(np.mean(record["metrics"]["sampled_length"]))
