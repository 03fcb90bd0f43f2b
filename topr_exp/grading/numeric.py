"""Proves that two expressions differ, by their floating-point values at sample points.

This settles most wrong answers in microseconds. Equal values prove nothing: the symbolic comparison has to decide.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from functools import lru_cache

from topr_exp.grading.expression import Tree, expression_tree
from topr_exp.grading.latex import Tokens

# Positive, since identities such as sqrt(a b) = sqrt(a) sqrt(b) are meant where they hold.
_STARTS = (0.7390851332151607, 1.3247179572447460)
_STEPS = (0.4142135623730951, 0.2360679774997897)
_RELATIVE = 1e-7  # far above what rounding can do to values of the magnitude that was passed through
_LARGEST = 1e100

_FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "arcsin": cmath.asin, "arccos": cmath.acos,
    "arctan": cmath.atan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh, "ln": cmath.log,
    "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x), "cot": lambda x: 1 / cmath.tan(x),
}  # fmt: skip
_CONSTANTS: dict[object, complex] = {"pi": math.pi, "e": math.e, "i": 1j}


class _NoValue(Exception):
    pass


def certainly_different(one: Tokens, other: Tokens) -> bool:
    """True if the two expressions certainly have different values; False if that is not known."""
    trees = expression_tree(one), expression_tree(other)
    if trees[0] is None or trees[1] is None:
        return False
    names = sorted(_names(trees[0]) | _names(trees[1]))
    for start, step in zip(_STARTS, _STEPS, strict=True):
        point = {name: start + step * index for index, name in enumerate(names)}
        try:
            left, right = _Sample(point), _Sample(point)
            gap = abs(left.value(trees[0]) - right.value(trees[1]))
        except (_NoValue, ArithmeticError, ValueError, RecursionError):
            continue
        if gap > _RELATIVE * max(left.largest, right.largest):
            return True
    return False


@lru_cache(maxsize=1 << 12)
def _names(node: Tree) -> frozenset[str]:
    if node[0] == "name":
        return frozenset((str(node[1]),))
    return frozenset().union(*(_names(part) for part in node[1:] if isinstance(part, tuple)))


class _Sample:
    """Evaluates at one point and keeps the largest magnitude on the way, on which the rounding error depends."""

    def __init__(self, point: dict[str, float]) -> None:
        self.point = point
        self.largest = 0.0

    def value(self, node: Tree) -> complex:
        result = self._evaluate(node)
        magnitude = abs(result)
        if not magnitude < _LARGEST:  # not-a-number, too
            raise _NoValue
        if magnitude > self.largest:
            self.largest = magnitude
        return result

    def _evaluate(self, node: Tree) -> complex:
        kind = node[0]
        if kind == "number":
            return float(str(node[1]))
        if kind == "name":
            return self.point[str(node[1])]
        if kind == "constant":
            return _CONSTANTS[node[1]]
        parts = [self.value(part) for part in node[1:] if isinstance(part, tuple)]
        if kind == "-":
            return -parts[0]
        if kind == "+":
            return parts[0] + parts[1]
        if kind == "*":
            return parts[0] * parts[1]
        if kind == "/":
            return parts[0] / self._divisor(parts[1])
        if kind == "^":
            return self._power(parts[0], parts[1])
        if kind == "root":
            return self._root(parts[0], parts[1])
        return self._function(str(kind), parts[0])

    def _divisor(self, value: complex) -> complex:
        if self._doubtful(value):
            raise _NoValue
        return value

    def _doubtful(self, value: complex) -> bool:
        """Check for a value that may be a rounded zero."""
        return abs(value) < 1e-9 * max(1.0, self.largest)

    def _power(self, base: complex, exponent: complex) -> complex:
        if abs(exponent) > 1000 or self._doubtful(base) or _at_branch_cut(base):
            raise _NoValue
        return base**exponent

    def _root(self, base: complex, degree: complex) -> complex:
        """The real root where there is one: the third root of -8 is -2."""
        if isinstance(base, float) and base < 0 and degree.real % 2 == 1:
            return -self._power(-base, 1 / degree)
        return self._power(base, 1 / self._divisor(degree))

    def _function(self, name: str, value: complex) -> complex:
        if name == "ln" and (self._doubtful(value) or _at_branch_cut(value)):
            raise _NoValue
        if name in ("arcsin", "arccos") and not abs(value) < 1 - 1e-9:
            raise _NoValue
        return _FUNCTIONS[name](value)


def _at_branch_cut(value: complex) -> bool:
    """A negative number with an imaginary part of rounding errors would fall on either side."""
    return isinstance(value, complex) and value.real < 0 and abs(value.imag) < 1e-9 * abs(value)
