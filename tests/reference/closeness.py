"""A grader that gives numbers, for the runs that are computed a second time: the nearer the answer, the more."""

import re


def grade(completion: str, gold: str) -> tuple[float, str] | tuple[str, None, float]:
    """3 less half the distance from the gold, at least -1; without an answer it is invalid and -0.5."""
    answers = re.findall(r"The answer is (-?\d+)", completion)
    if not answers:
        return "invalid", None, -0.5
    distance = abs(int(answers[-1]) - int(gold))
    return max(3 - 0.5 * distance, -1.0), answers[-1]
