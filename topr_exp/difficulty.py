"""`python -m topr_exp.difficulty RUN`: Figure 9's statistic of a run's completions, for any list of p̃."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from topr_exp.runtime.exit_status import exit_status
from topr_exp.types import TOPRError

EFFECTIVE_POSITIVE = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8)  # p̃, where none is asked for


def main(arguments: list[str] | None = None) -> int:
    """Print the table (or JSON); exit status 1, with one line, for a folder that has no graded completions."""
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.difficulty",
        description="How much of the training signal problems of each difficulty get, by effective proportion "
        "(TOPR, Figure 9): difficulty is the accuracy of the model that sampled, weights are 1-c and 1+c.",
    )
    parser.add_argument("run", type=Path, help="a run's folder, outputs/NAME/RUN")
    parser.add_argument("--effective-positive", type=float, nargs="+", default=None, metavar="P")
    parser.add_argument("--iteration", type=int, default=1, help="whose completions (default: 1, those of the base)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    args = parser.parse_args(arguments)
    if not all(0 <= p <= 1 for p in args.effective_positive or ()):
        parser.error("--effective-positive must lie in [0, 1]")

    def show() -> int:
        found = difficulty_of_run(args.run, args.iteration, args.effective_positive or EFFECTIVE_POSITIVE)
        print(json.dumps(found, indent=2) if args.json else difficulty_table(found))
        return 0

    return exit_status(show)


def difficulty_of_run(run: Path, iteration: int, effective_positive: Sequence[float]) -> dict[str, Any]:
    """`composition.weights.difficulty_weights` of the completions that an iteration of a run was composed from."""
    import numpy as np

    from topr_exp.composition.weights import difficulty_weights
    from topr_exp.store import Store

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
    found = difficulty_weights(correct, samples, effective_positive)
    for name in ("share", "per_problem"):
        found[name] = [[None if v != v else v for v in row] for row in np.round(found[name], 6).tolist()]
    return found


def difficulty_table(found: dict[str, Any]) -> str:
    """Shares of the total weight in %, a row for each p̃, a column for each tenth of accuracy."""
    import pandas as pd

    table = pd.DataFrame(found["share"], columns=[f"{i / 10:.1f}-{(i + 1) / 10:.1f}" for i in range(10)]) * 100
    table.insert(0, "c", found["baseline"])
    table.insert(0, "p~", found["effective_positive"])
    return (
        f"share of the weight in %, by accuracy of the sampling model; p = {found['positive_share']:.3f}; problems of "
        f"each: {', '.join(map(str, found['problems']))}\n{table.round(3).to_string(index=False)}"
    )


if __name__ == "__main__":
    sys.exit(main())
