r"""Single expressions: one parser and one small tree, and its exact value if it is rational.

There is no tree where people would disagree on what is meant (1/2x, \sin x y, 2\frac{1}{2}x), nor for what is rarer
(sums, integrals, matrices): latex2sympy2 is asked instead. Every size is bounded, so that no input is slow.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from topr_exp.grading.latex import GREEK, Tokens, integer_like, number_like, words

MAX_TOKENS = 300
MAX_BITS = 4000
MAX_EXPONENT = 1000

# ("number", "2.5"), ("name", "x_1"), ("constant", "pi"), ("+", a, b), ("*", a, b), ("/", a, b), ("-", a),
# ("^", a, b), ("root", radicand, degree), ("sin", a), ...; with numbers alone also ("mixed", integer, fraction)
Tree = tuple[Any, ...]

FUNCTIONS = words(r"\sin \cos \tan \sec \csc \cot \arcsin \arccos \arctan \sinh \cosh \tanh \ln")
_CONSTANTS = {r"\pi": "pi", "e": "e", "i": "i"}
_RADIANS_PER_DEGREE = ("/", ("constant", "pi"), ("number", "180"))
_TERM_ENDS = words("+ - ) }") | {""}  # tokens that may follow a term; "" is the end of the expression
_ARITHMETIC_SIGNS = frozenset("+-*/^(){}") | {r"\frac"}
_REPEATING = re.compile(r"(-?)(\d+)\.(\d*)\\overline\{(\d+)\}", re.ASCII)
_SCIENTIFIC = re.compile(r"([+-] )?(\d+(\.\d+)?|\.\d+) [eE] ([+-] )?\d{1,3}", re.ASCII)  # a calculator's 2.5e6


class UnreadableError(Exception):
    """The tokens spell no expression beyond doubt, or its value exceeds a bound or can't be told from a rounded one."""


@lru_cache(maxsize=1 << 12)
def expression_tree(tokens: Tokens) -> Tree | None:
    """The expression that the tokens spell; None where that may be doubted."""
    if len(tokens) > MAX_TOKENS:
        return None
    split_tokens: list[str] = []
    for token in tokens:
        if token.isalpha() and token.isascii():
            split_tokens.extend(token)  # xy is a product
        else:
            split_tokens.append(token)
    try:
        return _parse(split_tokens, literal=False)
    except (UnreadableError, RecursionError):
        return None


@lru_cache(maxsize=1 << 12)
def rational_value(tokens: Tokens) -> Fraction | None:
    r"""The rational number that the tokens spell, None if they spell none. 2\frac{1}{3} is a mixed number."""
    if len(tokens) > MAX_TOKENS:
        return None
    try:
        if all(token in _ARITHMETIC_SIGNS or number_like(token) for token in tokens):
            return evaluate(_parse(tokens, literal=True), _exact_value)
        if repeating := _REPEATING.fullmatch("".join(tokens)):
            return _repeating_value(*repeating.groups())
        if _SCIENTIFIC.fullmatch(" ".join(tokens)):
            return _bounded(Fraction("".join(tokens)))
    except (UnreadableError, ZeroDivisionError, RecursionError):
        return None
    return None


def evaluate(tree: Tree, apply: Callable[..., Any]) -> Any:
    """Fold a tree: `apply` gets a node's kind and the values of its children, or a leaf's text."""
    kind, *children = tree
    values = [evaluate(child, apply) if isinstance(child, tuple) else child for child in children]
    return apply(kind, *values)


def _parse(tokens: Sequence[str], *, literal: bool) -> Tree:
    """The tree of all tokens; UnreadableError, or RecursionError."""
    parser = _Parser(tokens, literal)
    tree = parser.sum()
    if parser.position < len(tokens):
        raise UnreadableError
    return tree


@dataclass
class _Parser:
    """Recursive descent. `literal`: arithmetic on numbers, where slashes and mixed numbers are plain."""

    tokens: Sequence[str]
    literal: bool
    position: int = 0

    def _peek(self, ahead: int = 0) -> str:
        """The token so many ahead; "" behind the end."""
        index = self.position + ahead
        if index < len(self.tokens):
            return self.tokens[index]
        return ""

    def _next(self) -> str:
        self.position += 1
        return self._peek(-1)

    def _accept(self, *expected: str) -> str:
        """Read and return the next token if it is one of these, else return ""."""
        if self._peek() in expected:
            return self._next()
        return ""

    def _expect(self, expected: str) -> None:
        if not self._accept(expected):
            raise UnreadableError

    def _expect_end_of_term(self) -> None:
        if self._peek() not in _TERM_ENDS:
            raise UnreadableError

    def sum(self) -> Tree:
        total = self._signed_term()
        while self._peek() in ("+", "-"):
            total = ("+", total, self._signed_term())
        return total

    def _signed_term(self) -> Tree:
        is_negative = False
        while sign := self._accept("+", "-"):
            if sign == "-":
                is_negative = not is_negative
        if is_negative:
            return ("-", self._term())
        return self._term()

    def _term(self) -> Tree:
        """Factors with * and /, or side by side."""
        product = self._mixed() or self._power()
        while self._peek() not in _TERM_ENDS:
            sign = self._accept("*", "/")
            if not sign:
                product = ("*", product, self._adjacent_factor())
                continue
            product = (sign, product, self._operand())
            if sign == "/" and not self.literal:
                self._expect_end_of_term()  # 1/2x: nobody can tell what is below the line
        return product

    def _operand(self) -> Tree:
        """A factor behind * or /; in arithmetic it may have a sign, as in 6/-2."""
        if self.literal and self._accept("-"):
            return ("-", self._power())
        return self._power()

    def _adjacent_factor(self) -> Tree:
        r"""A factor right behind another; UnreadableError for 3 3, and for 2\frac{1}{3}x, mixed or a product."""
        # \frac { 1 } { 3 }: the integers stand 2 and 5 tokens ahead.
        is_fraction = self._peek() == r"\frac" and integer_like(self._peek(2)) and integer_like(self._peek(5))
        may_be_mixed = not self.literal and is_fraction and integer_like(self._peek(-1))
        if number_like(self._peek()) or may_be_mixed:
            raise UnreadableError
        return self._power()

    def _mixed(self) -> Tree | None:
        r"""2\frac{1}{3} and 2 1/3, of numbers alone; None, with nothing taken, for anything else."""
        if not self.literal or not integer_like(self._peek()):
            return None
        has_slash = integer_like(self._peek(1)) and self._peek(2) == "/" and integer_like(self._peek(3))
        if not has_slash and self._peek(1) != r"\frac":
            return None
        integer = self._atom()
        fraction = self._atom()
        if has_slash:
            self._expect("/")
            numerator = fraction
            fraction = ("/", numerator, self._atom())
        if self._peek() != "*":
            self._expect_end_of_term()  # 2\frac{1}{3}^2: nobody can tell
        return ("mixed", integer, fraction)

    def _power(self) -> Tree:
        base = self._atom()
        if self._accept("^"):
            base = ("^", base, self._braced())
        if self._peek() in ("^", "!"):
            raise UnreadableError
        return base

    def _braced(self) -> Tree:
        self._expect("{")
        inner = self.sum()
        self._expect("}")
        return inner

    def _atom(self) -> Tree:
        token = self._next()
        if not token:
            raise UnreadableError
        if number_like(token):
            number = ("number", token)
            if self._accept(r"\circ"):
                return ("*", number, _RADIANS_PER_DEGREE)
            return number
        if token in _CONSTANTS and self._peek() != "_":
            return ("constant", _CONSTANTS[token])
        if (token.isalpha() and token.isascii()) or token in GREEK:
            if not self._accept("_"):
                return ("name", token)
            self._expect("{")
            subscript = self._next()  # one token: _{1}, _{n}, _{10}
            if not subscript.isalnum():
                raise UnreadableError
            self._expect("}")
            return ("name", f"{token}_{subscript}")
        if token == r"\frac":
            return ("/", self._braced(), self._braced())
        if token == r"\sqrt":
            return self._root()
        if token in FUNCTIONS:
            return self._function(token)
        if token in "({":
            inner = self.sum()
            closing = ")" if token == "(" else "}"
            self._expect(closing)
            return inner
        raise UnreadableError

    def _root(self) -> Tree:
        degree = ("number", "2")
        if self._accept("["):
            if not integer_like(self._peek()):
                raise UnreadableError
            degree = ("number", self._next())
            self._expect("]")
        return ("root", self._braced(), degree)

    def _function(self, name: str) -> Tree:
        """sin(...), sin x, sin 2x, sin^2 x: the argument ends with the term; nothing may follow a bracketed one."""
        power = self._braced() if self._accept("^") else None
        if power is not None and power[0] == "-":  # an inverse function, or a reciprocal
            raise UnreadableError
        is_bracketed = self._peek() in ("(", "{")
        argument = self._atom() if is_bracketed else self._power()
        while self._peek() not in _TERM_ENDS and self._peek() not in FUNCTIONS:
            if is_bracketed or self._peek() in ("*", "/", "("):
                raise UnreadableError
            argument = ("*", argument, self._adjacent_factor())
        applied = (name[1:], argument)
        if power is None:
            return applied
        return ("^", applied, power)


# ---- exact values


def _bounded(result: Fraction) -> Fraction:
    if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
        raise UnreadableError
    return result


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or (base == 0 and exponent <= 0):
        raise UnreadableError
    base_bits = base.numerator.bit_length() + base.denominator.bit_length() - 2  # 0 for 1 and -1: no power is longer
    if base_bits * abs(int(exponent)) > MAX_BITS:
        raise UnreadableError
    return base ** int(exponent)


def _exact_mixed(integer: Fraction, fraction: Fraction) -> Fraction:
    if fraction < 0:
        raise UnreadableError
    return integer + fraction


def _repeating_value(sign: str, integer: str, fixed: str, period: str) -> Fraction:
    r"""1.2\overline{34}: integer "1", fixed "2", period "34"."""
    numerator = int(integer + fixed + period) - int(integer + fixed)
    denominator = 10 ** len(fixed) * (10 ** len(period) - 1)
    value = Fraction(numerator, denominator)
    if sign:
        value = -value
    return _bounded(value)


_EXACT: dict[str, Callable[..., Fraction]] = {
    "number": Fraction, "+": operator.add, "-": operator.neg, "*": operator.mul, "/": operator.truediv,
    "^": _exact_power, "mixed": _exact_mixed,
}  # fmt: skip


def _exact_value(kind: str, *parts: Any) -> Fraction:
    return _bounded(_EXACT[kind](*parts))
