"""Figures of an evaluation from two matrices: verdicts and answer classes, [problems, completions].

pass@K is the unbiased closed form; maj@K is the mean of the paper's 100 draws, exact for K = n, and for K = 1 the exact
value. Both carry their intervals over problems, a mean reward its standard error.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from topr_exp.evaluation.intervals import (
    Clusters,
    Counts,
    Interval,
    Mask,
    Point,
    Values,
    bootstrap_intervals,
    count_in_rows,
    standard_error,
)
from topr_exp.types import CORRECT, INVALID, VERDICTS, Problem

HEADLINE_K = 8
TRIALS = 100  # as in the paper

Codes = NDArray[np.integer]
Figures = dict[str, Any]  # ready for JSON
ByK = dict[int, Values]  # K -> [P], of which means, intervals and paired differences are taken


class Scores(NamedTuple):
    """pass@K and maj@K of each problem."""

    pass_at: ByK
    maj_at: ByK


def measure(verdicts: Codes, classes: Codes, voting_ks: Sequence[int] | None = None) -> Scores:
    """Compute pass@K and maj@K of each problem for K = 1, 2, 4, ... up to n.

    verdicts: [P, n] indices into VERDICTS.
    classes: [P, n] the answers' equivalence classes in their problem, negative without an answer.
    voting_ks: the K of maj@K, besides 1, in a part of the time; None: all.
    """
    assert verdicts.size, "nothing to evaluate"
    n = verdicts.shape[1]
    is_correct = verdicts == CORRECT
    voting = ballots(verdicts, classes)
    assert (voting.candidates[is_correct] >= 0).all(), "a correct completion without an answer class"
    correct_counts = is_correct.sum(axis=1)
    ks = powers_of_two(n)
    if voting_ks is None:
        voting_ks = ks
    pass_at = {k: pass_at_k(correct_counts, n, k) for k in ks}
    maj_at = maj_at_ks(voting, voting_ks, default_rng([0, 0]))
    # A single vote elects its answer; without the closed form's rounding, since this is the headline.
    correct_shares = is_correct.mean(axis=1)
    pass_at[1] = correct_shares
    maj_at[1] = correct_shares
    return Scores(pass_at, maj_at)


def headline_k(n: int) -> int:
    """The K of the headline maj@K: 8, or the largest power of two up to n below that."""
    return min(HEADLINE_K, powers_of_two(n)[-1])


def summarise(
    verdicts: Codes, classes: Codes, problems: Sequence[Problem] = (), *, votes_are_known: bool = True
) -> Figures:
    """Summarise an evaluation, ready for JSON (shares between 0 and 1; ends of intervals null for a single problem).

    pass@1, maj@8 (another K in the name where n < 8), correct, incorrect, invalid; problems, samples and, where they
    are fewer, sources; pass@k and maj@k: K -> value, low, high;
    correct_histogram: problems with 0..n correct completions; levels and subjects: name -> the headline figures.

    verdicts, classes: as for `measure`. problems: [P], with levels, subjects and what they were made from: those of one
    source are resampled together. votes_are_known: False leaves out maj@K.
    """
    n = verdicts.shape[1]
    scores = measure(verdicts, classes)
    columns = np.stack([*scores.pass_at.values(), *scores.maj_at.values()], axis=1)  # [P, 2 K]
    clusters = number_sources([problem.source for problem in problems])
    intervals = bootstrap_intervals(columns, default_rng([0, 1]), clusters=clusters, share=True)
    pass_at_points = points_by_k(scores.pass_at, intervals[: len(scores.pass_at)])
    maj_at_points = points_by_k(scores.maj_at, intervals[len(scores.pass_at) :])
    if not votes_are_known:
        scores = Scores(scores.pass_at, {})
        maj_at_points = {}

    every_problem = np.full(len(verdicts), True)
    figures = headline(verdicts, scores, every_problem)
    if clusters is not None:
        figures["sources"] = int(clusters.max()) + 1
    correct_counts = (verdicts == CORRECT).sum(axis=1)
    levels = [problem.level for problem in problems]
    subjects = [problem.subject for problem in problems]
    return {
        **figures,
        "samples": n,
        "pass@k": pass_at_points,
        "maj@k": maj_at_points,
        "correct_histogram": np.bincount(correct_counts, minlength=n + 1).tolist(),  # TOPR, Figure 4
        "levels": breakdown(verdicts, scores, levels),
        "subjects": breakdown(verdicts, scores, subjects),
    }


def points_by_k(ks: Iterable[int], intervals: Sequence[Interval]) -> dict[str, Point]:
    """Name the points of a curve, one interval for each K."""
    points = {}
    for k, interval in zip(ks, intervals, strict=True):
        points[str(k)] = interval.as_dict()
    return points


def mean_lengths(verdicts: Codes, tokens: Counts) -> Figures:
    """Average the sampled tokens of all completions, and by verdict (null for a verdict that none has).

    verdicts: indices into VERDICTS; tokens: of the same shape.
    """
    means: Figures = {"length": float(tokens.mean())}
    for code, name in enumerate(VERDICTS):
        lengths = tokens[verdicts == code]
        means[f"length_{name}"] = float(lengths.mean()) if lengths.size else None
    return means


def mean_reward(rewards: Values, sources: Sequence[str | None] = ()) -> Figures:
    """Average rewards [P, n], with the standard error over problems; sources: [P] what each was made from."""
    problem_means = rewards.mean(axis=1)
    return {
        "mean_reward": float(problem_means.mean()),
        "mean_reward_se": standard_error(problem_means, number_sources(sources)),
    }


def number_sources(sources: Sequence[str | None]) -> Clusters | None:
    """Number sources [P] from 0 in order of appearance; None where every problem stands for itself."""
    if all(source is None for source in sources):
        return None
    number_by_source: dict[str, int] = {}
    numbers = []
    for index, source in enumerate(sources):
        name = source or f"#{index}"  # without a source, one of its own
        number = number_by_source.setdefault(name, len(number_by_source))
        numbers.append(number)
    return np.array(numbers)


def headline(verdicts: Codes, scores: Scores, is_included: Mask) -> Figures:
    """Compute the headline figures of the included problems; is_included: [P]."""
    pass_at_1 = scores.pass_at[1][is_included]
    figures: Figures = {"pass@1": float(pass_at_1.mean())}
    if scores.maj_at:
        k = headline_k(verdicts.shape[1])
        maj_at_k = scores.maj_at[k][is_included]
        figures[f"maj@{k}"] = float(maj_at_k.mean())
    included_verdicts = verdicts[is_included].ravel()
    verdict_counts = np.bincount(included_verdicts, minlength=len(VERDICTS))
    verdict_shares = verdict_counts / len(included_verdicts)
    for name, share in zip(VERDICTS, verdict_shares, strict=True):
        figures[name] = float(share)
    figures["problems"] = len(pass_at_1)
    return figures


def breakdown(verdicts: Codes, scores: Scores, names: Sequence[Any]) -> dict[str, Figures]:
    """Compute the headline figures by level or subject, in order, without problems that have none; names: [P]."""
    name_of_problem = np.array(names, dtype=object)
    figures = {}
    for name in sorted(set(names) - {None}):
        has_name = name_of_problem == name
        figures[str(name)] = headline(verdicts, scores, has_name)
    return figures


# ---- verdicts and votes: pass@K in closed form, maj@K by the paper's bootstrap (TOPR, section 4.2)


class Ballots(NamedTuple):
    """The votes of completions, and what each answer is worth."""

    candidates: Codes  # [P, n] the class that a completion votes for, -1 for none
    worth: Values  # [P, C] the share of a class graded correct, mostly 0 or 1


def ballots(verdicts: Codes, classes: Codes) -> Ballots:
    """Collect the votes of completions.

    verdicts: [P, n] indices into VERDICTS.
    classes: [P, n] the answers' equivalence classes, small numbers, negative without an answer.
    """
    assert verdicts.shape == classes.shape, (verdicts.shape, classes.shape)
    has_vote = (verdicts != INVALID) & (classes >= 0)
    candidates = np.where(has_vote, classes, -1).astype(np.int64)
    correct_candidates = np.where(verdicts == CORRECT, candidates, -1)
    class_count = int(candidates.max(initial=0)) + 1
    votes = count_votes(candidates, class_count)
    correct_votes = count_votes(correct_candidates, class_count)
    worth = correct_votes / np.maximum(votes, 1)
    return Ballots(candidates, worth)


def count_votes(candidates: Codes, class_count: int) -> Counts:
    """Count the votes for each class, [P, C]; candidates: [P, k] classes, -1 where a completion has no vote."""
    votes = count_in_rows(candidates + 1, class_count + 1)
    return votes[:, 1:]


def majority_score(votes: Counts, worth: Values) -> Values:
    """The expected score of each problem's majority vote: the mean worth of the answers tied for the most votes.

    votes, worth: [P, C]; without any vote the score is 0.
    """
    most_votes = votes.max(axis=1, keepdims=True)
    is_leading = (votes == most_votes) & (most_votes > 0)
    leading_worth = (is_leading * worth).sum(axis=1)
    leading_count = is_leading.sum(axis=1)
    return leading_worth / np.maximum(leading_count, 1)


def powers_of_two(n: int) -> list[int]:
    """The K that are reported for n completions a problem: 1, 2, 4, ... up to n."""
    return [1 << i for i in range(n.bit_length())]


def pass_at_k(correct: Counts, n: int, k: int) -> Values:
    """Estimate pass@K of each problem without bias, in closed form.

    1 - C(n - c, K) / C(n, K) = 1 - prod_{i = n-c+1}^{n} (1 - K/i)   (Chen et al. 2021, arXiv 2107.03374, Eq. 1):
    the mean over all K-subsets of the n completions. As a product of factors below 1 it cannot overflow.

    correct: [P] correct completions of each problem, 0 to n. n, k: completions of each, and K with 1 <= K <= n.
    """
    assert 1 <= k <= n, (k, n)
    i = np.arange(n, 0, -1)
    factors = 1 - k / i  # 0 at i = K, and so is the product from there on
    products = np.cumprod(factors)
    miss_probabilities = np.concatenate([[1.0], products])  # by the number of correct ones, 0 to n
    return 1 - miss_probabilities[correct]


def maj_at_ks(voting: Ballots, ks: Sequence[int], rng: Generator) -> ByK:
    """Estimate maj@K of each problem: the mean over draws of K of the n completions without replacement.

    A trial shuffles each problem's completions once and takes the first K for every K: uniform draws, a smooth curve.
    """
    problem_count, class_count = voting.worth.shape
    score_sums = {k: np.zeros(problem_count) for k in ks}  # over trials
    for _ in range(TRIALS):
        shuffled_candidates = rng.permuted(voting.candidates, axis=1)
        for k in ks:
            votes = count_votes(shuffled_candidates[:, :k], class_count)
            score_sums[k] += majority_score(votes, voting.worth)
    return {k: score_sum / TRIALS for k, score_sum in score_sums.items()}
