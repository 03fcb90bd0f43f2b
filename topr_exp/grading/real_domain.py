"""Proofs that two expressions are equal wherever both are defined and real: roots, powers, logarithms, absolute values.

Radicands and arguments of logarithms are split into factors. In a region, where no factor changes its sign, the root of
a product is the product of roots, the logarithm a sum, and two equal expressions have equal normal forms. Roots of sums
are eliminated by conjugates: 1 + s - r, where r^2 = x + 2s and s^2 = x - 1, times 1 + s + r is 0. A proof covers all
regions. Names and polynomials in one name have the signs that they have between the polynomials' roots, which are
isolated exactly. Any other factor is taken both as positive and as negative: at worst a proof fails in a region that
does not exist. An expression is defined where all its roots, powers and logarithms are real.
"""

import cmath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise, product
from math import lcm, prod
from typing import NamedTuple

import sympy
from sympy.polys.polyerrors import PolynomialError

from topr_exp.grading.sample_points import Point, signed_points

MAX_OPERATIONS = 80  # of an expression that is split into factors
MAX_FACTORS = 12  # in one name, whose roots are isolated
MAX_DEGREE = 8  # of a factor whose roots are isolated
MAX_REGIONS = 64  # all combinations of the signs of six names
ROOT_WIDTHS = (None, sympy.Rational(1, 1000), sympy.Rational(1, 10**9))  # of the intervals around roots, tried in turn
MAX_ROOT_DEGREE = 4  # of a nested root that is eliminated
SMALLEST_CONJUGATE = 1e-3  # of a sum relative to its terms, far above rounding
GOLDEN_SECTION = sympy.Rational(618034, 1000003)  # of an interval: where values are less special than in the middle

ExactPoint = Mapping[str, sympy.Rational]


def points_between_roots(expressions: Sequence[sympy.Expr], names: Sequence[str]) -> Iterator[Point]:
    """A point in each cell of `_cells`, at most MAX_REGIONS; names outside of functions keep one positive value."""
    positive_point = next(signed_points(names, 1))
    for exact_point in islice(_cells(expressions).points, MAX_REGIONS):
        values = {name: float(value) for name, value in exact_point.items()}
        yield {**positive_point, **values}


def with_signs(expression: sympy.Expr, point: Point) -> sympy.Expr:
    """Replace each name by a positive symbol or its negative, as at the point."""
    signed = {}
    for symbol in expression.free_symbols:
        signed[symbol] = _signed(symbol, is_negative=point[symbol.name] < 0)
    return expression.subs(signed)


def equal_in_all_regions(
    gold: sympy.Expr,
    answer: sympy.Expr,
    is_zero: Callable[[sympy.Expr], bool],
    *,
    cancelled: Sequence[sympy.Expr] = (),
) -> bool:
    """Prove equality in each region where both are defined; False without a proof, a region or MAX_REGIONS to spare.

    cancelled: roots and logarithms that no longer stand in the expressions, but limit where they are defined.
    """
    if gold.has(sympy.I) or answer.has(sympy.I):
        return False
    cells = _cells((gold, answer, *cancelled))
    regions = [_Region(point, cells.factors, {}) for point in islice(cells.points, MAX_REGIONS + 1)]
    if len(regions) > MAX_REGIONS:
        return False
    is_defined_somewhere = False
    for _ in range(MAX_REGIONS):
        if not regions:
            break
        region = regions.pop()
        try:
            for function in cancelled:
                region.rewrite(function)
            gap = region.normal_form(gold, answer)
        except _UndefinedError:
            continue
        except _UnknownSignError as unknown:
            (factor,) = unknown.args
            regions += region.halves(factor)
            continue
        if not is_zero(gap):
            return False
        is_defined_somewhere = True
    return is_defined_somewhere and not regions


class _Cells(NamedTuple):
    """Products of intervals, one for each name inside of functions, in which neither names nor factors change signs."""

    factors: frozenset[sympy.Expr]  # polynomials in one name
    points: Iterator[ExactPoint]  # one in each cell


def _cells(expressions: Sequence[sympy.Expr]) -> _Cells:
    names: set[str] = set()
    for expression in expressions:
        names |= {symbol.name for symbol in _symbols_in_functions(expression)}
    polynomials: dict[str, list[sympy.Poly]] = {name: [] for name in names}
    values = {name: [-1 - GOLDEN_SECTION, 1 + GOLDEN_SECTION] for name in sorted(names)}  # one in each interval
    factors: set[sympy.Expr] = set()
    for factor in _factors_in_one_name(expressions):
        (symbol,) = factor.free_symbols
        polynomials_of_name = [*polynomials[symbol.name], sympy.Poly(factor, symbol)]
        root_at_zero = sympy.Poly(symbol, symbol)  # where the name changes its sign
        values_between = _values_between_roots([root_at_zero, *polynomials_of_name])
        if values_between and len(polynomials_of_name) <= MAX_FACTORS:
            polynomials[symbol.name] = polynomials_of_name
            values[symbol.name] = values_between
            factors.add(factor)
    combinations = product(*values.values())
    points = (dict(zip(values, combination, strict=True)) for combination in combinations)
    return _Cells(frozenset(factors), points)


def _symbols_in_functions(expression: sympy.Expr) -> set[sympy.Symbol]:
    """The symbols in other places than those of a rational function."""
    symbols: set[sympy.Symbol] = set()
    for node in sympy.preorder_traversal(expression):
        is_power = isinstance(node, sympy.Pow) and node.exp.is_Integer
        if not (node.is_Add or node.is_Mul or node.is_Atom or is_power):
            symbols |= node.free_symbols
    return symbols


def _factors_in_one_name(expressions: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """The sums in one name whose roots are isolated, among the factors of everything whose sign matters."""
    factors: list[sympy.Expr] = []
    for expression in expressions:
        for node in sympy.preorder_traversal(expression):
            if _needs_sign(node):
                factors += [factor for factor, _ in _split(node.args[0]).powers]
    return [factor for factor in dict.fromkeys(factors) if _has_isolable_roots(factor)]


def _needs_sign(node: sympy.Basic) -> bool:
    if isinstance(node, sympy.Pow):
        return not node.exp.is_Integer and not node.base.is_number
    return isinstance(node, sympy.log | sympy.Abs)


def _has_isolable_roots(factor: sympy.Expr) -> bool:
    """Check for a sum that is a rational polynomial in one name."""
    names = factor.free_symbols
    if not (factor.is_Add and factor.is_polynomial() and len(names) == 1):
        return False
    polynomial = sympy.Poly(factor, *names)
    is_rational = polynomial.domain.is_ZZ or polynomial.domain.is_QQ
    return is_rational and polynomial.degree() <= MAX_DEGREE


def _values_between_roots(polynomials: Sequence[sympy.Poly]) -> list[sympy.Rational]:
    """A value in each interval that the real roots of all polynomials bound; none if roots are too close."""
    squarefree = prod(polynomials[1:], start=polynomials[0]).sqf_part()
    for width in ROOT_WIDTHS:
        intervals = squarefree.intervals(eps=width, sqf=True)  # around each root
        lowest, _ = intervals[0]
        _, highest = intervals[-1]
        values = [lowest - 1 - GOLDEN_SECTION]
        for (_, gap_start), (gap_end, _) in pairwise(intervals):
            values.append(gap_start + GOLDEN_SECTION * (gap_end - gap_start))
        values.append(highest + 1 + GOLDEN_SECTION)
        if all(squarefree.eval(value) != 0 for value in values):
            return values
    return []


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


class _UndefinedError(Exception):
    """An even root or a logarithm of something negative."""


class _UnknownSignError(Exception):
    """A factor, the sign of which neither the point nor sympy knows."""


@dataclass
class _Region:
    """Rewrites expressions for the places where names and factors have given signs.

    Each name becomes a positive symbol or its negative, and each sum under a root or logarithm a positive symbol, whose
    value `normal_form` puts back.
    """

    point: ExactPoint  # where names and `factors_at_point` have their signs
    factors_at_point: frozenset[sympy.Expr]
    is_negative: Mapping[sympy.Expr, bool]  # the assumed signs of other factors
    _size_of_value: dict[sympy.Expr, sympy.Symbol] = field(default_factory=dict)
    _value_of_size: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)  # inner ones first

    def halves(self, factor: sympy.Expr) -> list["_Region"]:
        """The part where the factor is positive, and that where it is negative."""
        parts = []
        for is_negative in (False, True):
            signs = {**self.is_negative, factor: is_negative}
            parts.append(_Region(self.point, self.factors_at_point, signs))
        return parts

    def normal_form(self, gold: sympy.Expr, answer: sympy.Expr) -> sympy.Expr:
        """An expression that is 0 only if gold - answer is, in all of this region; 0 itself for most that are equal."""
        gap = self.rewrite(gold) - self.rewrite(answer)
        numerator = numerator_of(gap)
        for size, value in reversed(self._value_of_size.items()):
            numerator = self._without_size(numerator, size, value)
        return sympy.expand(numerator)

    def _without_size(self, numerator: sympy.Expr, size: sympy.Symbol, value: sympy.Expr) -> sympy.Expr:
        """Put a size's value back, as root^degree for the one root of which all roots of the size are powers.

        Where that root stays, it is eliminated by conjugates, if these add no zero.
        """
        degree = _common_degree(numerator, size)
        root = sympy.Dummy(positive=True)
        in_powers = sympy.expand(numerator.subs(size, root**degree))
        polynomial = _reduce_powers(in_powers, root, degree=degree, value=value)
        if not polynomial.has(root):
            return polynomial
        if not self._is_only_zero_factor(polynomial, root, degree=degree, value=value):
            return polynomial
        conjugate_product = sympy.resultant(root**degree - value, polynomial, root)
        return numerator_of(conjugate_product)

    def _is_only_zero_factor(
        self, polynomial: sympy.Expr, root: sympy.Symbol, *, degree: int, value: sympy.Expr
    ) -> bool:
        """Check that a polynomial in a root of `value` is 0 in all of this region if the product over all roots is.

        A product of analytic functions on a connected region is 0 only if one of them is; the other factors are not at
        the region's point.
        """
        is_connected = not self.is_negative  # without assumed signs a region is a product of intervals
        if degree > MAX_ROOT_DEGREE or not is_connected or not _is_analytic(polynomial, root):
            return False
        if polynomial.count_ops() > MAX_OPERATIONS:
            return False
        exact_coefficients = sympy.Poly(polynomial, root).all_coeffs()
        coefficients = [self._value_at_point(coefficient) for coefficient in reversed(exact_coefficients)]
        size = self._value_at_point(value) ** (1 / degree)
        for index in range(1, degree):
            conjugate = size * cmath.exp(2j * cmath.pi * index / degree)
            terms = [coefficient * conjugate**power for power, coefficient in enumerate(coefficients)]
            if abs(sum(terms)) <= SMALLEST_CONJUGATE * sum(map(abs, terms)):
                return False
        return True

    def _value_at_point(self, expression: sympy.Expr) -> complex:
        for size, value in reversed(self._value_of_size.items()):
            expression = expression.subs(size, value)
        absolute_values = {}  # signs are in the expression already
        for symbol in expression.free_symbols:
            coordinate = self.point.get(symbol.name, 1 + GOLDEN_SECTION)  # any for a name outside of functions
            absolute_values[symbol] = abs(coordinate)
        return complex(expression.subs(absolute_values))

    def rewrite(self, expression: sympy.Expr) -> sympy.Expr:
        """The expression in this region's symbols; _UndefinedError where a part of it is not real."""
        if expression.is_Symbol and expression.name in self.point:
            return _signed(expression, is_negative=bool(self.point[expression.name] < 0))
        if expression.is_Symbol or expression.is_number:
            return expression
        if isinstance(expression, sympy.log) and len(expression.args) == 2:
            argument, base = expression.args
            return self.rewrite(sympy.log(argument)) / self.rewrite(sympy.log(base))
        operands = [self.rewrite(operand) for operand in expression.args]
        if isinstance(expression, sympy.exp):
            return sympy.exp(sympy.expand(operands[0]))
        if isinstance(expression, sympy.Pow) and not expression.exp.is_Integer:
            return self._power(expression, operands)
        size = None
        if isinstance(expression, sympy.log | sympy.Abs):
            size = self._size(expression.args[0])
        if size is None:
            return expression.func(*operands)
        if isinstance(expression, sympy.Abs):
            return sympy.exp(size.logarithm)
        if size.is_negative:
            raise _UndefinedError
        return size.logarithm

    def _power(self, power: sympy.Pow, operands: list[sympy.Expr]) -> sympy.Expr:
        """A power that is no integer one; of a negative base only an odd root is real."""
        size = self._size(power.base)
        exponent = operands[1]
        if size is None or (size.is_negative and power.base.is_number):  # (-1)^n
            return power.func(*operands)
        if size.is_negative and not (exponent.is_Rational and exponent.q % 2):
            raise _UndefinedError
        absolute_value = sympy.exp(sympy.expand(exponent * size.logarithm))
        if size.is_negative and exponent.p % 2:
            return -absolute_value
        return absolute_value

    def _size(self, expression: sympy.Expr) -> _Size | None:
        """The sum of the logarithms of all factors; None where one is 0 or a number's sign unknown."""
        coefficient, powers = _split(expression)
        if not (coefficient.is_positive or coefficient.is_negative):
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
        value = self.rewrite(factor)
        if value.is_number:  # |x| - x of a positive x
            return None
        is_negative = self._is_factor_negative(factor, value)
        coefficient, term = value.as_coeff_Mul()
        is_term_negative = is_negative != bool(coefficient < 0)
        absolute_term = -term if is_term_negative else term
        if absolute_term.is_Add or not absolute_term.is_positive:
            size = self._size_of_value.setdefault(absolute_term, sympy.Dummy(positive=True))
            self._value_of_size[size] = absolute_term
            absolute_term = size
        logarithm = sympy.log(abs(coefficient)) + sympy.expand(sympy.log(absolute_term))
        return _Size(is_negative, logarithm)

    def _is_factor_negative(self, factor: sympy.Expr, value: sympy.Expr) -> bool:
        """The sign that follows from those of the names, else that at the point, else the given one."""
        if value.is_positive or value.is_negative:
            return bool(value.is_negative)
        if factor in self.factors_at_point:
            (symbol,) = factor.free_symbols
            return bool(factor.subs(symbol, self.point[symbol.name]) < 0)
        is_reversed = factor.could_extract_minus_sign()  # b - a has the other sign than a - b
        key = -factor if is_reversed else factor
        if key not in self.is_negative:
            raise _UnknownSignError(key)
        return self.is_negative[key] ^ is_reversed


def numerator_of(expression: sympy.Expr) -> sympy.Expr:
    """The numerator of a sum of fractions over their common denominator."""
    numerator, _ = sympy.fraction(sympy.together(expression))
    return numerator


def _signed(symbol: sympy.Symbol, *, is_negative: bool) -> sympy.Expr:
    size = sympy.Symbol(symbol.name, positive=True)
    return -size if is_negative else size


def _common_degree(expression: sympy.Expr, size: sympy.Symbol) -> int:
    """The smallest degree of which all roots of a symbol in the expression are powers."""
    degree = 1
    for power in expression.atoms(sympy.Pow):
        if power.base == size and power.exp.is_Rational:
            degree = lcm(degree, power.exp.q)
    return degree


def _is_analytic(polynomial: sympy.Expr, root: sympy.Symbol) -> bool:
    """Check for a polynomial in the root whose coefficients are made of powers, exponentials and logarithms."""
    if not all(map(_is_analytic_operation, sympy.preorder_traversal(polynomial))):
        return False
    return bool(polynomial.is_polynomial(root))


def _is_analytic_operation(node: sympy.Basic) -> bool:
    if isinstance(node, sympy.Pow):
        return bool(node.exp.is_Integer or node.base.is_positive)
    if isinstance(node, sympy.log):
        return bool(node.args[0].is_positive)
    return bool(node.is_Add or node.is_Mul or node.is_Atom or isinstance(node, sympy.exp))


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
