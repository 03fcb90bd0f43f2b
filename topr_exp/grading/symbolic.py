r"""The symbolic comparison, run in a worker: latex2sympy2 turns tokens into sympy, which compares.

The parser reads only what is written here from a list of admitted tokens: no model's text, nothing evaluated as code.
"""

import operator
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import sympy
import sympy.core.evalf
import sympy.parsing.sympy_parser
import sympy.utilities.lambdify
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy.core.relational import Relational
from sympy.polys.rings import PolyRing

from topr_exp.grading.equivalence import QuickRule, Verdict3, same
from topr_exp.grading.expression import FUNCTIONS, Tree, expression_tree
from topr_exp.grading.latex import Tokens, integer_like
from topr_exp.grading.sample_points import Point, differ_at, names_of, signed_points
from topr_exp.grading.structure import Leaf, parse

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MATRIX_NAMES = frozenset(("pmatrix", "vmatrix"))
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)  # whose values take seconds
SAMPLE_POINTS = 16  # of expressions that sympy evaluates
RELATIVE_ACCURACY = 1e-9  # far above what rounding does to its 15 digits

Signs = tuple[tuple[str, bool], ...]  # of names: is it positive?


def equal(gold: str, answer: str) -> bool:
    """Compare two answers that strings, rationals and sample values left undecided."""
    return same(parse(gold), parse(answer), _leaf) is True


def _leaf(gold: Leaf, answer: Leaf) -> Verdict3:
    verdict = QuickRule()(gold, answer)
    if verdict is not None:
        return verdict
    gold_tree, answer_tree = expression_tree(gold.tokens), expression_tree(answer.tokens)
    if gold_tree is not None and answer_tree is not None:
        return _same_trees(gold_tree, answer_tree)
    one, other = latex_to_sympy(gold.tokens), latex_to_sympy(answer.tokens)
    if one is None or other is None:
        return False
    golds, answers = _relations(one), _relations(other)
    if golds or answers:  # chains in either direction
        orders = (answers, answers[::-1]) if len(golds) == len(answers) else ()
        return any(all(map(_same_relation, golds, order)) for order in orders)
    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return _same_expressions(one, other)
    if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
        return one.shape == other.shape and all(map(_same_expressions, one, other))
    return bool(one == other)


# ---- two expressions: equal if they are so wherever both are defined and real


def _same_trees(gold: Tree, answer: Tree) -> bool:
    """Compare for real symbols; where that proves nothing, for symbols with the signs at which both have a value.

    Different at one sample point of any signs is different.
    """
    one, other = to_sympy(gold), to_sympy(answer)
    if sympy.expand(one - other) == 0:
        return True
    names = sorted(names_of(gold) | names_of(answer))
    points: list[Point] = []
    for point in signed_points(names) if names else ():
        differ = differ_at(point, gold, answer)
        if differ:
            return False
        if differ is not None:
            points.append(point)
    if not points:
        return _is_zero(one - other)
    signs = _signs(points[0])
    signed_gap = to_sympy(gold, signs) - to_sympy(answer, signs)
    return bool(sympy.expand(signed_gap) == 0) or _is_zero(one - other) or _is_zero(signed_gap)


def _same_expressions(one: sympy.Expr, other: sympy.Expr) -> bool:
    """What `_same_trees` does, for what has no tree."""
    values = _real_values(one, other)
    if not all(_same_number(value.one, value.other) for value in values):
        return False
    if not values:
        return _is_zero(one - other)
    signs = _signs(values[0].point)
    signed_gap = _with_signs(one, signs) - _with_signs(other, signs)
    return bool(sympy.expand(signed_gap) == 0) or _is_zero(one - other) or _is_zero(signed_gap)


def _is_zero(gap: sympy.Expr) -> bool:
    """Check whether sympy can prove that an expression is 0."""
    simple = sympy.simplify(gap)
    if simple == 0:
        return True
    return bool(simple.is_number and sympy.simplify(simple.expand(complex=True)) == 0)


def _signs(point: Point) -> Signs:
    return tuple((name, value > 0) for name, value in sorted(point.items()))


class _RealValues(NamedTuple):
    """The values of two expressions at a sample point, to 15 digits."""

    point: Point
    one: sympy.Number
    other: sympy.Number


def _real_values(one: sympy.Expr, other: sympy.Expr) -> list[_RealValues]:
    """Values of both where both are real; none without symbols, or where they would take seconds."""
    names = sorted(symbol.name for symbol in one.free_symbols | other.free_symbols)
    if not names or one.has(*_UNEVALUATED) or other.has(*_UNEVALUATED):
        return []
    values = [
        _RealValues(point, _value_at(point, one), _value_at(point, other))
        for point in signed_points(names, SAMPLE_POINTS)
    ]
    return [value for value in values if _is_real(value.one) and _is_real(value.other)]


def _value_at(point: Point, expression: sympy.Expr) -> sympy.Expr:
    values = {symbol: point[symbol.name] for symbol in expression.free_symbols}
    return expression.evalf(subs=values)


def _is_real(value: sympy.Expr) -> bool:
    return bool(value.is_Number and value.is_finite)


def _same_number(one: sympy.Number, other: sympy.Number) -> bool:
    """Compare two values, which rounding may have changed."""
    return bool(abs(one - other) <= RELATIVE_ACCURACY * max(abs(one), abs(other)))


def _with_signs(expression: sympy.Expr, signs: Signs) -> sympy.Expr:
    signed = dict(signs)
    return expression.subs({symbol: _signed_symbol(symbol.name, signed) for symbol in expression.free_symbols})


def _signed_symbol(name: str, signs: Mapping[str, bool]) -> sympy.Expr:
    """A positive symbol or its negative; one of any sign where `signs` has none of it."""
    if name not in signs:
        return sympy.Symbol(name.lstrip("\\"), real=True)
    size = sympy.Symbol(name.lstrip("\\"), positive=True)
    return size if signs[name] else -size


# ---- relations


def _relations(expression: Any) -> list[Relational]:
    """The members of a chain such as a < b < c; none for anything else than relations."""
    members = getattr(expression, "_unsorted_args", None) if isinstance(expression, sympy.And) else [expression]
    return members if members and all(isinstance(member, Relational) for member in members) else []


def _same_relation(gold: Relational, answer: Relational) -> bool:
    """Compare two relations up to constant factors; x^2 = -1 and x^2 = -4 are not equal."""
    one, other = (each.reversed if isinstance(each, sympy.Ge | sympy.Gt) else each for each in (gold, answer))
    if type(one) is not type(other):
        return False
    try:
        left, right = ((side.lhs - side.rhs).doit() for side in (one, other))
        if isinstance(one, sympy.Eq):
            left, right = (sympy.fraction(sympy.together(side))[0] for side in (left, right))
        ratio = _constant_ratio(left, right)
    except Exception:  # sets, tuples and matrices have no difference
        return bool(one == other)
    if ratio is None or not (ratio.is_finite and ratio.is_real) or ratio == 0:
        return False
    return bool(ratio > 0) or isinstance(one, sympy.Eq | sympy.Ne)


def _constant_ratio(left: sympy.Expr, right: sympy.Expr) -> sympy.Expr | None:
    """The number left / right, wherever both are defined and real; None where it is no number."""
    values = _real_values(left, right)
    if not all(_same_number(value.one * values[0].other, value.other * values[0].one) for value in values):
        return None
    ratio = sympy.simplify(left / right)
    if not ratio.is_number and values:
        ratio = sympy.simplify(_with_signs(ratio, _signs(values[0].point)))
    return ratio if ratio.is_number else None


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
            out.append(
                token if matrix else " ".join("I" if c == "i" and imaginary and not subscript else c for c in token)
            )
        else:
            spaced = token[0] == "\\" and token[-1].isalpha() and tokens[at + 1 : at + 2] != ("{",)
            out.append(token + " " if spaced else token)
    return "".join(out)


@lru_cache(maxsize=256)
def to_sympy(tree: Tree, signs: Signs = ()) -> Any:
    """The sympy expression of a tree; variables are real, and odd roots of negative numbers, too."""
    kind, *parts = (to_sympy(part, signs) if isinstance(part, tuple) else part for part in tree)
    match kind:
        case "number":
            return sympy.Rational(*Fraction(parts[0]).as_integer_ratio())
        case "name":
            return _signed_symbol(parts[0], dict(signs))
        case "root" if parts[1].is_odd and parts[0].is_negative:
            return -sympy.root(-parts[0], parts[1])
    return _OPERATORS[kind](*parts)


_OPERATORS: dict[str, Any] = {
    "constant": {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}.__getitem__, "root": sympy.root,
    "+": operator.add, "-": operator.neg, "*": operator.mul, "/": operator.truediv, "^": operator.pow,
    **{name[1:]: getattr(sympy, name[1:].replace("arc", "a")) for name in FUNCTIONS},
}  # fmt: skip


class _Parser(_Latex2Sympy):
    """latex2sympy2's converter, whose own `parse_number` hands every literal to sympify, which evaluates it as code."""

    def parse_number(self, text: str) -> sympy.Integer:
        digits = text.replace(",", "")
        if not integer_like(digits):
            raise ValueError("decimals reach the parser as fractions")
        return sympy.Integer(int(digits))


@lru_cache(maxsize=256)
def latex_to_sympy(tokens: Tokens) -> Any:
    """The sympy expression that the tokens spell, None if the parser refuses them."""
    if any(token.isalpha() and len(token) > 4 for token in tokens if token not in _MATRIX_NAMES):
        return None  # a word, not a product of letters
    try:
        found = _Parser(None, is_real=True, convert_degrees=False, config=_CONVERSION).parse(to_latex(tokens))
        return found.as_explicit() if isinstance(found, sympy.MatrixExpr) else found  # 2 times a matrix
    except Exception:  # the parser raises bare Exceptions of many kinds; each means that it cannot read the tokens
        return None


MOST_GENERATORS = 24  # of polynomials that workers compute with: symbols, roots, functions
WARM_UP = (
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\log_2 8x", r"3+\log_2 x"),
    (r"y=2x+1", r"2x-y+1=0"),
    (r"x^2<4", r"4>x^2"),
    (r"\begin{pmatrix}\sqrt{4}x\\1\end{pmatrix}", r"\begin{pmatrix}2x\\1\end{pmatrix}"),
    (r"|x|+1", r"1+|x|"),
    (r"\int_0^1 x e^x dx", r"\sin 1"),
    (r"\sum_{k=1}^\infty \frac{1}{k^2}", r"\frac{\pi^2}{6}"),
    (r"\sum_{k=0}^\infty \frac{1}{k!}", r"e^2"),
    (r"\int_0^\infty e^{-x^2} dx", r"\frac{\sqrt{\pi}}{2}"),
    (r"\lim_{x\to 0}\frac{\sin x}{x}", r"\cos 0"),
)


def prepare() -> None:
    """Warms this process up and then takes from it what turns text into code; for a worker process only.

    The first answer of a shape costs the parser 40-180 ms, a second one about 2 ms; sympy imports much when first used.
    """

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a grading worker evaluates no text")

    sympy.utilities.lambdify.lambdify = refuse
    # Terms of infinite sums without text, and without numpy and scipy, which lambdify imports.
    sympy.core.evalf.lambdify = lambda symbol, term: lambda value: term.subs(symbol, value)
    for generators in range(1, MOST_GENERATORS + 1):  # whose arithmetic sympy writes as text and compiles, once each
        PolyRing(sympy.symbols(f"x:{generators}"), sympy.ZZ)
    for gold, answer in WARM_UP:
        equal(gold, answer)
    sympy.parsing.sympy_parser.parse_expr = refuse  # sympify of a string ends here; sympy's imports need it above
    sympy.parsing.sympy_parser.eval_expr = refuse
