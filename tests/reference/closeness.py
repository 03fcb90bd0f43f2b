"""A grader that gives numbers, for the runs that are computed a second time: the nearer the answer, the more."""

import re


def grade(completion: str, gold: str) -> tuple[float, str] | tuple[str, None, float]:
    """3 less the distance from the gold, at least -1; without an answer it is invalid and -0.5."""
    found = re.findall(r"The answer is (-?\d+)", completion)
    if not found:
        return "invalid", None, -0.5
    return max(3 - 0.5 * abs(int(found[-1]) - int(gold)), -1.0), found[-1]
