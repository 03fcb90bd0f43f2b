"""The exact value of plain arithmetic on whole numbers, and the numbers that stand in it; nothing is evaluated."""

from __future__ import annotations

import re
from fractions import Fraction

from topr_exp.grading.reader import TokenReader, Unreadable

MAX_CHARS = 200
MAX_DIGITS = 12
_TOKENS = re.compile(rf"\s*([0-9]{{1,{MAX_DIGITS}}}(?![0-9])|[-+*/()])", re.ASCII)


def value_and_numbers(text: str) -> tuple[Fraction, list[int]] | None:
    """Evaluate a text of whole numbers, + - * / and parentheses; return its value and its numbers, else None.

    None too for a division by zero, for more than 200 characters or a number of more than 12 digits.
    """
    tokens = _tokens(text.strip()) if len(text) <= MAX_CHARS else None
    if not tokens:
        return None
    reader = _Arithmetic(tokens)
    try:
        value = reader.sum()
    except (Unreadable, ZeroDivisionError):
        return None
    if reader.at != len(tokens):
        return None
    return value, [int(token) for token in tokens if token.isdigit()]


def _tokens(text: str) -> tuple[str, ...] | None:
    found, at = [], 0
    while at < len(text):
        token = _TOKENS.match(text, at)
        if token is None:
            return None
        found.append(token[1])
        at = token.end()
    return tuple(found)


class _Arithmetic(TokenReader):
    def sum(self) -> Fraction:
        total = self._product()
        while self._peek() in ("+", "-"):
            sign = 1 if self._next() == "+" else -1
            total += sign * self._product()
        return total

    def _product(self) -> Fraction:
        product = self._factor()
        while self._peek() in ("*", "/"):
            product = product * self._factor() if self._next() == "*" else product / self._factor()
        return product

    def _factor(self) -> Fraction:
        token = self._next()
        if token == "-":
            return -self._factor()
        if token == "(":
            inside = self.sum()
            self._take(")")
            return inside
        if not token.isdigit():
            raise Unreadable
        return Fraction(int(token))

    def _next(self) -> str:
        token = self._peek()
        self.at += 1
        return token
