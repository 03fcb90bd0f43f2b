"""The variance of single examples' gradients under the choices of limits (TOPR, Table 1)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reproduce.claims import Extra
from reproduce.distance import log_likelihoods
from reproduce.figure import FinishedRuns, model_and_seed, numbers_of_seeds
from reproduce.groups import name_of
from reproduce.processes import map_on_cores
from reproduce.records import rounded
from reproduce.selection import Record, Runs
from topr_exp import (
    Batch,
    example_gradients,
    load_policy,
    loss,
    loss_coefficients,
    prompt_ids,
    read_completions,
    read_config,
)

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = 1000  # of the training completions, for each run
BLOCK = 32  # gradients held at a time
# Weights at which gradients are taken, by the suffix of their numbers' keys: the part of TOPR's way from start to end.
PARTS_OF_WAY = {" start": 0.0, " near": 0.1, "": 1.0}
OWN = " own"
WEIGHTS = {" start": "at the start", " near": "near μ", "": "where TOPR ended", OWN: "where its own run ended"}

LIMITS = {  # a⁺ b⁺ a⁻ b⁻ of conf/algo, by name: a test holds them equal
    "sft": (1, 1, 0, 0),
    "topr": (1, 1, 0, 1),
    "naive": (1, 1, 1, 1),
    "is": (0, float("inf"), 0, float("inf")),
    "tis": (0, 1, 0, 1),
}
Moments = tuple[float, float]  # trace of the covariance, and ‖E g‖²
SeedMoments = Mapping[str, Moments]  # of a seed, by limits


def compute_variances(finished: FinishedRuns) -> Extra:
    """`moments_of_run` by model, seed and weights, rounded.

    Of all choices of limits on the straight line from the start of TOPR's run to its end (PARTS_OF_WAY), and, as OWN,
    of each choice where its own run ended.
    """
    points = []
    for record, folder in finished:
        points += points_of_way(record, folder)
    folders = [point.folder for point in points]
    seeds = [point.seed for point in points]
    parts = [point.part for point in points]
    numbers: dict[str, dict[str, list[float | None]]] = {}
    for point, moments in zip(points, map_on_cores(moments_of_run, folders, seeds, parts), strict=True):
        rounded_by_limits = rounded_moments(moments)
        if point.limits == "topr":
            numbers[point.key + point.suffix] = rounded_by_limits
        if point.part == 1 and point.limits in LIMITS:
            numbers.setdefault(point.key + OWN, {})[point.limits] = rounded_by_limits[point.limits]
    return numbers


@dataclass(frozen=True)
class Point:
    """Weights on the way of a run from its start to its end, at which gradients are taken."""

    key: str  # model and seed
    limits: str  # that the run had, by the name of its loss
    folder: Path
    seed: int
    suffix: str  # of the key
    part: float  # of the way


def points_of_way(record: Record, folder: Path) -> list[Point]:
    """TOPR's run has several points, any other its end."""
    settings = record["settings"]
    limits = settings["algo.name"]
    part_by_suffix = {"": 1.0}
    if limits == "topr":
        part_by_suffix = PARTS_OF_WAY
    points = []
    for suffix, part in part_by_suffix.items():
        points.append(Point(model_and_seed(record), limits, folder, int(settings["seed"]), suffix, part))
    return points


def rounded_moments(moments: Mapping[str, Moments]) -> dict[str, list[float | None]]:
    return {name: [rounded(trace), rounded(signal)] for name, (trace, signal) in moments.items()}


def moments_of_run(folder: Path, seed: int, part: float) -> dict[str, Moments]:
    """`gradient_moments` of a run's training completions at a part of the way from its start to its end."""
    config = read_config(folder)
    policy, start = load_policy(config, run=folder), load_policy(config)
    move_towards_start(policy.model, start.model, part)
    completions = read_completions(folder)
    rows = np.random.default_rng(seed).permutation(len(completions))[:EXAMPLES]
    sample = completions.iloc[rows]
    prompts = prompt_ids(config, policy)
    prompts_of_rows = [prompts[problem] for problem in sample.problem]
    tokens = list(sample.tokens)
    batch_size = config.optim.score_batch_size
    log_pi = log_likelihoods(policy, prompts_of_rows, tokens, batch_size)
    log_mu = log_likelihoods(start, prompts_of_rows, tokens, batch_size)
    is_correct = (sample.verdict == "correct").to_numpy()
    coefficients = example_coefficients(log_pi - log_mu, is_correct)
    return gradient_moments(example_gradients(policy, prompts_of_rows, tokens), coefficients)


def move_towards_start(model: Any, start: Any, part: float) -> None:
    """Set a model's weights to a part of the way from the start's weights to its own."""
    import torch

    if part == 1:
        return
    with torch.no_grad():
        for weights, first in zip(model.parameters(), start.parameters(), strict=True):
            weights.copy_(first + part * (weights - first))


def example_coefficients(delta: NDArray[np.float64], positive: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    """w R of each example, [B], by choice of limits: what its loss multiplies ∇ log π(y|x) / T with; R = ±1.

    delta: log π/μ, [B]. A completion of one token with this ratio stands for each.
    """
    import torch

    log_ratio, is_positive = torch.tensor(delta)[:, None], torch.tensor(positive)
    batch = Batch(
        logp=log_ratio,
        mu_logp=torch.zeros_like(log_ratio),
        mask=torch.ones_like(log_ratio, dtype=torch.bool),
        reward=2 * is_positive.to(log_ratio) - 1,
        positive=is_positive,
    )
    return {name: loss_coefficients(limited_loss(name), batch)[:, 0].numpy() for name in LIMITS}


@functools.cache
def limited_loss(name: str) -> Any:
    """The loss with these limits, composed once in a process."""
    return loss(name)


def gradient_moments(
    gradients: Iterable[Tensor], coefficients: Mapping[str, NDArray[np.float64]]
) -> dict[str, Moments]:
    """The trace of the covariance of c_i g_i over the examples i, and ‖E c_i g_i‖², for each list of coefficients c.

    gradients: the g_i, in order; coefficients: c [B] by name. Both numbers are unbiased: the squared norm of the mean
    over B examples is above ‖E c g‖² by a B-th of the trace.
    """
    import torch

    names = list(coefficients)
    table = torch.tensor(np.stack([coefficients[name] for name in names]))  # [names, examples]
    count = table.shape[1]
    total: Any = 0.0
    squares = torch.zeros(len(names), dtype=torch.float64)
    block: list[Tensor] = []
    for end, gradient in enumerate(gradients, 1):
        block.append(gradient)
        precise = gradient.double()
        squares += table[:, end - 1] ** 2 * torch.dot(precise, precise).cpu()
        if len(block) == BLOCK or end == count:
            stacked = torch.stack(block)
            factors = table[:, end - len(block) : end]
            weighted_sum = factors.to(stacked) @ stacked
            total = total + weighted_sum.double()
            block = []
    mean_square = ((total / count) ** 2).sum(1).cpu()
    trace = (squares / count - mean_square) * count / (count - 1)
    signal = mean_square - trace / count
    moments = zip(trace.tolist(), signal.tolist(), strict=True)
    return dict(zip(names, moments, strict=True))


def traces_of(moments_of_seeds: Sequence[SeedMoments], name: str) -> list[float]:
    """The trace of the covariance under one choice of limits, of each seed."""
    traces = []
    for moments in moments_of_seeds:
        trace, _ = moments[name]
        traces.append(trace)
    return traces


def log_noise_to_signal(moments: Moments) -> float:
    """log of the trace of a gradient's covariance over ‖E g‖²; NaN where the estimate of that is not above 0."""
    trace, signal = moments
    if signal <= 0:
        return float("nan")
    return float(np.log(trace / signal))


def log_noise_over_topr(moments_of_seeds: Sequence[SeedMoments], name: str) -> list[float]:
    """`log_noise_to_signal` under one choice of limits minus that under TOPR's, of each seed."""
    differences = []
    for moments in moments_of_seeds:
        log_noise = log_noise_to_signal(moments[name])
        topr_log_noise = log_noise_to_signal(moments["topr"])
        differences.append(log_noise - topr_log_noise)
    return differences


def variance_table(runs: Runs, extra: Extra, names: Sequence[str]) -> list[str]:
    """The variance of a gradient by choice of limits and weights, in Markdown."""
    caption = (
        "Variance of an example's gradient, as a multiple of TOPR's: trace of the covariance; the same over ‖E g‖² (–: "
        "of some seed's mean gradient the estimate is not above 0)."
    )
    titles = ["", *WEIGHTS.values()]
    lines = ["", caption, "", f"|{' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name in names:
        cells = [name_of(name)]
        for weights in WEIGHTS:
            moments_of_seeds = []
            for moments in numbers_of_seeds(runs, extra, weights):
                if {name, "topr"} <= moments.keys():
                    moments_of_seeds.append(moments)
            cells.append(in_multiples_of_topr(moments_of_seeds, name))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def in_multiples_of_topr(moments_of_seeds: Sequence[SeedMoments], name: str) -> str:
    """A variance, and it over the squared mean gradient, as multiples of TOPR's: geometric means over seeds.

    A dash where the estimate of a squared mean is not above 0.
    """
    if not moments_of_seeds:
        return ""
    log_traces = np.log(np.divide(traces_of(moments_of_seeds, name), traces_of(moments_of_seeds, "topr")))
    log_noise = np.mean(log_noise_over_topr(moments_of_seeds, name))
    noise = "–"
    if np.isfinite(log_noise):
        noise = f"{np.exp(log_noise):.2g}"
    return f"{np.exp(np.mean(log_traces)):.2g}; {noise}"
