"""Figures of a verifier and their table, from verdicts alone: its accuracy, and the answers that its approval selects.

All are means over the P original problems, whose K solutions stand or fall together: the bootstrap resamples problems.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import default_rng

from topr_exp.evaluation.intervals import (
    RESAMPLES,
    Counts,
    Interval,
    Mask,
    Point,
    Values,
    bootstrap_intervals,
    bootstrap_means,
    clopper_pearson,
)
from topr_exp.evaluation.statistics import Ballots, Codes, Figures, ballots, majority_score
from topr_exp.types import CORRECT, INVALID

# Name of a figure -> (what is summed over problems, over what): shares whose denominators differ between problems.
RATIOS = {
    "accuracy": ("right", "verified"),
    "invalid": ("unparsable", "verified"),
    "accuracy_on_correct": ("right_on_correct", "verified_correct"),
    "accuracy_on_incorrect": ("right_on_incorrect", "verified_incorrect"),
}
BALANCED = "balanced_accuracy"
Samples = Values  # [1 + R] means over the problems themselves, then over each resample of them


@dataclass(frozen=True, slots=True)
class Tally:
    """Each problem's part in the figures, [P] each: counts of its verifications, scores of the answers elected."""

    values: dict[str, Values]
    solutions: int  # K
    verifications: int  # n

    def __len__(self) -> int:
        return len(self.values["right"])


def tally_votes(solution_verdicts: Codes, classes: Codes, verdicts: Codes, is_verified: Mask) -> Tally:
    """Count each problem's verifications and let its solutions vote.

    solution_verdicts: [P, K] codes of the solutions. classes: [P, K] equivalence classes of their answers, -1 without
    one. verdicts: [P, K, n] codes of the verifications: CORRECT where one agrees with its solution's code, INVALID
    where it says nothing. is_verified: [P, K] whether a solution was verified; where not, its verdicts are not read.
    """
    assert verdicts.shape[:2] == solution_verdicts.shape == classes.shape == is_verified.shape
    n = verdicts.shape[2]
    is_correct = solution_verdicts == CORRECT
    # [P, K]: how many of a solution's verifications there are, are right, say nothing.
    verified = n * is_verified
    right = is_verified * (verdicts == CORRECT).sum(axis=2)
    unparsable = is_verified * (verdicts == INVALID).sum(axis=2)
    # A verification that speaks approves of a correct solution when it is right, of another one when it is wrong.
    approvals = np.where(is_correct, right, verified - right - unparsable)
    voting = ballots(solution_verdicts, classes)
    counts_by_solution = {  # [P, K] each
        "right": right,
        "unparsable": unparsable,
        "verified": verified,
        "right_on_correct": right * is_correct,
        "verified_correct": verified * is_correct,
        "right_on_incorrect": right * ~is_correct,
        "verified_incorrect": verified * ~is_correct,
    }
    values = {name: counts.sum(axis=1).astype(np.float64) for name, counts in counts_by_solution.items()}
    values["weighted_sc"] = weighted_score(voting, approvals)
    values["maj"] = weighted_score(voting, np.ones_like(approvals))  # all votes count alike
    values["oracle"] = is_correct.any(axis=1).astype(np.float64)
    values["solved"] = is_correct.mean(axis=1)
    return Tally(values, solutions=is_correct.shape[1], verifications=n)


def summarise(tally: Tally) -> Figures:
    """Compute each figure's value, low and high (95 %, bootstrap over problems); None where it has no meaning.

    accuracy, accuracy_on_correct, accuracy_on_incorrect, balanced_accuracy (their mean: 0.5 for a verifier that always
    says the same), invalid, weighted_sc, maj, oracle, solved (share of correct), and the paired weighted_sc - maj.
    """
    columns = np.column_stack(list(tally.values.values()))  # [P, values]
    means = columns.mean(axis=0, keepdims=True)
    if len(tally) > 1:
        resampled_means = bootstrap_means(columns, RESAMPLES, default_rng([0, 2]))
        means = np.concatenate([means, resampled_means])  # [1 + R, values]
    samples_by_name = dict(zip(tally.values, means.T, strict=True))
    summary: Figures = {}
    for name in (*RATIOS, BALANCED, "weighted_sc", "maj", "oracle", "solved"):
        samples = figure_samples(name, samples_by_name)
        summary[name] = interval_of_samples(samples, problems=count_problems(name, tally))
    summary["weighted_sc - maj"] = difference(tally.values["maj"], tally.values["weighted_sc"])
    summary["problems"] = len(tally)
    summary["solutions"] = tally.solutions
    summary["verifications"] = tally.verifications
    return summary


def count_problems(name: str, tally: Tally) -> int:
    """Count the problems that a figure is about: of those on correct solutions, the ones that have a correct one."""
    if name == BALANCED:
        return min(count_problems("accuracy_on_correct", tally), count_problems("accuracy_on_incorrect", tally))
    if name not in RATIOS:
        return len(tally)
    _, denominator = RATIOS[name]
    return int(np.count_nonzero(tally.values[denominator]))


def interval_of_samples(samples: Samples, problems: int) -> Point:
    """Add to a figure its percentiles over resamples; for 0 or 1 by `clopper_pearson` over problems."""
    value = float(samples[0])
    resampled_values = samples[1:]
    if math.isnan(value) or not len(resampled_values):
        return Interval(value).as_dict()
    if value in (0, 1):
        return clopper_pearson(int(value) * problems, problems).as_dict()
    # A resample without a correct (or incorrect) solution says nothing about the verifier on them.
    low, high = np.nanpercentile(resampled_values, [2.5, 97.5]).tolist()
    return Interval(value, low, high).as_dict()


def figure_samples(name: str, samples_by_name: Mapping[str, Samples]) -> Samples:
    """Compute a figure from means of a tally's values over problems; NaN where its denominator is 0."""
    if name == BALANCED:
        on_correct = figure_samples("accuracy_on_correct", samples_by_name)
        on_incorrect = figure_samples("accuracy_on_incorrect", samples_by_name)
        return (on_correct + on_incorrect) / 2
    if name not in RATIOS:
        return samples_by_name[name]
    numerator, denominator = RATIOS[name]
    with np.errstate(invalid="ignore"):  # 0 / 0
        return samples_by_name[numerator] / samples_by_name[denominator]


def difference(base: Values, scores: Values) -> Point:
    """Estimate the mean of scores - base, [P] each, paired by problem."""
    differences = (scores - base)[:, None]
    (mean_difference,) = bootstrap_intervals(differences, default_rng([0, 3]))
    return mean_difference.as_dict()


def weighted_score(voting: Ballots, approvals: Counts) -> Values:
    """Compute the expected score of the answer that each problem's weighted vote selects, [P].

    approvals: [P, K] how many verifications of a solution say that it is correct, 0 where it has none. Each solution
    has the same number of verifications, so that sums of counts order answers as sums of shares do, without rounding.
    """
    class_count = voting.worth.shape[1]
    gives_answer = voting.candidates[:, :, None] == np.arange(class_count)  # [P, K, C] by solution and answer class
    approvals_by_solution = gives_answer * approvals[:, :, None]
    approvals_of_answer = approvals_by_solution.sum(axis=1)  # [P, C]
    is_given = gives_answer.any(axis=1)
    votes = is_given * (approvals_of_answer + 1)  # also an answer that nobody approves of has one
    return majority_score(votes, voting.worth)


# ---- the table at the end of a run or an evaluation


COLUMNS = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "invalid": "invalid", "weighted_sc": "weighted SC"}
WIDTH = 22


def run_table(base: Figures, final: Figures) -> list[str]:
    """Format the table of a run from its figures before and after training."""
    changes = {
        "trained - base": final["weighted_sc - base"],
        "trained - none": final["weighted_sc - maj"],
        "base - none": base["weighted_sc - maj"],
    }
    comparison = "; ".join(f"{name} {cell(value)}" for name, value in changes.items())
    return [*table_lines({"base": base, "trained": final}), f"weighted SC, paired: {comparison}", caption(base)]


def evaluation_table(figures: Figures) -> str:
    """Format the table of one model."""
    comparison = f"weighted SC, paired: model - none {cell(figures['weighted_sc - maj'])}"
    return "\n".join([*table_lines({"model": figures}), comparison, caption(figures)])


def table_lines(verifiers: dict[str, Figures]) -> list[str]:
    """Format rows of verifiers of the same solutions, between no verifier (maj@K) and a perfect one (pass@K)."""
    first_verifier = next(iter(verifiers.values()))  # of the solutions all have the same figures
    k = first_verifier["solutions"]
    figures_by_row = {
        f"none (maj@{k})": {"weighted_sc": first_verifier["maj"]},
        **verifiers,
        f"oracle (pass@{k})": {"weighted_sc": first_verifier["oracle"]},
    }
    lines = [align("%", COLUMNS.values())]
    for name, figures in figures_by_row.items():
        cells = [cell(figures.get(column)) for column in COLUMNS]
        lines.append(align(name, cells))
    return lines


def align(name: str, cells: Iterable[str]) -> str:
    return f"{name:<18}" + "".join(f"{text:>{WIDTH}}" for text in cells)


def caption(figures: Figures) -> str:
    """Say what the table's intervals and figures are of."""
    return (
        f"[ ]: 95 %, bootstrap over {figures['problems']} problems; {figures['solutions']} solutions each, "
        f"{100 * figures['solved']['value']:.1f} % of them correct; {figures['verifications']} verifications a solution"
    )


def cell(figure: Point | None) -> str:
    """Format a figure in per cent with its interval."""
    if figure is None or figure.get("value") is None:
        return "–"
    # An interval has NaN where the figure has None.
    known_ends: dict[str, Any] = {name: number for name, number in figure.items() if number is not None}
    return Interval(**known_ends).percent()
