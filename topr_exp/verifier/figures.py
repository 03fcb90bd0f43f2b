"""Figures of a verifier and their table, from verdicts alone: its accuracy, and the answers that its approval selects.

All are means over the P original problems, whose K solutions stand or fall together: the bootstrap resamples problems.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation.intervals import RESAMPLES, Interval, bootstrap_intervals, bootstrap_means, clopper_pearson
from topr_exp.evaluation.statistics import Ballots, ballots, majority_score
from topr_exp.types import CORRECT, INVALID

# Name of a figure -> (what is summed over problems, over what): shares whose denominators differ between problems.
RATIOS = {
    "accuracy": ("right", "verified"),
    "invalid": ("unparsable", "verified"),
    "accuracy_on_correct": ("right_on_correct", "verified_correct"),
    "accuracy_on_incorrect": ("right_on_incorrect", "verified_incorrect"),
}
BALANCED = "balanced_accuracy"
Means = dict[str, NDArray[np.float64]]  # of the values of a `Tally` over problems, one for each sample of problems


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums that each problem adds to the figures, [P] each, over its verifications and its selections' scores."""

    values: dict[str, NDArray[np.float64]]
    solutions: int  # K
    verifications: int  # n

    def __len__(self) -> int:
        return len(self.values["right"])


def tally(
    solution_verdicts: NDArray[np.integer],
    classes: NDArray[np.integer],
    verdicts: NDArray[np.integer],
    is_verified: NDArray[np.bool_],
) -> Tally:
    """Count each problem's verifications and let its solutions vote.

    solution_verdicts: [P, K] codes of the solutions. classes: [P, K] equivalence classes of their answers, -1 without
    one. verdicts: [P, K, n] codes of the verifications: CORRECT where one agrees with its solution's code, INVALID
    where it says nothing. is_verified: [P, K] whether a solution was verified; where not, its verdicts are not read.
    """
    assert verdicts.shape[:2] == solution_verdicts.shape == classes.shape == is_verified.shape
    n = verdicts.shape[2]
    is_correct = solution_verdicts == CORRECT
    # [P, K]: how many of a solution's verifications are so.
    right = ((verdicts == CORRECT) & is_verified[:, :, None]).sum(axis=2)
    unparsable = ((verdicts == INVALID) & is_verified[:, :, None]).sum(axis=2)
    # A verification that speaks approves of a correct solution when it is right, of another one when it is wrong.
    approvals = np.where(is_correct, right, n * is_verified - right - unparsable)
    voting = ballots(solution_verdicts, classes)
    counts = {
        "right": right.sum(axis=1),
        "unparsable": unparsable.sum(axis=1),
        "verified": n * is_verified.sum(axis=1),
        "right_on_correct": (right * is_correct).sum(axis=1),
        "verified_correct": n * (is_verified & is_correct).sum(axis=1),
        "right_on_incorrect": (right * ~is_correct).sum(axis=1),
        "verified_incorrect": n * (is_verified & ~is_correct).sum(axis=1),
        "weighted_sc": weighted_score(voting, approvals),
        "maj": weighted_score(voting, np.ones_like(approvals)),
        "oracle": is_correct.any(axis=1),
        "solved": is_correct.mean(axis=1),
    }
    values = {name: count.astype(np.float64) for name, count in counts.items()}
    return Tally(values, solutions=is_correct.shape[1], verifications=n)


def summarise(counted: Tally, resamples: int = RESAMPLES) -> dict[str, Any]:
    """Name -> value, low, high (95 %, bootstrap over problems); None where it has no meaning.

    accuracy, accuracy_on_correct, accuracy_on_incorrect, balanced_accuracy (their mean: 0.5 for a verifier that always
    says the same), invalid, weighted_sc, maj, oracle, solved (share of correct), and the paired weighted_sc - maj.
    """
    names = list(counted.values)
    columns = np.stack([counted.values[name] for name in names], axis=1)
    means = dict(zip(names, columns.mean(axis=0, keepdims=True).T, strict=True))
    resampled_means = None
    if len(counted) > 1:
        resampled = bootstrap_means(columns, resamples, np.random.default_rng([0, 2]))
        resampled_means = dict(zip(names, resampled.T, strict=True))
    figures = (*RATIOS, BALANCED, "weighted_sc", "maj", "oracle", "solved")
    summary: dict[str, Any] = {name: interval(name, means, resampled_means, len(counted)) for name in figures}
    summary["weighted_sc - maj"] = difference(counted.values["maj"], counted.values["weighted_sc"])
    return {**summary, "problems": len(counted), "solutions": counted.solutions, "verifications": counted.verifications}


def interval(name: str, means: Means, resampled_means: Means | None, problems: int) -> dict[str, float | None]:
    """A figure of the means and its percentiles over resampled means; of 0 or 1 by `clopper_pearson` over problems."""
    (value,) = figure(name, means)
    if resampled_means is None or np.isnan(value):
        return Interval(float(value)).as_dict()
    if value in (0, 1):
        return clopper_pearson(int(value) * problems, problems).as_dict()
    # A resample without a correct (or incorrect) solution says nothing about the verifier on them.
    low, high = np.nanpercentile(figure(name, resampled_means), [2.5, 97.5])
    return Interval(float(value), float(low), float(high)).as_dict()


def figure(name: str, means: Means) -> NDArray[np.float64]:
    """A figure from means over problems, one for each sample of them; NaN where its denominator is 0."""
    if name == BALANCED:
        return (figure("accuracy_on_correct", means) + figure("accuracy_on_incorrect", means)) / 2
    if name not in RATIOS:
        return means[name]
    top, bottom = (means[part] for part in RATIOS[name])
    return np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0)


def difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> dict[str, float | None]:
    """The mean of second - first, [P] each, paired by problem."""
    return bootstrap_intervals((second - first)[:, None], np.random.default_rng([0, 3]))[0].as_dict()


def weighted_score(voting: Ballots, approvals: NDArray[np.integer]) -> NDArray[np.float64]:
    """[P] the expected score of the answer that each problem's weighted vote selects.

    approvals: [P, K] how many verifications of a solution say that it is correct, 0 where it has none. Each solution
    has the same number of verifications, so that sums of counts order answers as sums of shares do, without rounding.
    """
    candidate, worth = voting
    gives_answer = candidate[:, :, None] == np.arange(worth.shape[1])  # [P, K, C] by solution and answer
    total = (gives_answer * approvals[:, :, None].astype(np.int64)).sum(axis=1)
    return majority_score(np.where(gives_answer.any(axis=1), total + 1, 0), worth)


# ---- the table at the end of a run or an evaluation


COLUMNS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "invalid": "invalid", "weighted_sc": "weighted SC"}
WIDTH = 22


def run_table(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a run from its figures before and after training."""
    changes = {
        "trained - base": final["weighted_sc - base"],
        "trained - none": final["weighted_sc - maj"],
        "base - none": base["weighted_sc - maj"],
    }
    paired = "; ".join(f"{name} {cell(value)}" for name, value in changes.items())
    return [*rows({"base": base, "trained": final}), f"weighted SC, paired: {paired}", note(base)]


def evaluation_table(figures: dict[str, Any]) -> str:
    """The table of one model."""
    paired = f"weighted SC, paired: model - none {cell(figures['weighted_sc - maj'])}"
    return "\n".join([*rows({"model": figures}), paired, note(figures)])


def rows(verifiers: dict[str, dict[str, Any]]) -> list[str]:
    """Some verifiers of the same solutions between none and one that is always right."""
    first = next(iter(verifiers.values()))
    k = first["solutions"]
    none_row = {f"none (maj@{k})": {"weighted_sc": first["maj"]}}
    oracle_row = {f"oracle (pass@{k})": {"weighted_sc": first["oracle"]}}
    lines = [f"{'%':<18}" + "".join(f"{title:>{WIDTH}}" for title in COLUMNS.values())]
    for name, row in {**none_row, **verifiers, **oracle_row}.items():
        lines.append(f"{name:<18}" + "".join(f"{cell(row.get(column)):>{WIDTH}}" for column in COLUMNS))
    return lines


def note(figures: dict[str, Any]) -> str:
    """Caption of the table."""
    return (
        f"[ ]: 95 %, bootstrap over {figures['problems']} problems; {figures['solutions']} solutions each, "
        f"{100 * figures['solved']['value']:.1f} % of them correct; {figures['verifications']} verifications a solution"
    )


def cell(figure: dict[str, float | None] | None) -> str:
    """A figure in per cent with its interval."""
    if figure is None or figure["value"] is None:
        return "–"
    value = f"{100 * figure['value']:.1f}"
    low = figure["low"]
    high = figure["high"]
    if low is None or high is None:
        return value
    return f"{value} [{100 * low:.1f}, {100 * high:.1f}]"
