"""Roots, powers, logarithms and absolute values where two expressions are both defined and real.

What they are taken of is split into factors. Between the roots of all factors each one keeps its sign, so that the root
of a product is the product of roots, the logarithm a sum, and two equal expressions have equal normal forms.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import sympy
from mpmath.libmp import NoConvergence
from sympy.polys.polyerrors import PolynomialError

from topr_exp.grading.sample_points import Point, signed_points

MAX_OPERATIONS = 80  # of an expression that is split into factors
MAX_FACTORS = 12  # whose roots are looked for
MAX_DEGREE = 8  # of a factor whose roots are looked for
ROOT_PRECISION = 15  # digits
MAX_STEPS = 200  # of the search for roots
STARTS = 4  # sample points from which roots in each name are looked for


def values_at(point: Point, expression: sympy.Expr) -> dict[sympy.Symbol, sympy.Float]:
    """The values of an expression's names; evalf fails on Python's floats inside of floor and ceiling."""
    return {symbol: sympy.Float(point[symbol.name]) for symbol in expression.free_symbols}


def points_between_roots(expressions: Sequence[sympy.Expr], names: Sequence[str]) -> Iterator[Point]:
    """Points of all signs of the polynomials under roots, logarithms and bars, one name changed at a time."""
    polynomials = _polynomials_with_sign(expressions)
    if not polynomials:
        return
    start_count = STARTS if len(names) > 1 else 1
    for start in signed_points(names, start_count):
        for name in names:
            roots: set[float] = set()
            for polynomial in polynomials:
                roots |= _real_roots(polynomial, name, start)
            for value in _values_between(sorted(roots)):
                yield {**start, name: value}


def _polynomials_with_sign(expressions: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The factors, other than single names, of everything that has a value for one sign only."""
    polynomials: dict[sympy.Expr, None] = {}
    for expression in expressions:
        for node in sympy.preorder_traversal(expression):
            if not _needs_sign(node):
                continue
            for factor, _ in _split(node.args[0]).powers:
                if factor.is_Add and factor.is_polynomial():
                    polynomials[factor] = None
    return list(polynomials)[:MAX_FACTORS]


def _needs_sign(node: sympy.Basic) -> bool:
    if isinstance(node, sympy.Pow):
        return not node.exp.is_Integer and not node.base.is_number
    return isinstance(node, sympy.log | sympy.Abs)


def _real_roots(polynomial: sympy.Expr, name: str, point: Point) -> set[float]:
    """The real roots in one name, the others as at the point."""
    fixed_values = values_at(point, polynomial)
    variables = [symbol for symbol in fixed_values if symbol.name == name]
    if not variables:
        return set()
    fixed_values.pop(variables[0])
    univariate = sympy.Poly(polynomial.subs(fixed_values), variables[0])
    if not 1 <= univariate.degree() <= MAX_DEGREE:
        return set()
    try:
        roots = univariate.nroots(n=ROOT_PRECISION, maxsteps=MAX_STEPS)
    except NoConvergence:
        return set()
    return {float(root) for root in roots if root.is_real}


def _values_between(roots: Sequence[float]) -> list[float]:
    """A value in each interval that the sorted roots bound."""
    if not roots:
        return []
    middles = [(low + high) / 2 for low, high in pairwise(roots)]
    return [roots[0] - 1, *middles, roots[-1] + 1]


class _Factors(NamedTuple):
    """A number times powers of factors."""

    coefficient: sympy.Expr
    powers: list[tuple[sympy.Expr, sympy.Expr]]


def _split(expression: sympy.Expr) -> _Factors:
    factored = expression
    if expression.count_ops() <= MAX_OPERATIONS:
        with suppress(PolynomialError):  # of functions in pieces
            factored = sympy.factor(expression)
    coefficient = sympy.Integer(1)
    powers = []
    for factor in sympy.Mul.make_args(factored):
        base, exponent = factor.as_base_exp()
        if factor.is_number:
            coefficient *= factor
        elif exponent.is_Integer:
            powers.append((base, exponent))
        else:
            powers.append((factor, sympy.Integer(1)))
    return _Factors(coefficient, powers)


class _Size(NamedTuple):
    """An expression as a sign and the logarithm of its absolute value."""

    is_negative: bool
    logarithm: sympy.Expr


class Region:
    """Rewrites expressions for the surroundings of a point, in which no factor changes its sign.

    Each name becomes a positive symbol or its negative, and each sum under a root or logarithm a positive symbol, whose
    value `normal_form` puts back.
    """

    def __init__(self, point: Point) -> None:
        self._point = point
        self._size_of_name: dict[str, sympy.Symbol] = {}
        self._size_of_sum: dict[sympy.Expr, sympy.Symbol] = {}
        self._value_of_size: dict[sympy.Symbol, sympy.Expr] = {}  # inner sums first

    def with_signs(self, expression: sympy.Expr) -> sympy.Expr:
        """Replace names alone."""
        return expression.subs({symbol: self._signed(symbol) for symbol in expression.free_symbols})

    def normal_form(self, gap: sympy.Expr) -> sympy.Expr:
        """An expression that is 0 wherever the gap is, in this region; 0 itself for most that are 0 everywhere."""
        numerator, _ = sympy.fraction(sympy.together(self._rewrite(gap)))
        for size, value in reversed(self._value_of_size.items()):
            degree = _common_degree(numerator, size)
            root = sympy.Dummy(positive=True)
            in_roots = sympy.expand(numerator.subs(size, root**degree))
            numerator = _reduce_powers(in_roots, root, degree=degree, value=value)
        return sympy.expand(numerator)

    def _signed(self, symbol: sympy.Symbol) -> sympy.Expr:
        size = self._size_of_name.setdefault(symbol.name, sympy.Symbol(symbol.name, positive=True))
        if self._point[symbol.name] > 0:
            return size
        return -size

    def _rewrite(self, expression: sympy.Expr) -> sympy.Expr:
        if expression.is_Symbol:
            return self._signed(expression)
        if expression.is_number:
            return expression
        operands = [self._rewrite(operand) for operand in expression.args]
        if isinstance(expression, sympy.exp):
            return sympy.exp(sympy.expand(operands[0]))
        if isinstance(expression, sympy.Pow) and not expression.exp.is_Integer:
            return self._power(expression, operands)
        if isinstance(expression, sympy.log | sympy.Abs):
            size = self._size(expression.args[0])
            if size is not None and isinstance(expression, sympy.Abs):
                return sympy.exp(size.logarithm)
            if size is not None and not size.is_negative:
                return size.logarithm
        return expression.func(*operands)

    def _power(self, power: sympy.Pow, operands: list[sympy.Expr]) -> sympy.Expr:
        """A power that is no integer one; of a negative base only an odd root is real."""
        size = self._size(power.base)
        exponent = operands[1]
        if size is None or (size.is_negative and not (exponent.is_Rational and exponent.q % 2)):
            return power.func(*operands)
        absolute_value = sympy.exp(sympy.expand(exponent * size.logarithm))
        if size.is_negative and exponent.p % 2:
            return -absolute_value
        return absolute_value

    def _size(self, expression: sympy.Expr) -> _Size | None:
        """The sum of the logarithms of all factors; None where a factor's sign is not known."""
        coefficient, powers = _split(expression)
        if not coefficient.is_real or coefficient == 0:
            return None
        is_negative = bool(coefficient.is_negative)
        logarithm = sympy.log(abs(coefficient))
        for factor, exponent in powers:
            size = self._size_of_factor(factor)
            if size is None:
                return None
            is_negative ^= size.is_negative and bool(exponent % 2)
            logarithm += exponent * size.logarithm
        return _Size(is_negative, sympy.expand(logarithm))

    def _size_of_factor(self, factor: sympy.Expr) -> _Size | None:
        """The sign of a factor that sympy knows, or whose changes are between points that were tried."""
        value = self._rewrite(factor)
        sign = value
        if not (value.is_positive or value.is_negative) and factor.is_polynomial():
            sign = factor.evalf(subs=values_at(self._point, factor))
        if not (sign.is_positive or sign.is_negative):
            return None
        is_negative = bool(sign.is_negative)
        absolute_value = -value if is_negative else value
        if absolute_value.is_Add:
            size = self._size_of_sum.setdefault(absolute_value, sympy.Dummy(positive=True))
            self._value_of_size[size] = absolute_value
            absolute_value = size
        return _Size(is_negative, sympy.expand(sympy.log(absolute_value)))


def _common_degree(expression: sympy.Expr, size: sympy.Symbol) -> int:
    """The smallest degree of which all roots of a symbol in the expression are powers."""
    degree = 1
    for power in expression.atoms(sympy.Pow):
        if power.base == size and power.exp.is_Rational:
            degree = lcm(degree, power.exp.q)
    return degree


def _reduce_powers(expression: sympy.Expr, root: sympy.Symbol, *, degree: int, value: sympy.Expr) -> sympy.Expr:
    """Replace root^degree by its value in all powers of the root."""
    if degree == 1:
        return expression.subs(root, value)

    def is_power(node: sympy.Basic) -> bool:
        return isinstance(node, sympy.Pow) and node.base == root and node.exp.is_Integer

    def reduce_power(power: sympy.Pow) -> sympy.Expr:
        value_exponent, root_exponent = divmod(int(power.exp), degree)
        return value**value_exponent * root**root_exponent

    return expression.replace(is_power, reduce_power)
