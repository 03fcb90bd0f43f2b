"""Description of a training set: counts, its own p, and histograms by level, difficulty and length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import Candidates, solved_between
from topr_exp.config.groups import ComposeConfig, Duplicates, Unit

DIFFICULTY_BUCKETS = 10
LENGTH_BINS = 20


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sampled tokens of the set's completions."""

    mean: float
    median: float
    longest: int
    edges: list[float]  # [B + 1] of the histogram's bins
    counts: list[int]  # [B]


@dataclass(frozen=True, slots=True)
class Description:
    """A composed set in numbers, ready for JSON by `as_dict`."""

    compose: str
    unit: Unit
    requested: int | None  # compose.n_examples
    available: int  # the largest set that these candidates admit: completions, or pairs
    n_train: int  # completions, or pairs, of the set
    n_positive: int  # correct completions (of pairs: their chosen sides)
    positive_share: float  # p
    n_problems: int
    n_truncated: int | None  # completions of the set that were cut off; None when it is not known
    levels: dict[str, int]  # completions by the problem's level; "none" where it has none
    difficulty: list[int]  # completions by the share of correct candidates of their problem: [0, .1) ... [.9, 1]
    lengths: Lengths | None
    note: str | None  # one line for the user when the set is not what was asked, or has no correct completion

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(
    candidates: Candidates,
    rows: NDArray[np.int64],
    config: ComposeConfig,
    unit: Unit,
    n_train: int,
    available: int,
    note: str | None = None,
) -> Description:
    """The description of the set that consists of `rows` of the candidates (a row may occur in several pairs)."""
    n_positive = int(candidates.positive[rows].sum())
    notes = [
        note or shortfall(config.n_examples, n_train, available, unit),
        left_out(candidates, config),
        no_positives(n_positive, len(rows)),
    ]
    return Description(
        compose=config.name.name,
        unit=unit,
        requested=config.n_examples,
        available=available,
        n_train=n_train,
        n_positive=n_positive,
        positive_share=n_positive / len(rows),
        n_problems=len(np.unique(candidates.problem[rows])),
        n_truncated=None if candidates.truncated is None else int(candidates.truncated[rows].sum()),
        levels=count_by_level(candidates, rows),
        difficulty=count_by_difficulty(candidates, rows),
        lengths=None if candidates.length is None else length_statistics(candidates.length[rows]),
        note="; ".join(filter(None, notes)) or None,
    )


def shortfall(requested: int | None, n_train: int, available: int, unit: Unit) -> str | None:
    """A line when fewer than the requested number are trained on, else None."""
    if requested is None or n_train >= requested:
        return None
    things = "pairs" if unit == "pairs" else "completions"
    if requested > available:
        return f"compose.n_examples={requested} is more than there are: all {n_train} {things} are used"
    return f"compose.n_examples={requested}: {n_train} completions are used, the whole groups that fit"


def left_out(candidates: Candidates, config: ComposeConfig) -> str | None:
    """A line that counts what `pass_rate` and `duplicates=drop` leave out of these candidates, else None."""
    parts = []
    if config.pass_rate is not None:
        kept = candidates.problem[solved_between(candidates, *config.pass_rate)]
        of = len(np.unique(candidates.problem))
        parts.append(f"compose.pass_rate={config.pass_rate} keeps {len(np.unique(kept))} of {of} problems")
    if config.duplicates is Duplicates.drop and candidates.duplicate is not None:
        parts.append(f"{int(candidates.duplicate.sum())} of {len(candidates.duplicate)} completions are repetitions")
    return ", ".join(parts) or None


def no_positives(positives: float, n: int) -> str | None:
    """A line when nothing in the set is correct, else None."""
    return None if positives else f"0 % of the {n} completions of the training set are correct: it has negatives alone"


def count_by_level(candidates: Candidates, rows: NDArray[np.int64]) -> dict[str, int]:
    """Completions by level, in order."""
    if candidates.level is None:
        return {"none": len(rows)}
    values, counts = np.unique(candidates.level[rows], return_counts=True)
    return {str(v) if v else "none": int(c) for v, c in zip(values.tolist(), counts.tolist(), strict=True)}


def count_by_difficulty(candidates: Candidates, rows: NDArray[np.int64]) -> list[int]:
    """Completions by the bucket of their problem's accuracy among all candidates."""
    _, group, size = np.unique(candidates.problem, return_inverse=True, return_counts=True)
    correct = np.bincount(group, weights=candidates.positive, minlength=len(size)).astype(np.int64)
    bucket = accuracy_bucket(correct, size)
    return np.bincount(bucket[group[rows]], minlength=DIFFICULTY_BUCKETS).tolist()


def accuracy_bucket(correct: NDArray[np.integer], samples: NDArray[np.integer] | int) -> NDArray[np.integer]:
    """The bucket 0..9 of the accuracy correct / samples, each a tenth wide, 1 in the last; exact in integers."""
    return np.minimum(correct * DIFFICULTY_BUCKETS // samples, DIFFICULTY_BUCKETS - 1)


def length_statistics(values: NDArray[np.integer]) -> Lengths:
    """Mean, median, longest and a histogram of the lengths."""
    counts, edges = np.histogram(values, bins=LENGTH_BINS, range=(0, max(int(values.max()), 1)))
    return Lengths(float(values.mean()), float(np.median(values)), int(values.max()), edges.tolist(), counts.tolist())
