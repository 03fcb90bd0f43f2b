r"""The exact value of an answer that is arithmetic on literal numbers: fractions, decimals, mixed numbers, powers.

Every size is bounded, so that no input can make it slow. What exceeds a bound, or is anything but arithmetic, has no
value here (None).
"""

from __future__ import annotations

from fractions import Fraction

from topr_exp.grading.latex import Tokens, integer_like, number_like
from topr_exp.grading.reader import TokenReader, Unreadable

MAX_DIGITS = 400
MAX_BITS = 4000
MAX_EXPONENT = 1000
MAX_FACTORIAL = 100
MAX_TOKENS = 300
_SIGNS = frozenset("+-*/^!(){}") | {r"\frac"}


def rational_value(tokens: Tokens) -> Fraction | None:
    r"""The rational number that the tokens spell, None if they spell none. 2\frac{1}{3} is a mixed number."""
    if not tokens or len(tokens) > MAX_TOKENS:
        return None
    if not all(token in _SIGNS or number_like(token) for token in tokens):
        return _scientific(tokens)
    parser = _NumberParser(tokens)
    try:
        result = parser.sum()
    except (Unreadable, RecursionError):
        return None
    return result if parser.at == len(tokens) else None


def _scientific(tokens: Tokens) -> Fraction | None:
    """A calculator's 2.5e6, 1E-3."""
    sign = 1
    if tokens[0] in "+-":
        sign = -1 if tokens[0] == "-" else 1
        tokens = tokens[1:]
    if len(tokens) not in (3, 4) or tokens[1] not in ("e", "E") or not number_like(tokens[0]):
        return None
    exponent_sign, exponent = (tokens[2], tokens[3]) if len(tokens) == 4 else ("+", tokens[2])
    if exponent_sign not in "+-" or not integer_like(exponent) or len(exponent) > 3:
        return None
    try:
        return sign * _number(tokens[0]) * Fraction(10) ** (int(exponent) * (-1 if exponent_sign == "-" else 1))
    except Unreadable:
        return None


def _number(token: str) -> Fraction:
    if len(token) > MAX_DIGITS:
        raise Unreadable
    whole, _, decimals = token.partition(".")
    return Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))


def _bounded(result: Fraction) -> Fraction:
    if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
        raise Unreadable
    return result


class _NumberParser(TokenReader):
    def sum(self) -> Fraction:
        total = self._signed_term()
        while self._peek() in ("+", "-"):
            total = _bounded(total + self._signed_term())
        return total

    def _signed_term(self) -> Fraction:
        sign = 1
        while self._peek() in ("+", "-"):
            sign = -sign if self._peek() == "-" else sign
            self.at += 1
        return sign * self._term()

    def _term(self) -> Fraction:
        if integer_like(self._peek()) and (mixed := self._mixed()) is not None:
            return mixed
        product = self._power()
        while self._peek() in ("*", "/", "(", "{", r"\frac"):
            operator = self._peek()
            if operator in "*/":
                self.at += 1
            sign = -1 if operator in "*/" and self._peek() == "-" else 1
            self.at += sign < 0
            factor = sign * self._power()
            if operator == "/" and factor == 0:
                raise Unreadable
            product = _bounded(product / factor if operator == "/" else product * factor)
        return product

    def _mixed(self) -> Fraction | None:
        r"""2\frac{1}{3} and 2 1/3; None, with nothing taken, for anything else."""
        start = self.at
        whole = _number(self._peek())
        if self._peek(1) == r"\frac":
            self.at += 1
            part = self._fraction()
        elif integer_like(self._peek(1)) and self._peek(2) == "/" and integer_like(self._peek(3)):
            denominator = _number(self._peek(3))
            if denominator == 0:
                raise Unreadable
            part = _number(self._peek(1)) / denominator
            self.at += 4
        else:
            return None
        if part < 0 or self._peek() in ("^", "!", "*", "/", "(", "{", r"\frac"):
            self.at = start
            raise Unreadable  # 2\frac{1}{3}^2: nobody can tell
        return whole + part

    def _power(self) -> Fraction:
        base = self._factorial()
        if self._peek() != "^":
            return base
        self.at += 1
        self._take("{")
        exponent = self.sum()
        self._take("}")
        if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT or (base == 0 and exponent <= 0):
            raise Unreadable
        size = base.numerator.bit_length() + base.denominator.bit_length()
        if size * abs(int(exponent)) > MAX_BITS + 2 * abs(int(exponent)):
            raise Unreadable
        return _bounded(base ** int(exponent))

    def _factorial(self) -> Fraction:
        base = self._atom()
        if self._peek() != "!":
            return base
        self.at += 1
        if base.denominator != 1 or not 0 <= base <= MAX_FACTORIAL or self._peek() == "!":
            raise Unreadable
        product = 1
        for factor in range(2, int(base) + 1):
            product *= factor
        return Fraction(product)

    def _atom(self) -> Fraction:
        token = self._peek()
        if token and number_like(token):
            self.at += 1
            if self._peek() and number_like(self._peek()):
                raise Unreadable  # "3 4" is no number
            return _number(token)
        if token == r"\frac":
            return self._fraction()
        closing = {"(": ")", "{": "}"}.get(token)
        if closing is None:
            raise Unreadable
        self.at += 1
        inner = self.sum()
        self._take(closing)
        return inner

    def _fraction(self) -> Fraction:
        self._take(r"\frac")
        self._take("{")
        numerator = self.sum()
        self._take("}")
        self._take("{")
        denominator = self.sum()
        self._take("}")
        if denominator == 0:
            raise Unreadable
        return _bounded(numerator / denominator)
