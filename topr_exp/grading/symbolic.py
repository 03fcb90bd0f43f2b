r"""The symbolic comparison, run in a worker: latex2sympy2 turns tokens into sympy, which compares.

The parser reads only LaTeX that is written here from a list of admitted tokens, never a model's text.
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

from topr_exp.grading.equivalence import Equality, QuickRule, same
from topr_exp.grading.expression import FUNCTIONS, Tree, expression_tree
from topr_exp.grading.latex import Tokens, integer_like
from topr_exp.grading.sample_points import Point, differ_at, names_of, signed_points
from topr_exp.grading.structure import Leaf, parse

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MATRIX_NAMES = frozenset(("pmatrix", "vmatrix"))
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)  # sympy takes seconds for their values
SAMPLE_POINTS = 16
RELATIVE_ACCURACY = 1e-9  # far above the rounding of 15 digits

Signs = tuple[tuple[str, bool], ...]  # (name, is it positive?)


def equal(gold: str, answer: str) -> bool:
    """Compare two answers that strings, rationals and sample values left undecided."""
    return same(parse(gold), parse(answer), _compare_leaves) is True


def _compare_leaves(gold: Leaf, answer: Leaf) -> Equality:
    equality = QuickRule()(gold, answer)
    if equality is not None:
        return equality
    gold_tree = expression_tree(gold.tokens)
    answer_tree = expression_tree(answer.tokens)
    if gold_tree is not None and answer_tree is not None:
        return _same_trees(gold_tree, answer_tree)
    gold_value = latex_to_sympy(gold.tokens)
    answer_value = latex_to_sympy(answer.tokens)
    if gold_value is None or answer_value is None:
        return False
    gold_chain = _relations(gold_value)
    answer_chain = _relations(answer_value)
    if gold_chain or answer_chain:
        return _same_chains(gold_chain, answer_chain) or _same_chains(gold_chain, answer_chain[::-1])
    if isinstance(gold_value, sympy.Expr) and isinstance(answer_value, sympy.Expr):
        return _same_expressions(gold_value, answer_value)
    if isinstance(gold_value, sympy.MatrixBase) and isinstance(answer_value, sympy.MatrixBase):
        return gold_value.shape == answer_value.shape and all(map(_same_expressions, gold_value, answer_value))
    return bool(gold_value == answer_value)


# ---- two expressions are equal if they are equal wherever both are defined and real


def _same_trees(gold: Tree, answer: Tree) -> bool:
    """Compare for real symbols; where that proves nothing, for symbols with signs at which both have a value.

    A difference at one sample point, whatever its signs, is a difference.
    """
    gap = to_sympy(gold) - to_sympy(answer)
    if sympy.expand(gap) == 0:
        return True
    names = sorted(names_of(gold) | names_of(answer))
    points = signed_points(names) if names else ()
    first_defined: Point | None = None
    for point in points:
        differ = differ_at(point, gold, answer)
        if differ:
            return False
        if differ is not None and first_defined is None:
            first_defined = point
    if first_defined is None:
        return _is_zero(gap)
    signs = _signs(first_defined)
    return _is_zero_for_signs(gap, to_sympy(gold, signs) - to_sympy(answer, signs))


def _same_expressions(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Compare as `_same_trees` does, for expressions without a tree."""
    values = _real_values(gold, answer)
    if not all(_same_number(value.left, value.right) for value in values):
        return False
    if not values:
        return _is_zero(gold - answer)
    signs = _signs(values[0].point)
    return _is_zero_for_signs(gold - answer, _with_signs(gold, signs) - _with_signs(answer, signs))


def _is_zero_for_signs(gap: sympy.Expr, signed_gap: sympy.Expr) -> bool:
    """Prove that a difference is 0 for real symbols or for signed ones; the cheapest proof first."""
    return bool(sympy.expand(signed_gap) == 0) or _is_zero(gap) or _is_zero(signed_gap)


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
    left: sympy.Number
    right: sympy.Number


def _real_values(left: sympy.Expr, right: sympy.Expr) -> list[_RealValues]:
    """Values of both where both are real; none without symbols, or where they would take seconds."""
    names = sorted(symbol.name for symbol in left.free_symbols | right.free_symbols)
    if not names or left.has(*_UNEVALUATED) or right.has(*_UNEVALUATED):
        return []
    values: list[_RealValues] = []
    for point in signed_points(names, SAMPLE_POINTS):
        left_value = _value_at(point, left)
        right_value = _value_at(point, right)
        if _is_real(left_value) and _is_real(right_value):
            values.append(_RealValues(point, left_value, right_value))
    return values


def _value_at(point: Point, expression: sympy.Expr) -> sympy.Expr:
    values = {symbol: point[symbol.name] for symbol in expression.free_symbols}
    return expression.evalf(subs=values)


def _is_real(value: sympy.Expr) -> bool:
    return bool(value.is_Number and value.is_finite)


def _same_number(left: sympy.Number, right: sympy.Number) -> bool:
    """Compare two rounded values."""
    return bool(abs(left - right) <= RELATIVE_ACCURACY * max(abs(left), abs(right)))


def _with_signs(expression: sympy.Expr, signs: Signs) -> sympy.Expr:
    signed = dict(signs)
    return expression.subs({symbol: _signed_symbol(symbol.name, signed) for symbol in expression.free_symbols})


def _signed_symbol(name: str, signs: Mapping[str, bool]) -> sympy.Expr:
    """A positive symbol or its negative; a real symbol where `signs` does not hold its name."""
    if name not in signs:
        return sympy.Symbol(name.lstrip("\\"), real=True)
    size = sympy.Symbol(name.lstrip("\\"), positive=True)
    if signs[name]:
        return size
    return -size


# ---- relations


def _relations(expression: Any) -> list[Relational]:
    """The relations of a chain such as a < b < c, or of one relation; none for anything else."""
    members = [expression]
    if isinstance(expression, sympy.And):
        members = getattr(expression, "_unsorted_args", None) or []
    if all(isinstance(member, Relational) for member in members):
        return members
    return []


def _same_chains(golds: list[Relational], answers: list[Relational]) -> bool:
    return len(golds) == len(answers) and all(map(_same_relation, golds, answers))


def _same_relation(gold: Relational, answer: Relational) -> bool:
    """Compare two relations up to constant factors; x^2 = -1 and x^2 = -4 are not equal."""
    gold = _with_larger_side_right(gold)
    answer = _with_larger_side_right(answer)
    if type(gold) is not type(answer):
        return False
    try:
        ratio = _constant_ratio(_difference_of_sides(gold), _difference_of_sides(answer))
    except Exception:  # sets, tuples and matrices have no difference
        return bool(gold == answer)
    if ratio is None or not (ratio.is_finite and ratio.is_real) or ratio == 0:
        return False
    return bool(ratio > 0) or isinstance(gold, sympy.Eq | sympy.Ne)


def _with_larger_side_right(relation: Relational) -> Relational:
    if isinstance(relation, sympy.Ge | sympy.Gt):
        return relation.reversed
    return relation


def _difference_of_sides(relation: Relational) -> sympy.Expr:
    """Left minus right; of an equation only the numerator."""
    difference = (relation.lhs - relation.rhs).doit()
    if not isinstance(relation, sympy.Eq):
        return difference
    numerator, _ = sympy.fraction(sympy.together(difference))
    return numerator


def _constant_ratio(left: sympy.Expr, right: sympy.Expr) -> sympy.Expr | None:
    """The number left / right, wherever both are defined and real; None where it is no number."""
    values = _real_values(left, right)
    # Multiplied crosswise: a value may be 0.
    if not all(_same_number(value.left * values[0].right, value.right * values[0].left) for value in values):
        return None
    ratio = sympy.simplify(left / right)
    if not ratio.is_number and values:
        ratio = sympy.simplify(_with_signs(ratio, _signs(values[0].point)))
    if ratio.is_number:
        return ratio
    return None


def to_latex(tokens: Tokens) -> str:
    r"""LaTeX for the parser: decimals as exact fractions, letters one by one, `i` as the imaginary unit."""
    i_is_index = r"\sum" in tokens or r"\prod" in tokens
    latex: list[str] = []
    for index, token in enumerate(tokens):
        command = tokens[index - 2] if index >= 2 else ""  # its argument would be this token
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if "." in token:
            integer, _, decimals = token.partition(".")
            latex.append(rf"\frac{{{int(integer + decimals)}}}{{{10 ** len(decimals)}}}")
        elif token == "*":
            latex.append(r"\cdot ")
        elif token in _MATRIX_NAMES and command in (r"\begin", r"\end"):
            latex.append(token)
        elif token.isalpha():
            letters = " ".join(token)
            if not i_is_index and command != "_":
                letters = letters.replace("i", "I")
            latex.append(letters)
        elif token[0] == "\\" and token[-1].isalpha() and following != "{":
            latex.append(token + " ")  # a command, which would swallow a letter behind it
        else:
            latex.append(token)
    return "".join(latex)


@lru_cache(maxsize=256)
def to_sympy(tree: Tree, signs: Signs = ()) -> Any:
    """The sympy expression of a tree; variables are real, and odd roots of negative numbers, too."""
    kind, *children = tree
    operands = [to_sympy(child, signs) if isinstance(child, tuple) else child for child in children]
    match kind:
        case "number":
            return sympy.Rational(*Fraction(operands[0]).as_integer_ratio())
        case "name":
            return _signed_symbol(operands[0], dict(signs))
        case "root" if operands[1].is_odd and operands[0].is_negative:
            return -sympy.root(-operands[0], operands[1])
    return _OPERATORS[kind](*operands)


_OPERATORS: dict[str, Any] = {
    "constant": {"pi": sympy.pi, "e": sympy.E, "i": sympy.I}.__getitem__, "root": sympy.root,
    "+": operator.add, "-": operator.neg, "*": operator.mul, "/": operator.truediv, "^": operator.pow,
    **{name[1:]: getattr(sympy, name[1:].replace("arc", "a")) for name in FUNCTIONS},
}  # fmt: skip


class _Parser(_Latex2Sympy):
    """latex2sympy2's converter without its `parse_number`, whose sympify evaluates literals as code."""

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
        expression = _Parser(None, is_real=True, convert_degrees=False, config=_CONVERSION).parse(to_latex(tokens))
        if isinstance(expression, sympy.MatrixExpr):  # 2 times a matrix
            return expression.as_explicit()
        return expression
    except Exception:  # the parser raises bare Exceptions of many kinds; each means that it cannot read the tokens
        return None


MOST_GENERATORS = 24  # symbols, roots and functions of the polynomials that workers compute with
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
    """Warm this process up, then remove the functions that turn text into code; for a worker process only.

    The first answer of a shape costs the parser 40-180 ms, a second one about 2 ms; sympy imports much when first used.
    """

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a grading worker evaluates no text")

    sympy.utilities.lambdify.lambdify = refuse
    # Terms of infinite sums without text, and without numpy and scipy, which lambdify imports.
    sympy.core.evalf.lambdify = lambda symbol, term: lambda value: term.subs(symbol, value)
    for generators in range(1, MOST_GENERATORS + 1):  # sympy writes their arithmetic as text and compiles it, once each
        PolyRing(sympy.symbols(f"x:{generators}"), sympy.ZZ)
    for gold, answer in WARM_UP:
        equal(gold, answer)
    sympy.parsing.sympy_parser.parse_expr = refuse  # sympify of a string ends here; sympy's imports need it above
    sympy.parsing.sympy_parser.eval_expr = refuse
