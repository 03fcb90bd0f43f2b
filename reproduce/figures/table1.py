"""TOPR, Table 1: what the choices of limits do to the objective, the gradient's variance and the speed of learning."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from reproduce.claims import (
    NO_RUNS,
    Claim,
    Extra,
    above,
    below,
    claim_by_seeds,
    ends_above,
    ends_below,
    judge_by,
    number_above,
)
from reproduce.figure import Figure, numbers_of_seeds
from reproduce.groups import algorithms, name_of
from reproduce.numbers import last_metric
from reproduce.panels import (
    BAR_OPACITY,
    SEED_DOTS,
    Panel,
    grid,
    legend_below,
    make_log_axis,
    metric,
    name_ticks,
    style_of,
)
from reproduce.selection import Record, Runs, pick
from reproduce.variance import LIMITS, SeedMoments, compute_variances, log_noise_over_topr, traces_of, variance_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    groups = algorithms(runs)
    names = [name for name in groups if name in LIMITS]
    draw_weights = partial(metric, groups=groups, name="weight_neg")
    draw_norms = partial(metric, groups=groups, name="grad_norm")
    draw_variances = partial(gradient_variances, names=names, moments_of_seeds=numbers_of_seeds(runs, extra))
    return [
        Panel(draw_weights, model, legend=legend_below(3)),
        Panel(draw_norms, log_y=True),
        Panel(draw_variances, "variance of a gradient, same weights"),
    ]


def gradient_variances(ax: Axes, names: list[str], moments_of_seeds: list[SeedMoments]) -> None:
    """The variance of an example's gradient by choice of limits at the weights where TOPR ended; every seed a dot."""
    all_traces: list[float] = []
    for i, name in enumerate(names):
        traces = traces_of(moments_of_seeds, name)
        if not traces:
            continue
        all_traces += traces
        geometric_mean = float(np.exp(np.log(traces).mean()))
        ax.bar(i, geometric_mean, color=style_of(name, names)["color"], alpha=BAR_OPACITY)
        ax.plot(np.full(len(traces), i), traces, **SEED_DOTS)
    ax.set_ylim(bottom=0.5 * min(all_traces, default=1))
    make_log_axis(ax, "y")
    name_ticks(ax, [name_of(name) for name in names])
    ax.set(ylabel="trace of the covariance")


def no_weight_on_negatives(runs: Runs, extra: Extra) -> Claim:
    weights = [last_metric(record, "weight_neg") for record in pick(runs, "sft")]
    text = "positives only: no weight on negatives"
    if not weights:
        return Claim(text, None, NO_RUNS)
    return Claim(text, not any(weights), f"weight of negatives at the end {np.mean(weights):.2g}")


def variances_compared(runs: Runs, extra: Extra) -> list[Claim]:
    """How much a gradient varies, by the interval over seeds of the log of the ratio to TOPR's."""
    moments_of_seeds = numbers_of_seeds(runs, extra)
    claims = []
    for name in ("sft", "tis", "naive", "is"):
        claims.append(variance_compared(name, moments_of_seeds))
        claims.append(less_noise_to_signal(name, moments_of_seeds))
    return claims


def variance_compared(name: str, moments_of_seeds: list[SeedMoments]) -> Claim:
    relation, rule, limit = "at most twice as much as", below, float(np.log(2))
    if name == "is":
        relation, rule, limit = "more than", above, 0.0
    text = f"{name_of(name)}: at the same weights a gradient varies {relation} with TOPR's limits"
    text += " (trace of the covariance, times TOPR's)"
    ratios = np.divide(traces_of(moments_of_seeds, name), traces_of(moments_of_seeds, "topr"))
    evidence = " ".join(f"{ratio:.3g}" for ratio in ratios)
    return claim_by_seeds(text, np.log(ratios).tolist(), evidence, rule, limit)


def less_noise_to_signal(name: str, moments_of_seeds: list[SeedMoments]) -> Claim:
    text = f"{name_of(name)}: and less in units of the squared mean gradient (trace over ‖E g‖², times TOPR's)"
    log_ratios = log_noise_over_topr(moments_of_seeds, name)
    texts = []
    for log_ratio in log_ratios:
        text_of_seed = "–"
        if np.isfinite(log_ratio):
            text_of_seed = f"{np.exp(log_ratio):.3g}"
        texts.append(text_of_seed)
    evidence = " ".join(texts)
    if not np.isfinite(log_ratios).all():
        return Claim(text, None, f"{evidence}: no signal", 1.0)
    return claim_by_seeds(text, log_ratios, evidence, below)


def early_score(record: Record, extra: Extra) -> float:
    """pass@1, in percent, after a quarter of the updates, on the problems of the curve; between two points linear."""
    steps = record["curve"]["step"]
    return 100 * float(np.interp(steps[-1] / 4, steps, record["curve"]["pass@1"]))


def table(runs: Runs, extra: Extra) -> list[str]:
    """The paper's table with what was measured: a row for each choice of limits; then the gradients' variance."""
    lines = [
        "| | a⁺ b⁺ a⁻ b⁻ | weight of negatives at the end | objective bounded | pass@1 after a quarter | at the end |",
        "|---|---|---|---|---|---|",
    ]
    groups = {name: group for name, group in algorithms(runs).items() if name in LIMITS}
    for name, group in groups.items():
        limits = [f"{limit:g}".replace("inf", "∞") for limit in LIMITS[name]]
        least_weight_of_negatives = LIMITS[name][2]
        final_weights = [last_metric(record, "weight_neg") for record in group]
        early_scores = [early_score(record, extra) for record in group if "curve" in record]
        cells = (
            name_of(name),
            " ".join(limits),
            f"{np.mean(final_weights):.2g}",
            "yes" if least_weight_of_negatives == 0 else "no",
            f"{np.mean(early_scores):.1f}",
            group.interval().percent(),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, *variance_table(runs, extra, list(groups))]


FIGURE = Figure(
    name="table1",
    title="Table 1",
    claim="Of the choices of limits only TOPR uses negatives, is bounded, keeps the gradient's variance low and learns "
    "fast from positives.",
    experiments=("table1",),
    draw=grid(panels),
    judge=judge_by(
        no_weight_on_negatives,
        ends_above("TOPR: bounded, uses negatives; ends above the base", "topr"),
        ends_below("naive REINFORCE: unbounded below; ends below the base", "naive"),
        ends_above("IS: bounded, uses negatives; ends above the base", "is"),
        ends_above("TIS: bounded, uses negatives; ends above the base", "tis"),
        variances_compared,
        number_above(
            "fast learning: after a quarter of the updates TOPR is ahead of TIS (pass@1, first problems, %)",
            ("TOPR", "topr"),
            ("TIS", "tis"),
            early_score,
        ),
        number_above(
            "fast learning: after a quarter of the updates TOPR is ahead of IS (pass@1, first problems, %)",
            ("TOPR", "topr"),
            ("IS", "is"),
            early_score,
        ),
    ),
    metrics=("grad_norm", "weight_neg"),
    compute_extra=compute_variances,
    table=table,
    note="One learning rate for all, so that nothing differs but the limits. Variance: of a single example's gradient "
    "under each choice of limits, on 1,000 training completions: at the weights where the seed's run of TOPR began, "
    'after a tenth of the straight way from there to where it ended ("near μ"), where it ended (the picture and the '
    "claims), and where the run with these limits ended.",
)
