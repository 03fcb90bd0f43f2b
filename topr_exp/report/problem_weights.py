"""Figure 9's statistic of a finished run: how much of the training signal problems of each difficulty get."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from topr_exp.composition.difficulty import difficulty_weights
from topr_exp.store import Store
from topr_exp.types import TOPRError

EFFECTIVE_POSITIVE = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8)  # p̃, where none is asked for


def difficulty_of_run(run: Path, iteration: int, effective_positive: Sequence[float]) -> dict[str, Any]:
    """`composition.difficulty.difficulty_weights` of the completions that an iteration of a run was composed from."""
    if not run.is_dir():
        raise TOPRError(f"{run}: no such folder")
    try:
        sources = json.loads((run / f"iteration-{iteration}" / "sources.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TOPRError(
            f"{run} has no composed training set of iteration {iteration} (a run in rounds has none)"
        ) from None
    store = Store(sources["store"])
    problem = store.open(store.root / sources["rollouts"]).read(["problem"])["problem"].to_numpy()
    verdict = store.open(store.root / sources["verdicts"]).read(["verdict"])["verdict"].to_numpy()
    _, group, samples = np.unique(problem, return_inverse=True, return_counts=True)
    correct = np.bincount(group, weights=verdict == "correct").astype(int)
    weights = difficulty_weights(correct, samples, effective_positive)
    rounded = {name: np.round(getattr(weights, name), 6).tolist() for name in ("share", "per_problem")}
    return {
        "positive_share": weights.positive_share,
        "effective_positive": weights.effective_positive,
        "baseline": weights.baseline,
        "problems": weights.n_problems,
        "share": rounded["share"],
        "per_problem": [[None if v != v else v for v in row] for row in rounded["per_problem"]],
    }


def difficulty_table(found: dict[str, Any]) -> str:
    """Shares of the total weight in %, a row for each p̃, a column for each tenth of accuracy."""
    heads = "".join(f"{f'{i / 10:.1f}-{(i + 1) / 10:.1f}':>9}" for i in range(10))
    lines = [
        f"share of the weight in %, by accuracy of the sampling model; p = {found['positive_share']:.3f}",
        f"{'p~':>6}{'c':>8}{heads}",
        f"{'problems':>14}" + "".join(f"{count:>9}" for count in found["problems"]),
    ]
    for p, c, row in zip(found["effective_positive"], found["baseline"], found["share"], strict=True):
        lines.append(f"{p:>6g}{c:>8.3f}" + "".join(f"{100 * share:>9.1f}" for share in row))
    return "\n".join(lines)
