"""Against sympy as an oracle: equal expressions are never told apart by sample values, unequal ones never accepted."""

import random
from collections.abc import Iterator

import pytest
import sympy

from topr_exp.grading import symbolic
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.expression import certainly_different

X, Y = sympy.symbols("x y", real=True)


def random_expression(draw: random.Random, depth: int = 3) -> sympy.Expr:
    if depth == 0 or draw.random() < 0.15:
        atoms = [sympy.Integer(draw.randint(1, 9)), sympy.Rational(draw.randint(1, 9), draw.randint(2, 9)), X, Y]
        return draw.choice([*atoms, sympy.sqrt(draw.randint(2, 12)), sympy.pi])
    one, other = random_expression(draw, depth - 1), random_expression(draw, depth - 1)
    made = (one + other, one + other, one - other, one * other, one / other if other != 0 else one)
    return draw.choice([*made, one ** draw.randint(2, 3), sympy.sqrt(one**2 + 1)])


def pairs(count: int, seed: int) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """An expression and an equal one written otherwise."""
    draw = random.Random(seed)
    while count:
        expression = random_expression(draw)
        form = draw.choice([sympy.expand, sympy.together, sympy.radsimp, lambda e: e])(expression)
        if expression.is_finite is not False and expression.count_ops() < 40 and form.count_ops() < 80:
            count -= 1
            yield expression, form


@pytest.mark.parametrize("seed", range(3))
def test_equal_expressions_are_not_told_apart(seed: int) -> None:
    for one, other in pairs(150, seed):
        assert compare_quickly(sympy.latex(one), sympy.latex(other))[0] is not False, (one, other)


def test_equal_expressions_are_recognised() -> None:
    found = total = 0
    for one, other in pairs(60, 10):
        gold, answer = sympy.latex(one), sympy.latex(other)
        verdict, _ = compare_quickly(gold, answer)
        found += verdict is True or symbolic.equal(gold, answer)
        total += 1
    assert found >= 0.95 * total


def test_unequal_expressions_are_not_accepted() -> None:
    draw = random.Random(5)
    for one, other in pairs(120, 20):
        change = draw.choice([other + 1, 2 * other, other * X, -other, other + sympy.Rational(1, 10**6)])
        if sympy.expand(change - one) == 0:
            continue
        gold, answer = sympy.latex(one), sympy.latex(change)
        assert compare_quickly(gold, answer)[0] is not True
        assert compare_quickly(gold, answer)[0] is False or not symbolic.equal(gold, answer), (one, change)


NOT_DIFFERENT = [
    (("\\sqrt", "{", "i", "^", "{", "2", "}", "}"), ("i",)),  # a rounded imaginary part beside a branch cut
    (("1", "/", "(", "x", "-", "x", ")"), ("1",)),  # no value
    (("9", "^", "{", "9", "^", "{", "9", "}", "}"), ("1",)),  # too large
    (("e", "^", "{", "-", "1000", "}"), ("0",)),  # too small to tell from 0
    (("\\sqrt", "[", "4", "]", "{", "3", "-", "2", "-", "1", "}"), ("0",)),  # a root magnifies the error of its 0
]


@pytest.mark.parametrize(("one", "other"), NOT_DIFFERENT)
def test_no_difference_is_claimed_where_rounding_could_make_one(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert not certainly_different(one, other)
    assert not certainly_different(other, one)
