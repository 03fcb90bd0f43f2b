"""Arithmetic of countdown's answers: exact, bounded, and nothing but + - * / on whole numbers."""

from fractions import Fraction

import pytest

from tests.grading.cases import CASES, join_parts
from topr_exp.grading.gym import score, value_and_numbers

TASKS = CASES["arithmetic"]["tasks"]


@pytest.mark.parametrize("text, value, numbers", CASES["arithmetic"]["values"])
def test_arithmetic_has_an_exact_value(text, value, numbers):
    assert value_and_numbers(join_parts(text)) == (Fraction(value), numbers)


def test_nothing_else_has_a_value():
    for text in CASES["arithmetic"]["nothing"]:
        assert value_and_numbers(join_parts(text)) is None, text


def test_an_answer_takes_each_number_once_and_comes_to_the_target():
    for task, answer, reward in CASES["arithmetic"]["rewards"]:
        assert score(answer, TASKS[task]) == reward, answer
