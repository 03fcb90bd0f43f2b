"""Equality on random text (no crash, no hang, symmetry) and against sympy as an oracle."""

import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topr_exp.grading import extract, last_boxed, symbolic
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.expression import certainly_different, rational_value
from topr_exp.grading.latex import tokenize

PIECES = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "12", "1000", ".5", "3.14", ",", ";", ":", " ", "  ", "\n", "x",
    "y", "i", "e", "n", "ab", "cm", "and", "or", "+", "-", "*", "/", "^", "_", "=", "<", ">", "!", "'", "|", "(", ")",
    "[", "]", "{", "}", "$", "&", "%", "~", "#", "@", '"', "`", "\\", "\\\\", r"\{", r"\}", r"\frac", r"\frac{1}{2}",
    r"\sqrt", r"\sqrt{2}", r"\sqrt[3]{x}", r"\pi", r"\infty", r"\pm", r"\cdot", r"\times", r"\left(", r"\right)",
    r"\left", r"\right", r"\text{", r"\text{ cm}", r"\mathrm{d}", r"\cup", r"\cap", r"\in", r"\le", r"\ne",
    r"\approx", r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin", r"\end", r"\boxed{", r"\boxed", r"\fbox{",
    r"\sum_{k=1}^{n}", r"\int", r"\lim_{x\to 0}", r"\sin", r"\log_2", r"\binom", r"\operatorname{f}", r"\overline{x}",
    r"^\circ", r"\%", r"\$", r"\!", r"\,", r"\mathbb{R}", r"\emptyset", r"\cdots", "−", "π", "²", "½", "∞", "٣",
    "\u0000", "\u200b", "é", "\ud800", "__", "lambda", "The answer is ", "the final answer is ", "\nQ:", "</think>",
    ". ", "I hope",
]  # fmt: skip
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join)
FUZZ = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = settings(FUZZ, max_examples=500)


@FUZZ
@given(TEXT)
def test_extraction_never_fails(text: str) -> None:
    for format in ("math", "gsm8k", "final"):
        answer = extract(text, format)
        assert answer is None or answer == answer.strip() != ""
    plain = text.replace("\\", "").replace("{", "").replace("}", "").strip()
    assert last_boxed(rf"so \boxed{{{plain}}} it is") == (plain or None)


@FUZZ
@given(TEXT, TEXT)
def test_the_quick_comparison_never_fails_and_is_symmetric(one: str, other: str) -> None:
    assert compare_quickly(one, one)[0] is True
    assert compare_quickly(one, f"  {one}\n")[0] is True
    assert compare_quickly(one, other)[0] == compare_quickly(other, one)[0]


@NUMBERS
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_rationals_are_compared_exactly(one: Fraction, other: Fraction) -> None:
    forms = [f"{one.numerator}/{one.denominator}", rf"\frac{{{one.numerator}}}{{{one.denominator}}}"]
    if one < 0:
        forms.append(rf"-\dfrac{{{-one.numerator}}}{{{one.denominator}}}")
    decimal = f"{one.numerator}.{one.denominator}"
    assert rational_value(tokenize(decimal)) == Fraction(decimal)
    for form in forms:
        assert rational_value(tokenize(form)) == one
        assert compare_quickly(form, f"{other.numerator}/{other.denominator}")[0] == (one == other)


@NUMBERS
@given(st.integers(min_value=1000, max_value=10**15))
def test_thousands(number: int) -> None:
    grouped = f"{number:,}"
    for separator in (",", "{,}", r",\!", r"\,", r",\! ", r"\ "):
        assert compare_quickly(str(number), grouped.replace(",", separator))[0] is True


# ---- sympy's equal and unequal expressions


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
