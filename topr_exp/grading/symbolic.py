r"""The symbolic comparison, run inside a worker: canonical tokens to sympy by latex2sympy2, equality by math-verify.

What reaches the parser is written here from listed tokens; no text of a model does, and nothing is evaluated as code.
math-verify's "equal" is believed only if the two expressions also agree numerically, to relative precision.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify.grader import verify

from topr_exp.grading.equivalence import QuickRule, Verdict3, same
from topr_exp.grading.latex import TooComplex, Tokens
from topr_exp.grading.structure import Leaf, parse

# The time limit is the caller's, who kills this process: math-verify must not warn that its own is off.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MATRIX_NAMES = frozenset(("pmatrix", "vmatrix"))
_PRECISION = 30
_TOLERANCE = sympy.Float("1e-12", _PRECISION)
_POINTS = (("7/11", "5/13"), ("19/17", "3/7"), ("-23/29", "11/31"))  # base and step of the sample points


def equal(gold: str, answer: str) -> bool:
    """Whether two answers that strings and rationals left undecided are equal."""
    try:
        return same(parse(gold), parse(answer), _leaf) is True
    except TooComplex:
        return False


def _leaf(gold: Leaf, answer: Leaf) -> Verdict3:
    verdict = QuickRule()(gold, answer)
    if verdict is not None:
        return verdict
    one, other = expression(gold.tokens), expression(answer.tokens)
    if one is None or other is None:
        return False
    if not verify(one, other, timeout_seconds=None, allow_set_relation_comp=False):
        return False
    return agree_numerically(one, other)


def to_latex(tokens: Tokens) -> str:
    r"""LaTeX for the parser: decimals as exact fractions, letters one by one, `i` as the imaginary unit."""
    imaginary = "i" in "".join(t for t in tokens if t.isalpha()) and not ({r"\sum", r"\prod"} & set(tokens))
    out: list[str] = []
    for at, token in enumerate(tokens):
        if token[0] == "." or "." in token:
            whole, _, decimals = token.partition(".")
            out.append(rf"\frac{{{int(whole + decimals)}}}{{{10 ** len(decimals)}}}")
        elif token == "*":
            out.append(r"\cdot ")
        elif token.isalpha():
            matrix = token in _MATRIX_NAMES and tokens[at - 2 : at - 1] in ((r"\begin",), (r"\end",))
            subscript = tokens[at - 2 : at - 1] == ("_",)
            out.append(token if matrix else " ".join("I" if c == "i" and imaginary and not subscript else c for c in token))
        else:
            out.append(token + " " if token[0] == "\\" and token[-1].isalpha() else token)
    return "".join(out)


@lru_cache(maxsize=256)
def expression(tokens: Tokens) -> Any:
    """The sympy expression that the tokens spell, None if the parser refuses them."""
    if any(token.isalpha() and len(token) > 4 for token in tokens if token not in _MATRIX_NAMES):
        return None  # a word, not a product of letters
    try:
        return latex2sympy(
            to_latex(tokens), is_real=True, convert_degrees=False, normalization_config=None, conversion_config=_CONVERSION
        )
    except Exception:  # the parser raises bare Exceptions of many kinds; each means that it cannot read the tokens
        return None


def agree_numerically(one: Any, other: Any) -> bool:
    """False if the two differ at a sample point; what cannot be evaluated there counts as agreeing.

    math-verify compares numbers to an absolute tolerance, so that 10^{-20} would equal 10^{-21}.
    """
    if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
        return True
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    for base, step in _POINTS[: 2 if symbols else 1]:
        start, width = sympy.Rational(base), sympy.Rational(step)
        point = {symbol: start + width * index for index, symbol in enumerate(symbols)}
        left, right = (sympy.N(side.subs(point).doit(), _PRECISION) for side in (one, other))
        if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
            continue
        if abs(left - right) > _TOLERANCE * max(abs(left), abs(right)):
            return False
    return True


WARM_UP = (
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
    (r"3+4i", r"4i+3"),
    (r"2\pi r", r"2r\pi"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\log_2 8x", r"3+\log_2 x"),
    (r"y=2x+1", r"2x-y+1=0"),
    (r"x^2<4", r"4>x^2"),
    (r"\begin{pmatrix}\sqrt{4}x\\1\end{pmatrix}", r"\begin{pmatrix}2x\\1\end{pmatrix}"),
    (r"\sqrt[3]{16}", r"2\sqrt[3]{2}"),
    (r"e^{2x}", r"(e^x)^2"),
    (r"|x|+1", r"1+|x|"),
    (r"(\sqrt{8},2\sqrt{3})", r"(2\sqrt{2},\sqrt{12})"),
)


def warm_up() -> None:
    """Fills the parser's prediction caches: a first answer of a new shape costs 40-180 ms, a second one 2 ms."""
    for gold, answer in WARM_UP:
        equal(gold, answer)
