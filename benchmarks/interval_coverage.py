"""`python benchmarks/interval_coverage.py`: measure by simulation what intervals cover and how often claims are wrong.

Worlds of 8 completions to 200 problems, by problems, algorithms and seeds that differ; in half of them one seed in five
collapses. Two minutes; docs/statistics.md has the table.
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
SEEDS, COMPLETIONS, PROBLEMS = (2, 3, 5, 8), 8, 200
LEVEL, COLLAPSE, FALLEN = 0.6, 0.2, 0.15  # pass@1; the share of seeds that end at 0; what counts as collapsed
LEAD = 0.05  # of an algorithm over another; where it alone collapses, it is worse by 8 points in the mean
EQUAL = (3, 7, 15)  # groups of which none is the best
CLAIMS = 20  # of a figure
FREEDOMS = np.array([1e6, 1e3, 120, 60, 30, 20, 14, 10, 8, 6, 5, 4, 3, 2])


def main(given: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python benchmarks/interval_coverage.py", description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000, metavar="N", help="of each kind (default: %(default)s)")
    return exit_status(partial(print_table, parser.parse_args(given).worlds))


def print_table(worlds: int) -> int:
    cells = [(seeds, collapse) for collapse in (0.0, COLLAPSE) for seeds in SEEDS]
    columns = [dict(measured(np.random.default_rng([seeds, collapse > 0]), worlds, seeds, collapse))
               for seeds, collapse in cells]  # fmt: skip
    heads = [f"{seeds} seeds{', collapse' if collapse else ''}" for seeds, collapse in cells]
    print(f"| % of {worlds} worlds | {' | '.join(heads)} |\n|---|{'---|' * len(cells)}")
    for name in columns[0]:
        print(f"| {name} | {' | '.join(f'{100 * column[name]:.1f}' for column in columns)} |")
    return 0


def measured(
    rng: np.random.Generator, worlds: int, seeds: int, collapse: float
) -> Iterator[tuple[str, float | np.floating[Any]]]:
    """Measure each rule with so many seeds: its name and a share of worlds."""
    groups = drawn(rng, worlds, 1 + CLAIMS, seeds, collapse)
    first, truth = groups[:, 0], LEVEL * (1 - collapse)
    yield "covered: mean over seeds and problems", np.mean(covers(truth, *crossed(first)))
    yield "covered: mean over seeds alone", np.mean(abs(first.mean((1, 2)) - truth) <= t_half_width(first.mean(2).T))
    difference = groups[:, 1] - first
    covered = covers(0.0, *crossed(difference, cautious=True))
    of_seeds, _, rest = mean_squares(difference)
    yield "covered: paired difference", np.mean(covered)
    yield "covered: paired difference, where seeds seem not to differ", np.mean(covered[of_seeds <= rest])
    ends = [clopper_pearson(count, seeds) for count in range(seeds + 1)]
    fallen = (first.mean(2) < FALLEN).sum(1)
    yield "covered: share of collapsed seeds", np.mean([ends[n].low <= collapse <= ends[n].high for n in fallen])
    rare = rng.binomial(COMPLETIONS, 0.001, (worlds, seeds, PROBLEMS)) / COMPLETIONS
    zeros = [intervals.crossed_interval(each, share=True) for each in rare]
    yield "covered: a share of 0.1 %, mostly counts of 0", np.mean([one.low <= 0.001 <= one.high for one in zeros])
    p, _ = decided(groups[:, 1:], groups[:, :1])
    yield "wrong: one claim between equals", np.mean(p <= 0.05)
    yield f"wrong: any of {CLAIMS} between equals, each alone", np.mean(p.min(1) <= 0.05)
    yield f"wrong: any of {CLAIMS} between equals, Holm by the intervals' freedom", np.mean(p.min(1) <= 0.05 / CLAIMS)
    p, _ = decided(groups[:, 1:], groups[:, :1], cautious=True)
    yield f"wrong: any of {CLAIMS} between equals, Holm", np.mean(p.min(1) <= 0.05 / CLAIMS)
    worse = drawn(rng, worlds, 1, seeds, collapse, LEVEL + (LEAD if collapse else -LEAD))
    p, lead = decided(worse, drawn(rng, worlds, 1, seeds, 0.0))
    yield "wrong: above one that is better in the mean", np.mean((p <= 0.05) & (lead > 0))
    for count in EQUAL:
        yield f"wrong: any of {count} equals called worse or best", called(groups[:, :count]) / worlds


def drawn(
    rng: np.random.Generator, worlds: int, groups: int, seeds: int, collapse: float, level: float = LEVEL
) -> Values:
    """Final pass@1 of each problem, in the mean level (1 − collapse): chances are symmetric and within 0 and 1."""
    common = rng.normal(0, 0.12, (worlds, 1, 1, PROBLEMS)).clip(-0.22, 0.22)
    own = rng.normal(0, 0.03, (worlds, groups, 1, PROBLEMS)) + rng.normal(0, 0.02, (worlds, groups, seeds, 1))
    chance = (level + common + own.clip(-0.11, 0.11)) * (rng.random((worlds, groups, seeds, 1)) >= collapse)
    return rng.binomial(COMPLETIONS, chance) / COMPLETIONS


def crossed(values: Values, **options: bool) -> tuple[Values, Values, Values]:
    """Mean, standard error and degrees of freedom of [..., S, P], as `crossed_interval` has them."""
    return values.mean((-2, -1)), *crossed_error(mean_squares(values), *values.shape[-2:], **options)


def covers(truth: float, mean: Values, error: Values, freedom: Values) -> NDArray[np.bool_]:
    return abs(mean - truth) <= t_95(freedom) * error


def decided(values: Values, reference: Values, **options: bool) -> tuple[Values, Values]:
    """p-values of claims, those where the one above has collapsed seeds 1; and who is ahead."""
    from scipy.special import stdtr

    lead, error, freedom = crossed(values - reference, **options)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * stdtr(freedom, -abs(lead) / error), 1.0)
    fell = [(each.mean(-1) < FALLEN).any(-1) for each in (values, reference)]
    return np.where(np.where(lead > 0, *fell), 1.0, p), lead


def called(groups: Values) -> int:
    """In how many worlds a group is called below another, groups with collapsed seeds left out."""
    sound = (groups.mean(-1) >= FALLEN).all(-1)
    total = 0
    for count in {*sound.sum(1)} - {0, 1}:
        chosen = sound.sum(1) == count
        some = groups[chosen][sound[chosen]].reshape(-1, count, *groups.shape[2:])
        total += int(intervals.below_another(some, quantile=interpolated).any((1, 2)).sum())
    return total


@cache
def quantiles(groups: int) -> Values:
    return intervals.studentized_range(groups, FREEDOMS)


def interpolated(groups: int, freedom: Values) -> Values:
    """`studentized_range`, which takes long: linear between FREEDOMS in the inverse."""
    return np.interp(1 / freedom, 1 / FREEDOMS, quantiles(groups))


if __name__ == "__main__":
    sys.exit(main())
