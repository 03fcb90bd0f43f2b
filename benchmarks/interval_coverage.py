"""Coverage of intervals and share of wrong claims, by simulation: `python benchmarks/interval_coverage.py`.

Worlds of 8 completions to 200 problems, by problems, algorithms and seeds that differ; in half of them one seed in five
collapses. Two minutes; docs/statistics.md has the main rows.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.evaluation import intervals
from topr_exp.evaluation.intervals import clopper_pearson, crossed_error, mean_squares, t_95, t_half_width
from topr_exp.runtime.exit_status import exit_status

Values = NDArray[np.float64]  # [worlds, groups, seeds, problems]
SEED_COUNTS = (2, 3, 5, 8)
COMPLETIONS, PROBLEMS = 8, 200
LEVEL = 0.6  # pass@1
COLLAPSE = 0.2  # share of seeds that end at 0
MAX_COLLAPSED = 0.15  # pass@1 of a seed that counts as collapsed
LEAD = 0.05  # of an algorithm over another; where it alone collapses, it is worse by 8 points in the mean
EQUAL_GROUPS = (3, 7, 15)
CLAIMS = 20  # of a figure
ERROR = 0.05  # of a claim, or of all together
RARE_SHARE = 0.001
FREEDOMS = np.array([1e6, 1e3, 120, 60, 30, 20, 14, 10, 8, 6, 5, 4, 3, 2])


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python benchmarks/interval_coverage.py", description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000, metavar="N", help="of each kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    return exit_status(partial(print_table, options.worlds))


def print_table(worlds: int) -> int:
    """Print a column for each number of seeds without and with collapse."""
    columns: dict[str, dict[str, Any]] = {}
    for collapse in (0.0, COLLAPSE):
        for seeds in SEED_COUNTS:
            head = f"{seeds} seeds"
            if collapse:
                head += ", collapse"
            rng = np.random.default_rng([seeds, collapse > 0])
            columns[head] = dict(measure_rules(rng, worlds, seeds, collapse))
    print(f"| % of {worlds} worlds | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    for rule in next(iter(columns.values())):
        cells = [f"{100 * column[rule]:.1f}" for column in columns.values()]
        print(f"| {rule} | {' | '.join(cells)} |")
    return 0


def measure_rules(
    rng: np.random.Generator, worlds: int, seeds: int, collapse: float
) -> Iterator[tuple[str, float | np.floating[Any]]]:
    """Measure each rule with a number of seeds: its name and a share of worlds."""
    groups = draw_worlds(rng, worlds, 1 + CLAIMS, seeds, collapse)
    reference, rivals = groups[:, 0], groups[:, 1:]
    yield from measure_coverage(rng, reference, rivals[:, 0], collapse)
    p, _ = decide(rivals, groups[:, :1])
    least_p = p.min(1)
    yield "wrong: one claim between equals", np.mean(p <= ERROR)
    yield f"wrong: any of {CLAIMS} between equals, each alone", np.mean(least_p <= ERROR)
    yield f"wrong: any of {CLAIMS} between equals, Holm", np.mean(least_p <= ERROR / CLAIMS)
    level = LEVEL - LEAD
    if collapse:
        level = LEVEL + LEAD
    worse = draw_worlds(rng, worlds, 1, seeds, collapse, level)
    p, lead = decide(worse, draw_worlds(rng, worlds, 1, seeds, 0.0))
    is_claimed = (p <= ERROR) & (lead > 0)
    yield "wrong: above one that is better in the mean", np.mean(is_claimed)
    for count in EQUAL_GROUPS:
        worlds_with_claims = count_worlds_with_claims(groups[:, :count])
        yield f"wrong: any of {count} equals called worse or best", worlds_with_claims / worlds


def measure_coverage(
    rng: np.random.Generator, reference: Values, group: Values, collapse: float
) -> Iterator[tuple[str, float | np.floating[Any]]]:
    """Measure how often intervals contain the true value: of one group's mean, two groups' difference, and shares.

    reference, group: [worlds, seeds, problems]
    """
    worlds, seeds, _ = reference.shape
    truth = LEVEL * (1 - collapse)
    yield "covered: mean over seeds and problems", np.mean(covers(truth, *crossed(reference)))
    error = abs(reference.mean((1, 2)) - truth)
    half_width = t_half_width(reference.mean(2).T)
    yield "covered: mean over seeds alone", np.mean(error <= half_width)
    difference = group - reference
    is_covered = covers(0.0, *crossed(difference, cautious=True))
    of_seeds, _, residual = mean_squares(difference)
    yield "covered: paired difference", np.mean(is_covered)
    yield "covered: paired difference, where seeds seem not to differ", np.mean(is_covered[of_seeds <= residual])
    intervals_by_count = [clopper_pearson(count, seeds) for count in range(seeds + 1)]
    collapsed_counts = (reference.mean(2) < MAX_COLLAPSED).sum(1)
    collapse_intervals = [intervals_by_count[count] for count in collapsed_counts]
    yield "covered: share of collapsed seeds", share_containing(collapse, collapse_intervals)
    rare = rng.binomial(COMPLETIONS, RARE_SHARE, (worlds, seeds, PROBLEMS)) / COMPLETIONS
    rare_intervals = [intervals.crossed_interval(values, share=True) for values in rare]
    yield "covered: a share of 0.1 %, mostly counts of 0", share_containing(RARE_SHARE, rare_intervals)


def share_containing(value: float, candidates: list[Any]) -> np.floating[Any]:
    """Return the share of intervals that contain a value."""
    return np.mean([interval.low <= value <= interval.high for interval in candidates])


def draw_worlds(
    rng: np.random.Generator,
    worlds: int,
    groups: int,
    seeds: int,
    collapse: float,
    level: float = LEVEL,
) -> Values:
    """Draw final pass@1 of each problem, in the mean level (1 − collapse): chances are symmetric and within 0 and 1."""
    by_problem = rng.normal(0, 0.12, (worlds, 1, 1, PROBLEMS)).clip(-0.22, 0.22)
    by_group = rng.normal(0, 0.03, (worlds, groups, 1, PROBLEMS))
    by_seed = rng.normal(0, 0.02, (worlds, groups, seeds, 1))
    by_group_and_seed = (by_group + by_seed).clip(-0.11, 0.11)
    is_sound = rng.random((worlds, groups, seeds, 1)) >= collapse
    chance = (level + by_problem + by_group_and_seed) * is_sound
    return rng.binomial(COMPLETIONS, chance) / COMPLETIONS


def crossed(values: Values, *, cautious: bool = False) -> tuple[Values, Values, Values]:
    """Return mean, standard error and degrees of freedom of [..., S, P], as `crossed_interval` computes them."""
    seeds, problems = values.shape[-2:]
    error, freedom = crossed_error(mean_squares(values), seeds, problems, cautious=cautious)
    return values.mean((-2, -1)), error, freedom


def covers(truth: float, mean: Values, error: Values, freedom: Values) -> NDArray[np.bool_]:
    return abs(mean - truth) <= t_95(freedom) * error


def decide(values: Values, reference: Values) -> tuple[Values, Values]:
    """Return the p-value of each claim (1 if the group ahead has collapsed seeds) and the lead over the reference."""
    from scipy.special import stdtr

    lead, error, freedom = crossed(values - reference, cautious=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(freedom, -abs(lead) / error)
    has_collapsed = np.where(lead > 0, has_collapsed_seeds(values), has_collapsed_seeds(reference))
    is_tested = (error > 0) & ~has_collapsed
    return np.where(is_tested, p, 1.0), lead


def has_collapsed_seeds(values: Values) -> NDArray[np.bool_]:
    return (values.mean(-1) < MAX_COLLAPSED).any(-1)


def count_worlds_with_claims(groups: Values) -> int:
    """Count the worlds in which a group is called below another, groups with collapsed seeds left out."""
    is_sound = ~has_collapsed_seeds(groups)
    sound_counts = is_sound.sum(1)
    total = 0
    for count in set(sound_counts) - {0, 1}:
        has_count = sound_counts == count
        sound_groups = groups[has_count][is_sound[has_count]]
        sound_worlds = sound_groups.reshape(-1, count, *groups.shape[2:])
        is_below = intervals.below_another(sound_worlds, quantile=interpolated)
        total += int(is_below.any((1, 2)).sum())
    return total


@cache
def quantiles(groups: int) -> Values:
    return intervals.studentized_range(groups, FREEDOMS)


def interpolated(groups: int, freedom: Values) -> Values:
    """Approximate `studentized_range`, which is slow: linear between FREEDOMS in the inverse."""
    return np.interp(1 / freedom, 1 / FREEDOMS, quantiles(groups))


if __name__ == "__main__":
    sys.exit(main())
