"""Which completions the plain script of a run takes: shares, draws and pairs."""

import numpy as np

from tests.reference.formulas import Completion


def grouped(completions: list[Completion], n: int) -> list[list[Completion]]:
    return [completions[start : start + n] for start in range(0, len(completions), n)]


def in_proportion(rng: np.random.Generator, first: list[int], second: list[int], p: float, n: int | None) -> list[int]:
    """n with exactly the share p of the first; without n the most that there are with that share."""
    sizes = range(len(first) + len(second), 0, -1) if n is None else [n]
    n = next(n for n in sizes if round(p * n) <= len(first) and n - round(p * n) <= len(second))
    return some(rng, first, round(p * n)) + some(rng, second, n - round(p * n))


def share_solved(candidates: list[Completion], i: int) -> float:
    return float(np.mean([one.correct for one in candidates if one.problem == candidates[i].problem]))


def some(rng: np.random.Generator, rows: list[int], n: int | None) -> list[int]:
    """n at random without replacement; all where there are no more."""
    if n is None or n >= len(rows):
        return list(rows)
    return [rows[i] for i in rng.choice(len(rows), size=n, replace=False, shuffle=False)]


def pairs(candidates, right, wrong, compose, rng):
    """(correct, incorrect) of one problem: at most so many different ones each, by Floyd's algorithm, then N of all."""
    problems = sorted({one.problem for one in candidates})
    there = [
        [(i, j) for i in right for j in wrong if candidates[i].problem == candidates[j].problem == problem]
        for problem in problems
    ]
    wanted = [min(len(options), 16) for options in there]
    taken: list[list[int]] = [[] for _ in problems]
    for i in range(max(wanted)):
        going = [k for k in range(len(problems)) if wanted[k] > i]
        last = [len(there[k]) - wanted[k] + i for k in going]
        draws = rng.integers(0, np.array(last) + 1)  # of all problems in one call
        for k, draw, end in zip(going, draws, last, strict=True):
            taken[k].append(end if draw in taken[k] else int(draw))
    found = [there[k][place] for k in range(len(problems)) for place in taken[k]]
    if compose["n_examples"] is not None and compose["n_examples"] < len(found):
        found = [found[i] for i in sorted(some(rng, list(range(len(found))), compose["n_examples"]))]
    return found
