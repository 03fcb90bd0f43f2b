"""Token reader that the parsers of numbers (rational.py) and expressions (expression.py) share."""

from __future__ import annotations

from topr_exp.grading.latex import Tokens


class Unreadable(Exception):
    """The tokens are none of what is read for, or nobody can tell what they mean."""


class TokenReader:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.at = 0

    def _peek(self, ahead: int = 0) -> str:
        """The token so many ahead; "" behind the end."""
        position = self.at + ahead
        return self.tokens[position] if position < len(self.tokens) else ""

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise Unreadable
        self.at += 1
