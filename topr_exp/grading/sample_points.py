"""Values of expressions at sample points: they prove that two differ, and show where both are defined.

Floating-point, in microseconds; what may be rounded beyond recognition has no value here.
"""

import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from topr_exp.grading.expression import Tree, Unreadable, evaluate, expression_tree
from topr_exp.grading.latex import Tokens

Point = Mapping[str, float]  # a value for each name

# Positive, where identities such as sqrt(a b) = sqrt(a) sqrt(b) hold: the first name's value, the step to the next's.
_POSITIVE_POINTS = ((0.7390851332151607, 0.4142135623730951), (1.3247179572447460, 0.2360679774997897))
_SIGNED_POINTS = 64  # the signs of six names are combined in all ways
_SMALLEST_VALUE, _LARGEST_VALUE = 0.1, 20.0  # of a name, without its sign
_RELATIVE = 1e-7  # far above what rounding can do to values of the magnitude that was passed through
_LARGEST = 1e100

_VALUES: dict[str, complex] = {"pi": math.pi, "e": math.e, "i": 1j}
_NUMERIC: dict[str, Callable[..., complex]] = {
    "number": float, "constant": _VALUES.__getitem__, "+": operator.add, "-": operator.neg, "*": operator.mul,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "ln": math.log, "sec": lambda x: 1 / math.cos(x),
    "csc": lambda x: 1 / math.sin(x), "cot": lambda x: 1 / math.tan(x), "/": operator.truediv,
}  # fmt: skip


def certainly_different(one: Tokens, other: Tokens) -> bool:
    """True if the two expressions certainly have different values; False if that is not known."""
    trees = expression_tree(one), expression_tree(other)
    if trees[0] is None or trees[1] is None:
        return False
    names = sorted(names_of(trees[0]) | names_of(trees[1]))
    for start, step in _POSITIVE_POINTS[: 2 if names else 1]:
        point = {name: start + step * index for index, name in enumerate(names)}
        if differ_at(point, trees[0], trees[1]):
            return True
    return False


def differ_at(point: Point, one: Tree, other: Tree) -> bool | None:
    """Whether two expressions differ at a point by more than rounding can do; None where one has no value."""
    left, right = _Sample(point), _Sample(point)
    try:
        gap = abs(evaluate(one, left.value) - evaluate(other, right.value))
    except (Unreadable, ArithmeticError, TypeError, ValueError, RecursionError):
        return None
    return gap > _RELATIVE * max(left.largest, right.largest)


def signed_points(names: Sequence[str], count: int = _SIGNED_POINTS) -> Iterator[Point]:
    """Points of all signs and orders of size, the same for the same names; the first are positive in the first name.

    Names after the sixth are always positive.
    """
    draw = random.Random(0)
    low, high = math.log(_SMALLEST_VALUE), math.log(_LARGEST_VALUE)
    for number in range(count):
        sizes = [math.exp(draw.uniform(low, high)) for _ in names]
        signs = [-1.0 if number >> index & 1 else 1.0 for index in range(len(names))]
        yield dict(zip(names, itertools.starmap(operator.mul, zip(signs, sizes, strict=True)), strict=True))


@lru_cache(maxsize=1 << 12)
def names_of(tree: Tree) -> frozenset[str]:
    if tree[0] == "name":
        return frozenset(tree[1:])
    return frozenset().union(*(names_of(part) for part in tree[1:] if isinstance(part, tuple)))


class _Sample:
    """Evaluates at one point and keeps the largest magnitude on the way, on which the rounding error depends."""

    def __init__(self, point: Point) -> None:
        self.point, self.largest = point, 0.0

    def value(self, kind: str, *parts: Any) -> complex:
        result: complex
        match kind:
            case "name":
                result = self.point[parts[0]]
            case "^":
                result = self._power(*parts)
            case "root":
                result = self._root(*parts)
            case "/" | "ln" if self._doubtful(parts[-1]):
                raise Unreadable
            case "arcsin" | "arccos" if abs(parts[0]) > 1 - 1e-9:
                raise Unreadable
            case _:
                result = _NUMERIC[kind](*parts)
        magnitude = abs(result)
        if not magnitude < _LARGEST:  # not-a-number, too
            raise Unreadable
        self.largest = max(self.largest, magnitude)
        return result

    def _doubtful(self, value: complex) -> bool:
        """Check for a value that may be a rounded zero."""
        return abs(value) < 1e-9 * max(1.0, self.largest)

    def _power(self, base: complex, exponent: complex) -> complex:
        real = isinstance(base, float) and base > 0
        whole = isinstance(exponent, float) and exponent.is_integer()
        if abs(exponent) > 1000 or self._doubtful(base) or not (real or whole):  # a root of -1 has two values
            raise Unreadable
        return base**exponent

    def _root(self, base: complex, degree: complex) -> complex:
        """The real root: the third root of -8 is -2."""
        if isinstance(base, float) and base < 0 and degree.real % 2 == 1:
            return -self._power(-base, 1 / degree)
        if degree == 0:
            raise Unreadable
        return self._power(base, 1 / degree)
