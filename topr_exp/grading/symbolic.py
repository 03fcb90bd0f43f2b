r"""The symbolic comparison, run in a worker: latex2sympy2 turns tokens into sympy, which compares.

The parser reads only LaTeX that is written here from a list of admitted tokens, never a model's text.
"""

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, NoReturn

import sympy
import sympy.core.evalf
import sympy.utilities.lambdify
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser
from sympy.polys.rings import PolyRing

from topr_exp.grading.equivalence import Equality, QuickRule, same
from topr_exp.grading.expression import FUNCTIONS, Tree, expression_tree
from topr_exp.grading.latex import Tokens, integer_like
from topr_exp.grading.real_domain import equal_in_all_regions, numerator_of, points_between_roots, with_signs
from topr_exp.grading.sample_points import Point, differ_at, names_of, signed_points
from topr_exp.grading.structure import Leaf, parse

_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MATRIX_NAMES = frozenset(("pmatrix", "vmatrix"))
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit)  # sympy takes seconds for their values
TREE_POINTS = 64  # all combinations of the signs of six names
EXPRESSION_POINTS = 16  # each takes sympy a millisecond or more
RELATIVE_ACCURACY = 1e-9  # far above the rounding of 15 digits


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
        reversed_answer = answer_chain[::-1]  # a < b < c is c > b > a
        return _same_chains(gold_chain, answer_chain) or _same_chains(gold_chain, reversed_answer)
    if isinstance(gold_value, sympy.Expr) and isinstance(answer_value, sympy.Expr):
        return _same_expressions(gold_value, answer_value, _real_functions(gold_tree, answer_tree))
    if isinstance(gold_value, sympy.MatrixBase) and isinstance(answer_value, sympy.MatrixBase):
        return gold_value.shape == answer_value.shape and all(map(_same_expressions, gold_value, answer_value))
    return bool(gold_value == answer_value)


# ---- two expressions are equal if they are equal wherever both are defined and real

Differ = Callable[[Point], Equality]  # do the values differ at a point? None: one of them is undefined there


def _real_functions(*trees: Tree | None) -> list[sympy.Expr]:
    """The roots, powers and logarithms in trees that are not real for all values of the names."""
    functions = []
    for tree in trees:
        if not isinstance(tree, tuple):  # no tree, or the text of a leaf
            continue
        kind, *children = tree
        if kind in ("root", "^", "ln") and not to_sympy(tree).is_polynomial():
            functions.append(to_sympy(tree))
        functions += _real_functions(*children)
    return functions


def _same_trees(gold: Tree, answer: Tree) -> bool:
    names = sorted(names_of(gold) | names_of(answer))
    return _same_on_domain(
        to_sympy(gold),
        to_sympy(answer),
        names,
        differ=lambda point: differ_at(point, gold, answer),
        count=TREE_POINTS,
        functions=_real_functions(gold, answer),
    )


def _same_expressions(gold: sympy.Expr, answer: sympy.Expr, functions: Sequence[sympy.Expr] = ()) -> bool:
    """Compare as `_same_trees` does, for expressions without a tree."""
    names = _free_names(gold, answer)
    if gold.has(*_UNEVALUATED) or answer.has(*_UNEVALUATED):
        return _is_zero(gold - answer)
    return _same_on_domain(
        gold,
        answer,
        names,
        differ=lambda point: _values_differ(point, gold, answer, functions),
        count=EXPRESSION_POINTS,
        functions=functions,
    )


def _same_on_domain(
    gold: sympy.Expr,
    answer: sympy.Expr,
    names: Sequence[str],
    *,
    differ: Differ,
    count: int,
    functions: Sequence[sympy.Expr],
) -> bool:
    """Equal where no sample point tells them apart and a proof succeeds, the cheapest first.

    count: of sample points; more are taken between the roots of what stands under roots and logarithms. The points
    spare the proof of most unequal pairs. functions: what has to be real, although sympy may have cancelled it, as in
    sqrt(x) sqrt(x).
    """
    gap = gold - answer
    if sympy.expand(gap) == 0:
        return True
    if not names:
        return _is_zero(gap)
    cancelled = [function for function in functions if not (gold.has(function) or answer.has(function))]
    between_roots = points_between_roots((gold, answer, *cancelled), names)
    for point in chain(signed_points(names, count), between_roots):
        if differ(point):
            return False
    if equal_in_all_regions(gold, answer, _is_written_as_zero, cancelled=cancelled):
        return True
    return _is_zero(gap) or equal_in_all_regions(gold, answer, _is_zero, cancelled=cancelled)


def _is_written_as_zero(gap: sympy.Expr) -> bool:
    return bool(gap == 0)


def _is_zero(gap: sympy.Expr) -> bool:
    """Check whether sympy can prove that an expression is 0."""
    denested = gap.replace(_is_nested_number, sympy.sqrtdenest)
    simple = sympy.simplify(denested)
    if simple == 0:
        return True
    if not simple.is_number:
        return False
    in_parts = simple.expand(complex=True)  # real and imaginary
    return bool(sympy.simplify(in_parts) == 0)


def _is_nested_number(expression: sympy.Expr) -> bool:
    """Check for a root of a number with roots, such as sqrt(5 + 2 sqrt(6))."""
    return isinstance(expression, sympy.Pow) and expression.is_number and not expression.base.is_Rational


def _free_names(gold: sympy.Expr, answer: sympy.Expr) -> list[str]:
    return sorted({symbol.name for symbol in gold.free_symbols | answer.free_symbols})


def _values_differ(point: Point, gold: sympy.Expr, answer: sympy.Expr, functions: Sequence[sympy.Expr]) -> Equality:
    if any(_real_value(point, function) is None for function in functions):
        return None
    gold_value = _real_value(point, gold)
    answer_value = _real_value(point, answer)
    if gold_value is None or answer_value is None:
        return None
    return not _same_number(gold_value, answer_value)


def _real_value(point: Point, expression: sympy.Expr) -> sympy.Number | None:
    """The value to 15 digits; None where it is not real, infinite or too inexact."""
    # Not Python's floats: evalf fails on them inside of floor and ceiling.
    values = {symbol: sympy.Float(point[symbol.name]) for symbol in expression.free_symbols}
    try:
        value = expression.evalf(subs=values)
    except ArithmeticError:  # at a pole, or where floor and ceiling jump
        return None
    if value.is_Number and value.is_finite:
        return value
    return None


def _same_number(first: sympy.Number, second: sympy.Number) -> bool:
    """Compare two rounded values."""
    return bool(abs(first - second) <= RELATIVE_ACCURACY * max(abs(first), abs(second)))


# ---- relations


def _relations(expression: Any) -> list[Relational]:
    """The relations of a chain such as a < b < c, or of one relation; none for anything else."""
    members = [expression]
    if isinstance(expression, sympy.And):
        members = getattr(expression, "_unsorted_args", None) or []  # the parser's, in the order of the text
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
    if isinstance(relation, sympy.Eq):
        return numerator_of(difference)
    return difference


def _constant_ratio(gold: sympy.Expr, answer: sympy.Expr) -> sympy.Expr | None:
    """The number gold / answer, wherever both are defined and real; None where it is no number."""
    first: _RealValues | None = None
    for values in _real_values(gold, answer):
        first = first or values
        # Multiplied crosswise: a value may be 0.
        if not _same_number(values.gold * first.answer, values.answer * first.gold):
            return None
    ratio = sympy.simplify(gold / answer)
    if ratio.is_number:
        return ratio
    if first is None:
        return None
    ratio_at_point = sympy.simplify(with_signs(ratio, first.point))  # sqrt(x^2) / x is 1 or -1
    if ratio_at_point.is_number and equal_in_all_regions(gold, ratio_at_point * answer, _is_zero):
        return ratio_at_point
    return None


class _RealValues(NamedTuple):
    """The values of two expressions at a sample point."""

    point: Point
    gold: sympy.Number
    answer: sympy.Number


def _real_values(gold: sympy.Expr, answer: sympy.Expr) -> Iterator[_RealValues]:
    """Yield the values where both are real; none without names, or where they would take seconds."""
    names = _free_names(gold, answer)
    if not names or gold.has(*_UNEVALUATED) or answer.has(*_UNEVALUATED):
        return
    between_roots = points_between_roots((gold, answer), names)
    for point in chain(signed_points(names, EXPRESSION_POINTS), between_roots):
        gold_value = _real_value(point, gold)
        answer_value = _real_value(point, answer)
        if gold_value is not None and answer_value is not None:
            yield _RealValues(point, gold_value, answer_value)


# ---- expressions for sympy


def to_latex(tokens: Tokens) -> str:
    r"""LaTeX for the parser: decimals as exact fractions, letters one by one, `i` as the imaginary unit."""
    i_is_index = r"\sum" in tokens or r"\prod" in tokens
    latex: list[str] = []
    for index, token in enumerate(tokens):
        command = tokens[index - 2] if index >= 2 else ""  # of which the token may be the argument, behind a brace
        next_token = tokens[index + 1] if index + 1 < len(tokens) else ""
        is_environment = token in _MATRIX_NAMES and command in (r"\begin", r"\end")
        i_is_imaginary = not i_is_index and command != "_"
        text = token
        if "." in token:
            text = _fraction_of_decimal(token)
        elif token == "*":
            text = r"\cdot "
        elif token.isalpha() and not is_environment:
            text = " ".join(token)
            if i_is_imaginary:
                text = text.replace("i", "I")
        elif token[0] == "\\" and token[-1].isalpha() and next_token != "{":
            text += " "  # a command, which would swallow a letter behind it
        latex.append(text)
    return "".join(latex)


def _fraction_of_decimal(number: str) -> str:
    integer, _, decimals = number.partition(".")
    numerator = int(integer + decimals)
    denominator = 10 ** len(decimals)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


@lru_cache(maxsize=256)
def to_sympy(tree: Tree) -> Any:
    """The sympy expression of a tree; variables are real, and odd roots of negative numbers, too."""
    kind, *children = tree
    operands = [to_sympy(child) if isinstance(child, tuple) else child for child in children]
    match kind:
        case "number":
            return sympy.Rational(*Fraction(operands[0]).as_integer_ratio())
        case "name":
            return sympy.Symbol(operands[0], real=True)
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

    def handle_gcd_lcm(self, f: str, args: Sequence[sympy.Expr]) -> sympy.Expr:
        if any(argument.free_symbols for argument in args):
            raise ValueError("sympy takes names for polynomials, where gcd(m, n) is 1")
        return super().handle_gcd_lcm(f, args)


@lru_cache(maxsize=256)
def latex_to_sympy(tokens: Tokens) -> Any:
    """The sympy expression that the tokens spell, None if the parser refuses them."""
    # A word of five letters is no product of letters.
    if any(token.isalpha() and len(token) > 4 and token not in _MATRIX_NAMES for token in tokens):
        return None
    try:
        parser = _Parser(None, is_real=True, convert_degrees=False, config=_CONVERSION)
        expression = parser.parse(to_latex(tokens))
        if isinstance(expression, sympy.MatrixExpr):  # 2 times a matrix
            return expression.as_explicit().as_mutable()  # an immutable matrix is an expression, too
        return expression
    except Exception:  # the parser raises bare Exceptions of many kinds; each means that it cannot read the tokens
        return None


MOST_GENERATORS = 24  # symbols, roots and functions of the polynomials that workers compute with
ALGEBRA = (
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"x^2+2x+1", r"(x+1)^2"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\log_2 8x", r"3+\log_2 x"),
    (r"\sqrt{\frac{x}{x-a}}", r"\frac{\sqrt{x}}{\sqrt{x-a}}"),
    (r"a^{\ln x}", r"x^{\ln a}"),
    (r"\sqrt{x+2\sqrt{x-1}}", r"1+\sqrt{x-1}"),
    (r"y=2x+1", r"2x-y+1=0"),
    (r"x^2<4", r"4>x^2"),
    (r"\begin{pmatrix}\sqrt{4}x\\1\end{pmatrix}", r"\begin{pmatrix}2x\\1\end{pmatrix}"),
    (r"|x|+1", r"1+|x|"),
)
TEXT_FUNCTIONS = (sympy_parser.parse_expr, sympy_parser.eval_expr)
CALCULUS = (
    (r"\int_0^1 x e^x dx", r"\sin 1"),
    (r"\sum_{k=1}^\infty \frac{1}{k^2}", r"\frac{\pi^2}{6}"),
    (r"\sum_{k=0}^\infty \frac{1}{k!}", r"e^2"),
    (r"\int_0^\infty e^{-x^2} dx", r"\frac{\sqrt{\pi}}{2}"),
    (r"\lim_{x\to 0}\frac{\sin x}{x}", r"\cos 0"),
)


def prepare() -> None:
    """Warm up this process, whose forks are workers, for algebra; then remove the functions that turn text into code.

    The first answer of a shape costs the parser 40-180 ms, a second one about 2 ms; sympy imports much when first used.
    """
    sympy.utilities.lambdify.lambdify = refuse
    # Terms of infinite sums without text, and without numpy and scipy, which lambdify imports.
    sympy.core.evalf.lambdify = lambda symbol, term: lambda value: term.subs(symbol, value)
    for generators in range(1, MOST_GENERATORS + 1):  # sympy writes their arithmetic as text and compiles it, once each
        PolyRing(sympy.symbols(f"x:{generators}"), sympy.ZZ)
    warm_up(ALGEBRA)
    set_text_functions(give_up, give_up)


def prepare_rest() -> None:
    """Warm up for calculus, too, which few answers need: it takes twice as long."""
    set_text_functions(*TEXT_FUNCTIONS)  # sympy's tables of integrals are text
    warm_up(CALCULUS)
    set_text_functions(refuse, refuse)


def warm_up(pairs: Sequence[tuple[str, str]]) -> None:
    for gold, answer in pairs:
        equal(gold, answer)


def set_text_functions(parse_expr: Callable[..., Any], eval_expr: Callable[..., Any]) -> None:
    """Set what sympify does with a string."""
    sympy_parser.parse_expr = parse_expr
    sympy_parser.eval_expr = eval_expr


def give_up(*_: Any, **__: Any) -> NoReturn:
    """End the worker; one that has all of sympy tries its task again."""
    os._exit(1)


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a grading worker evaluates no text")
