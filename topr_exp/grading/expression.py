r"""Parses plain expressions: canonical tokens to a small tree, or to nothing where their meaning is in doubt.

There is no tree where people would disagree on what is meant (1/2x, \sin x y, 2\frac{1}{2}x), nor for what is rarer
(sums, integrals, matrices): latex2sympy2 is asked instead. The tree is only data: (operator, operands...).
"""

from __future__ import annotations

from functools import lru_cache

from topr_exp.grading.latex import GREEK, Tokens, integer_like, number_like, words
from topr_exp.grading.reader import TokenReader, Unreadable

MAX_TOKENS = 300

# ("number", "2.5"), ("name", "x_1"), ("constant", "pi"), ("+", a, b), ("*", a, b), ("/", a, b), ("-", a), ("^", a, b),
# ("root", radicand, degree), ("sin", a), ...
Tree = tuple[object, ...]

FUNCTIONS = words(r"\sin \cos \tan \sec \csc \cot \arcsin \arccos \arctan \sinh \cosh \tanh \ln")
_CONSTANTS = {r"\pi": "pi", "e": "e", "i": "i"}
_ENDS = words("+ - ) }") | {""}


@lru_cache(maxsize=1 << 12)
def expression_tree(tokens: Tokens) -> Tree | None:
    """The expression that the tokens spell beyond doubt, None where there is any."""
    if not tokens or len(tokens) > MAX_TOKENS:
        return None
    parser = _ExpressionParser(_letters(tokens))
    try:
        result = parser.sum()
    except Unreadable:
        return None
    return result if parser.at == len(parser.tokens) else None


def _letters(tokens: Tokens) -> Tokens:
    """Runs of letters are products of single letters."""
    out: list[str] = []
    for token in tokens:
        out += token if token.isalpha() and token.isascii() else [token]
    return tuple(out)


class _ExpressionParser(TokenReader):
    def sum(self) -> Tree:
        total = self._signed_term()
        while self._peek() in ("+", "-"):
            total = ("+", total, self._signed_term())
        return total

    def _signed_term(self) -> Tree:
        negative = False
        while self._peek() in ("+", "-"):
            negative ^= self._peek() == "-"
            self.at += 1
        return ("-", self._term()) if negative else self._term()

    def _term(self) -> Tree:
        """Factors side by side or with *; a slash only between two single factors, or behind a product in full."""
        product = self._power()
        while True:
            if self._peek() == "*":
                self.at += 1
                product = ("*", product, self._power())
            elif self._peek() == "/":
                self.at += 1
                product = ("/", product, self._power())
                if self._peek() not in _ENDS:
                    raise Unreadable
            elif self._starts_factor():
                product = ("*", product, self._power())
            else:
                return product

    def _starts_factor(self) -> bool:
        token = self._peek()
        if not token or token in _ENDS:
            return False
        if number_like(token) or (token == r"\frac" and self._mixed()):
            raise Unreadable
        return True

    def _mixed(self) -> bool:
        """Check that the fraction ahead stands behind an integer and is one of integers."""
        before = self.tokens[self.at - 1]
        return integer_like(before) and integer_like(self._peek(2)) and integer_like(self._peek(5))

    def _power(self) -> Tree:
        base = self._atom()
        while self._peek() in ("^", "!"):
            if self._peek() == "!":
                raise Unreadable
            self.at += 1
            base = ("^", base, self._braced())
            if self._peek() == "^":
                raise Unreadable
        return base

    def _braced(self) -> Tree:
        self._take("{")
        inner = self.sum()
        self._take("}")
        return inner

    def _atom(self) -> Tree:
        token = self._peek()
        self.at += 1
        if not token:
            raise Unreadable
        if number_like(token):
            return self._degrees(("number", token))
        if token in _CONSTANTS and self._peek() != "_":
            return ("constant", _CONSTANTS[token])
        if (token.isalpha() and token.isascii()) or token in GREEK:
            return ("name", token + self._subscript())
        if token == r"\frac":
            return ("/", self._braced(), self._braced())
        if token == r"\sqrt":
            return self._root()
        if token in FUNCTIONS:
            return self._function(token)
        if token in "({":
            inner = self.sum()
            self._take(")" if token == "(" else "}")
            return inner
        raise Unreadable

    def _degrees(self, number: Tree) -> Tree:
        if self._peek() != r"\circ":
            return number
        self.at += 1
        return ("*", number, ("/", ("constant", "pi"), ("number", "180")))

    def _subscript(self) -> str:
        """_{1}, _{n}, _{10}: a subscript of one token."""
        if self._peek() != "_":
            return ""
        self.at += 1
        self._take("{")
        name = self._peek()
        if not name.isalnum():
            raise Unreadable
        self.at += 1
        self._take("}")
        return "_" + name

    def _root(self) -> Tree:
        degree: Tree = ("number", "2")
        if self._peek() == "[":
            self.at += 1
            degree = ("number", self._peek())
            if not integer_like(self._peek()):
                raise Unreadable
            self.at += 1
            self._take("]")
        return ("root", self._braced(), degree)

    def _function(self, name: str) -> Tree:
        """sin(...), sin x, sin 2x, sin^2 x: the argument ends with the term; nothing may follow a bracketed one."""
        power: Tree | None = None
        if self._peek() == "^":
            self.at += 1
            power = self._braced()
            if power[0] == "-":  # an inverse function, or a reciprocal
                raise Unreadable
        if self._peek() in ("(", "{"):
            argument = self._atom()
            if self._peek() not in _ENDS and self._peek() not in FUNCTIONS:
                raise Unreadable
        else:
            argument = self._plain_product()
        applied: Tree = (name[1:], argument)
        return applied if power is None else ("^", applied, power)

    def _plain_product(self) -> Tree:
        """2x, \\frac{\\pi}{3}: single factors side by side, up to the end or the next function."""
        argument = self._power()
        while self._peek() not in _ENDS and self._peek() not in FUNCTIONS:
            if self._peek() in ("*", "/", "(") or not self._starts_factor():
                raise Unreadable
            argument = ("*", argument, self._power())
        return argument
