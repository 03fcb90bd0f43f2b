"""Arithmetic of countdown's answers: exact, bounded, and nothing but + - * / on whole numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from topr_exp.grading.gym import score, value_and_numbers


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("96 - 36 + 5*11", 115, [96, 36, 5, 11]),
        ("2*(3+4)/7", 2, [2, 3, 4, 7]),
        ("1/3/2", Fraction(1, 6), [1, 3, 2]),
        ("10 - 3 - 2", 5, [10, 3, 2]),
        ("-(2 - 5) * -4", -12, [2, 5, 4]),
        ("007", 7, [7]),
        ("\t(1\n+ 2) ", 3, [1, 2]),
        ("(" * 90 + "5" + ")" * 90, 5, [5]),
        ("-" * 199 + "5", -5, [5]),
    ],
)  # fmt: skip
def test_values(text: str, value: Fraction, numbers: list[int]) -> None:
    assert value_and_numbers(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 2", "1 +", "*1", "+1", "(1", "1)", "()", "2(3)", "2**3", "7//2", "1.5", "1,5", "2^3", "3!", "1e3",
     "1_0", "x", "4 = 4", "1/0", "1/(2-2)", "٣", "９", "−1", "5" * 13, "1" + "+1" * 100, "__import__('os')", "1\0"],
)  # fmt: skip
def test_nothing_else_has_one(text: str) -> None:
    assert value_and_numbers(text) is None


COUNTDOWN = {"task": "countdown", "options": {}, "metadata": {"numbers": [2, 3, 3, 7], "target": 20}}
PUZZLE24 = {"task": "puzzle24", "options": {}, "metadata": {"numbers": [3, 3, 8, 8]}}


@pytest.mark.parametrize(
    ("answer", "right"),
    [("2*3+2*7", False), ("(3*7)-(2-3/3)", False), ("3*7 - 3 + 2", True), ("2 + 7*3 - 3", True), ("20", False),
     ("3*7 - 3 + 2 = 20", False), ("3*7 - 3 + 2 + 0", False), ("37 - 3 - 2", False), ("7*3 - 2/3 - 1/3", False)],
)  # fmt: skip
def test_countdown_takes_each_number_once_and_comes_to_the_target(answer: str, right: bool) -> None:
    assert score(answer, COUNTDOWN) == right


def test_puzzle24_rounds_nothing() -> None:
    assert score("8/(3-8/3)", PUZZLE24) == 1
    assert score("8*3 + 3/8", PUZZLE24) == 0  # 24.375, which the library cuts to 24
    assert score("4*6", PUZZLE24) == 0
