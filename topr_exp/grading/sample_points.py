"""Values of expressions at sample points: they prove that two differ.

Floating-point, in microseconds; a value that may be mostly rounding error counts as undefined.
"""

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from topr_exp.grading.expression import Tree, UnreadableError, evaluate, expression_tree
from topr_exp.grading.latex import Tokens

Point = Mapping[str, float]  # a value for each name

# Positive, where identities such as sqrt(a b) = sqrt(a) sqrt(b) hold: the first name's value, the step to the next's.
_POSITIVE_POINTS = ((0.7390851332151607, 0.4142135623730951), (1.3247179572447460, 0.2360679774997897))
# Absolute values of names.
_SMALLEST_SIZE = 0.1
_LARGEST_SIZE = 20.0
_RELATIVE_ROUNDING = 1e-7  # far above what rounding can do to values of the magnitude that was passed through
_LARGEST_MAGNITUDE = 1e100  # of a value on the way

# math's functions refuse complex numbers (TypeError), so that these count as undefined.
_NUMERIC: dict[str, Callable[..., complex]] = {
    "number": float, "constant": {"pi": math.pi, "e": math.e, "i": 1j}.__getitem__,
    "+": operator.add, "-": operator.neg, "*": operator.mul, "/": operator.truediv,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "arcsin": math.asin, "arccos": math.acos, "arctan": math.atan,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "ln": math.log, "sec": lambda x: 1 / math.cos(x),
    "csc": lambda x: 1 / math.sin(x), "cot": lambda x: 1 / math.tan(x),
}  # fmt: skip


def certainly_different(gold: Tokens, answer: Tokens) -> bool:
    """True if the two expressions certainly have different values; False if that is not known."""
    gold_tree = expression_tree(gold)
    answer_tree = expression_tree(answer)
    if gold_tree is None or answer_tree is None:
        return False
    names = sorted(names_of(gold_tree) | names_of(answer_tree))
    for start, step in _POSITIVE_POINTS:
        point = {name: start + step * index for index, name in enumerate(names)}
        if differ_at(point, gold_tree, answer_tree):
            return True
    return False


def differ_at(point: Point, gold: Tree, answer: Tree) -> bool | None:
    """Compare the values at a point; True if they differ by more than rounding, None where one is undefined."""
    gold_sample = _Sample(point)
    answer_sample = _Sample(point)
    try:
        gold_value = evaluate(gold, gold_sample.value)
        answer_value = evaluate(answer, answer_sample.value)
        gap = abs(gold_value - answer_value)
    except (UnreadableError, ArithmeticError, TypeError, ValueError, RecursionError):
        return None
    largest = max(gold_sample.largest, answer_sample.largest)
    return gap > _RELATIVE_ROUNDING * largest


def signed_points(names: Sequence[str], count: int) -> Iterator[Point]:
    """Points of all signs and orders of size, the same for the same names.

    Bit i of a point's number is the sign of name i, so the first point is positive; names after the sixth always are.
    """
    draw = random.Random(0)
    low = math.log(_SMALLEST_SIZE)
    high = math.log(_LARGEST_SIZE)
    for number in range(count):
        point: dict[str, float] = {}
        for index, name in enumerate(names):
            size = math.exp(draw.uniform(low, high))
            sign_bit = (number >> index) & 1
            point[name] = -size if sign_bit else size
        yield point


@lru_cache(maxsize=1 << 12)
def names_of(tree: Tree) -> frozenset[str]:
    if tree[0] == "name":
        return frozenset(tree[1:])
    names = frozenset[str]()
    for child in tree[1:]:
        if isinstance(child, tuple):
            names |= names_of(child)
    return names


@dataclass
class _Sample:
    """Evaluates at one point and keeps the largest magnitude on the way, which scales the rounding error."""

    point: Point
    largest: float = 0.0

    def value(self, kind: str, *parts: Any) -> complex:
        result: complex
        match kind:
            case "name":
                result = self.point[parts[0]]
            case "^":
                result = self._power(*parts)
            case "root":
                result = self._root(*parts)
            case "/" | "ln" if self._may_be_zero(parts[-1]):  # at a pole
                raise UnreadableError
            case "arcsin" | "arccos" if abs(parts[0]) > 1 - 1e-9:  # at the end of the domain, or outside of it
                raise UnreadableError
            case _:
                result = _NUMERIC[kind](*parts)
        magnitude = abs(result)
        if not magnitude < _LARGEST_MAGNITUDE:  # not-a-number, too
            raise UnreadableError
        self.largest = max(self.largest, magnitude)
        return result

    def _may_be_zero(self, value: complex) -> bool:
        """Check for a value that may be 0 but for rounding."""
        return abs(value) < 1e-9 * max(1.0, self.largest)

    def _power(self, base: complex, exponent: complex) -> complex:
        is_positive = isinstance(base, float) and base > 0
        is_integer = isinstance(exponent, float) and exponent.is_integer()
        has_one_value = is_positive or is_integer  # a root of -1 has two
        if abs(exponent) > 1000 or self._may_be_zero(base) or not has_one_value:
            raise UnreadableError
        return base**exponent

    def _root(self, base: complex, degree: complex) -> complex:
        """The real root: the third root of -8 is -2."""
        if isinstance(base, float) and base < 0 and degree.real % 2 == 1:
            return -self._power(-base, 1 / degree)
        return self._power(base, 1 / degree)
