"""`python -m reproduce.difficulty RUN`: weights of problems by difficulty (TOPR, Figure 9) for a list of p̃, as JSON.

Difficulty is the accuracy of the model that sampled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.training_set import baseline_for
from topr_exp.runtime.exit_status import exit_status
from topr_exp.store import Store
from topr_exp.types import TOPRError

EFFECTIVE_POSITIVE = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8)  # p̃, where none is asked for


def main(arguments: list[str] | None = None) -> int:
    """Print the statistic; exit status 1, with one line, for a folder that has no graded completions."""
    parser = argparse.ArgumentParser(prog="python -m reproduce.difficulty")
    parser.add_argument("run", type=Path, help="a run's folder, outputs/NAME/RUN")
    parser.add_argument("--effective-positive", type=float, nargs="+", default=EFFECTIVE_POSITIVE, metavar="P")
    args = parser.parse_args(arguments)
    if not all(0 <= p <= 1 for p in args.effective_positive):
        parser.error("--effective-positive must lie in [0, 1]")
    return exit_status(lambda: print(json.dumps(difficulty_of_run(args.run, args.effective_positive), indent=2)) or 0)


def difficulty_of_run(run: Path, effective_positive: Sequence[float]) -> dict[str, Any]:
    """`difficulty_weights` of the completions that a run's first iteration was composed from."""
    path = run / "iteration-1" / "sources.json"
    try:
        sources = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TOPRError(f"{path} is missing (a run in rounds has none)") from None
    store = Store(sources["store"])
    problem = store.open(store.root / sources["rollouts"]).read(["problem"])["problem"].to_numpy()
    verdict = store.open(store.root / sources["verdicts"]).read(["verdict"])["verdict"].to_numpy()
    _, group, samples = np.unique(problem, return_inverse=True, return_counts=True)
    correct = np.bincount(group, weights=verdict == "correct").astype(int)
    found = difficulty_weights(correct, samples, effective_positive)
    for name in ("share", "per_problem"):
        found[name] = [[None if v != v else v for v in row] for row in np.round(found[name], 6).tolist()]
    return found


def difficulty_weights(
    correct: NDArray[np.integer], samples: NDArray[np.integer] | int, effective_positive: Sequence[float]
) -> dict[str, Any]:
    """The weight of problems by difficulty, with 1 - c on each correct and 1 + c on each incorrect completion.

    share[b] = sum_{x in b} w(x) / sum_x w(x),   w(x) = (1-c) n+(x) + (1+c) n-(x)   (TOPR, Figure 9)

    By `positive_share`, p over all completions; `effective_positive`, the p~ asked for; `baseline`, the c that gives
    each of them; and by bucket of the base model's accuracy ([0, .1), [.1, .2), ... [.9, 1]) `problems`, their number;
    `share`, [E, 10], its part of the total weight; `per_problem`, [E, 10], the mean weight of its problems over that of
    all (nan if it has none). The paper's figure is the last and its caption says the other.

    correct: [P] correct completions of each problem by the base model.
    samples: [P] or one number, completions of each problem (the paper: 128).
    effective_positive: the p~ in [0, 1] to compute it for; c follows from p over all completions (Eq. 12).
    Raises TOPRError when all completions are of one kind.
    """
    n = np.broadcast_to(np.asarray(samples, dtype=np.int64), correct.shape)
    assert correct.ndim == 1, correct.shape
    assert len(correct), "no problems"
    assert (n > 0).all(), "every problem needs completions"
    assert ((correct >= 0) & (correct <= n)).all(), "more correct completions than completions"
    positive_share = float(correct.sum() / n.sum())
    baseline = [baseline_for(positive_share, p) for p in effective_positive]
    c = np.asarray(baseline)[:, None]
    weight = (1 - c) * correct + (1 + c) * (n - correct)  # [E, P]
    member = np.eye(10)[np.minimum(correct.astype(np.int64) * 10 // n, 9)]  # [P, 10] accuracy by tenths, 1 in the last
    total = weight @ member
    count = member.sum(axis=0)
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return {
        "positive_share": positive_share,
        "effective_positive": list(effective_positive),
        "baseline": baseline,
        "problems": count.astype(int).tolist(),
        "share": total / weight.sum(axis=1, keepdims=True),
        "per_problem": mean / weight.mean(axis=1, keepdims=True),
    }


if __name__ == "__main__":
    sys.exit(main())
