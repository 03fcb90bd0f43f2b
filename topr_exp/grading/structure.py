r"""Kinds of answers: one expression, a list, a tuple or interval, a union, a matrix, x = ..., or a < x < b.

`parse` cuts canonical tokens at their top-level separators. Order, brackets and names are then compared by our
conventions (docs/verdicts.md), and only single expressions have to be compared by value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from topr_exp.grading.expression import FUNCTIONS
from topr_exp.grading.extraction import last_boxed
from topr_exp.grading.latex import GREEK, MAX_CHARS, MAX_DEPTH, Tokens, TooComplex, integer_like, number_like, tokenize

MAX_ITEMS = 64


@dataclass(frozen=True)
class Leaf:
    """One expression, its unit cut off; `relation` where it holds =, <, ... and is no plain assignment."""

    tokens: Tokens
    unit: str | None = None
    relation: bool = False


@dataclass(frozen=True)
class Group:
    """Several expressions.

    Kind: "list" or "union" (no order), brackets such as "(]", ":" or a matrix's shape; "=" for a chain of equal ones,
    3 + 4 = 14 / 2 = 7, whose last item is what is answered, if none of the others differs from it.
    """

    kind: str
    items: tuple[Node, ...]
    tokens: Tokens


@dataclass(frozen=True)
class Named:
    """name = value, where the name is a variable, f(x), (x, y), a segment: anything that is not itself computed.

    Of an inequality of one name the value is the interval that it describes.
    """

    name: Tokens
    value: Node
    tokens: Tokens


Node = Leaf | Group | Named

_OPEN = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_RELATIONS = frozenset(("=", "<", ">", r"\leq", r"\geq", r"\neq", r"\in", r"\approx", r"\equiv", r"\subset"))
_RISING, _FALLING, _STRICT = frozenset(("<", r"\leq")), frozenset((">", r"\geq")), frozenset("<>")
_NAME_SIGNS = frozenset(("(", ")", ",", "|", "'", "_", "{", "}", ":", r"\angle", r"\triangle", r"\frac", r"\overline"))
# Units that contradict each other; any other word after a number is dropped unread ("18 cookies" is 18).
_UNITS = {
    spelling: spellings.split()[0]
    for spellings in (
        "cm centimeter centimeters centimetre centimetres", "mm millimeter millimeters", "m meter meters metre metres",
        "km kilometer kilometers", "in inch inches", "ft foot feet", "yd yard yards", "mi mile miles", "kg kilogram "
        "kilograms", "g gm gram grams", "lb lbs pound pounds", "oz ounce ounces", "s sec second seconds", "min minute "
        "minutes", "hr hrs h hour hours", "day days", "week weeks", "month months", "year years", "am", "pm",
        "dollar dollars usd", "cent cents", "euro euros eur", "degree degrees deg", "radian radians rad", "mph", "kph",
        "liter liters l", "ml", "mg",
    )
    for spelling in spellings.split()
}  # fmt: skip


@lru_cache(maxsize=1 << 14)
def parse(text: str) -> Node:
    """The structure of an answer. Raises TooComplex where a bound is exceeded."""
    if len(text) > MAX_CHARS:
        raise TooComplex
    while r"\boxed" in text or r"\fbox" in text:
        inner = last_boxed(text)
        if inner is None:
            raise TooComplex
        text = inner
    tokens = tokenize(text)
    if max(_levels(tokens), default=0) > MAX_DEPTH:
        raise TooComplex
    return _node(tokens, 0)


def textual(tokens: Tokens) -> str | None:
    """The letters of an answer in words, for comparison; None for mathematics. Single letters keep their case."""
    if any(token[0] == "\\" or token in "=<>+*/^" for token in tokens):
        return None
    runs = [token for token in tokens if token.isalpha() and token.isascii()]
    worded = any(len(run) > 2 for run in runs) and all(t.isalnum() and t.isascii() for t in tokens)
    if not worded and not any(token[0] == '"' for token in tokens):
        return None
    letters = "".join(char for token in tokens for char in token if char.isalnum() or char == ":")
    return letters if len(letters) == 1 else letters.lower()


def _split(tokens: Tokens, separators: frozenset[str] | set[str]) -> tuple[list[Tokens], list[str]]:
    """Cut at top-level separators: the parts and the separators between them."""
    parts: list[Tokens] = []
    found: list[str] = []
    level = start = 0
    for i, token in enumerate(tokens):
        if token in _OPEN or token == r"\begin":
            level += 1
        elif token in _CLOSE or token == r"\end":
            level -= 1
        elif level == 0 and token in separators:
            parts.append(tokens[start:i])
            found.append(token)
            start = i + 1
    return [*parts, tokens[start:]], found


def _levels(tokens: Tokens) -> Iterator[int]:
    """The number of open brackets behind each token."""
    return accumulate((token in _OPEN) - (token in _CLOSE) for token in tokens)


def _enclosed(tokens: Tokens) -> bool:
    """Check that the first bracket closes at the very end (by any bracket: [0,1) is one interval)."""
    if len(tokens) < 2 or tokens[0] not in _OPEN or tokens[-1] not in _CLOSE:
        return False
    return next((i for i, level in enumerate(_levels(tokens)) if level == 0), 0) == len(tokens) - 1


def _node(tokens: Tokens, depth: int) -> Node:
    if depth > MAX_DEPTH:
        raise TooComplex
    while _enclosed(tokens) and tokens[0] == "{" and tokens[-1] == "}":
        tokens = tokens[1:-1]
    if tokens[:1] == ("+",):
        tokens = tokens[1:]
    parts, _ = _split(tokens, {","})
    if len(parts) > 1:
        return _collect("list", [part for part in parts if part], tokens, depth)
    relations = _split(tokens, _RELATIONS)
    if relations[1]:
        return _relation(tokens, *relations, depth)
    unions, _ = _split(tokens, {r"\cup"})
    if len(unions) > 1 and all(unions):
        return _collect("union", unions, tokens, depth)
    return _brackets(tokens, depth) or _matrix(tokens, depth) or _plus_minus(tokens, depth) or _ratio(tokens, depth)


def _collect(kind: str, parts: list[Tokens], tokens: Tokens, depth: int) -> Node:
    if len(parts) > MAX_ITEMS:
        raise TooComplex
    items: list[Node] = []
    for part in parts:
        item = _node(part, depth + 1)
        if kind == "list" and isinstance(item, Group) and item.kind == "list" and part[0] != r"\{":
            items += item.items  # 1 \pm 2 inside a list
        else:
            items.append(item)
    return items[0] if len(items) == 1 and kind == "list" else Group(kind, tuple(items), tokens)


def _brackets(tokens: Tokens, depth: int) -> Node | None:
    if tokens == (r"\emptyset",):
        return Group("list", (), tokens)
    if tokens == (r"\mathbb", "{", "R", "}"):
        tokens = ("(", "-", r"\infty", ",", r"\infty", ")")
    if not _enclosed(tokens):
        return None
    inner = tokens[1:-1]
    parts = [part for part in _split(inner, {","})[0] if part]
    if tokens[0] == r"\{" and tokens[-1] == r"\}":
        if "|" in inner or ":" in inner:
            return None  # a set builder
        return _collect("list", list(dict.fromkeys(parts)), tokens, depth)
    if len(parts) == 1:
        return _node(inner, depth + 1) if _OPEN[tokens[0]] == tokens[-1] else None
    kind = {r"\langle": "<", r"\{": "{"}.get(tokens[0], tokens[0]) + {r"\rangle": ">"}.get(tokens[-1], tokens[-1])
    return _collect(kind, parts, tokens, depth)


def _matrix(tokens: Tokens, depth: int) -> Node | None:
    if tokens[:4] != (r"\begin", "{", "pmatrix", "}") or tokens[-4:-2] != (r"\end", "{") or tokens.count(r"\begin") > 1:
        return None
    body = tokens[4:-4]
    rows = [_split(row, {"&"})[0] for row in _split(body, {r"\\"})[0] if row]
    if not rows or len({len(row) for row in rows}) > 1 or len(rows) * len(rows[0]) > MAX_ITEMS:
        return None
    items = tuple(_node(cell, depth + 1) for row in rows for cell in row)
    return Group(f"{len(rows)}x{len(rows[0])}", items, tokens)


def _plus_minus(tokens: Tokens, depth: int) -> Node | None:
    r"""a \pm b is the list of both; two signs in one expression stay as they are."""
    if sum(token in (r"\pm", r"\mp") for token in tokens) != 1:
        return None
    at = next(i for i, token in enumerate(tokens) if token in (r"\pm", r"\mp"))
    plus = "" if at == 0 or tokens[at - 1] in _OPEN else "+"
    branches = [tuple(t for t in (*tokens[:at], sign, *tokens[at + 1 :]) if t) for sign in (plus, "-")]
    return Group("list", tuple(_node(branch, depth + 1) for branch in branches), tokens)


def _ratio(tokens: Tokens, depth: int) -> Node:
    parts, found = _split(tokens, {":"})
    if found and all(parts):
        if textual(tokens) is not None:  # 4:30 p.m.
            return Leaf(tokens)
        return Group(":", tuple(_leaf(part) for part in parts), tokens)
    return _leaf(tokens)


def _relation(tokens: Tokens, parts: list[Tokens], found: list[str], depth: int) -> Node:
    kinds = set(found)
    if r"\approx" in kinds and kinds <= {"=", r"\approx"}:
        return _approximation(tokens, parts, found, depth)
    if not all(parts):
        return Leaf(tokens, relation=True)
    if kinds == {r"\in"} and _is_name(parts[0]):
        return Named(parts[0], _node(parts[-1], depth + 1), tokens)
    if kinds == {"="}:
        if _is_name(parts[0]):
            return Named(parts[0], _chain(parts[1:], depth), tokens)
        if all(_contradictable(part, parts[-1]) for part in parts):
            return _chain(parts, depth)
    return _range(tokens, parts, found, depth) or Leaf(tokens, relation=True)


def _approximation(tokens: Tokens, parts: list[Tokens], found: list[str], depth: int) -> Node:
    """The exact value before the first approximation counts, if there is one: x = 1/3 ≈ 0.33 is x = 1/3."""
    first = found.index(r"\approx")
    name = parts[0] if len(parts) > 1 and _is_name(parts[0]) else None
    exact = parts[1 if name else 0 : first + 1] or parts[-1:]
    if not all(exact):
        return Leaf(tokens, relation=True)
    value = _chain(exact, depth)
    return Named(name, value, tokens) if name else value


def _chain(parts: list[Tokens], depth: int) -> Node:
    """The last of equal parts, together with those that could contradict it."""
    last = parts[-1]
    nodes = tuple(_node(part, depth + 1) for part in parts[:-1] if _contradictable(part, last))
    answer = _node(last, depth + 1)
    tokens = tuple(token for part in parts for token in ("=", *part))[1:]
    return Group("=", (*nodes, answer), tokens) if nodes else answer


def _contradictable(part: Tokens, last: Tokens) -> bool:
    r"""Check that both parts of a chain have to be the same value as they are written.

    Not where one holds letters (A = \pi r^2 = 25\pi), nor where the unit changes (1 hour = 60 minutes, 0.5 = 50\%).
    """
    values = [_leaf(tokens).tokens for tokens in (part, last)]
    if any(token.isalpha() or token in GREEK for value in values for token in value):
        return False
    units = {tokens[len(value) :] for tokens, value in zip((part, last), values, strict=True)}
    return len(units) == 1 or (() in units and units.isdisjoint((("%",), (r"\circ",))))


def _is_name(tokens: Tokens) -> bool:
    r"""x, x_1, \theta, f(x), (x, y), |AB|, AB:CD, \angle ABC. Digits only in subscripts and arguments of a function."""
    if not any(token.isalpha() or token[0] == '"' or token in GREEK for token in tokens):
        return False
    level = 0
    for i, token in enumerate(tokens):
        level += (token in ("{", "(")) - (token in ("}", ")"))
        if number_like(token) or token in ("-", "+"):
            if level == 0 or not (tokens[1:2] == ("(",) or "_" in tokens[:i]):
                return False
        elif not (token.isalpha() or token[0] == '"' or token in _NAME_SIGNS or token in GREEK):
            return False
    return True


def _range(tokens: Tokens, parts: list[Tokens], found: list[str], depth: int) -> Named | None:
    r"""x > 5, 5 < x, a \leq x < b (in either direction) as an interval."""
    if not _RISING.issuperset(found) and not _FALLING.issuperset(found):
        return None
    rising = found[0] in _RISING
    if len(found) == 1 and _is_name(parts[0]) != _is_name(parts[1]):
        end: Tokens = (r"\infty",) if rising == _is_name(parts[1]) else ("-", r"\infty")
        strict = "<" if rising else ">"
        parts, found = ([end, *parts], [strict, *found]) if _is_name(parts[0]) else ([*parts, end], [*found, strict])
    if len(found) != 2 or not _is_name(parts[1]):
        return None
    low, name, high = parts if rising else parts[::-1]
    if "|" in name or set(name) & {token for token in (*low, *high) if token.isalpha()}:
        return None
    first, last = found if rising else found[::-1]
    kind = ("(" if first in _STRICT else "[") + (")" if last in _STRICT else "]")
    interval = Group(kind, (_node(low, depth + 1), _node(high, depth + 1)), (*low, ",", *high))
    return Named(name, interval, tokens)


def _leaf(tokens: Tokens) -> Leaf:
    """An expression without its unit: words, degrees and percent signs behind a value."""
    value = tokens
    unit: str | None = None
    while len(value) > 1:
        if value[-1] == r"\circ" and not FUNCTIONS.isdisjoint(value):
            break  # \cos 15^\circ: the sign belongs to the argument
        if value[-1] in (r"\circ", "%"):
            value, unit = value[:-1], unit or {r"\circ": "degree"}.get(value[-1])
            continue
        powered = len(value) > 5 and value[-4] == "^" and value[-1] == "}" and integer_like(value[-2])
        body = value[:-4] if powered else value
        if len(body) < 2 or not _is_unit(body[:-1], body[-1]):
            break
        known = _UNITS.get(re.sub(r"[^a-z]", "", body[-1].lower()))
        unit = unit or (known and known + (value[-2] if powered else ""))
        value = body[:-1]
    return Leaf(value, unit)


def _is_unit(before: Tokens, token: str) -> bool:
    """A text behind a value, a known unit or a word of three letters behind a number.

    A product of letters is none: 6abc, and what follows other letters.
    """
    if token[0] == '"':
        return textual(before) is None and any(char.isalpha() for char in token)
    if not (token.isalpha() and token.isascii() and len(token) > 1):
        return False
    after_number = number_like(before[-1]) or (before[-1] == "}" and r"\frac" in before)
    algebra = token.lower() in "abcdefghijklmnopqrstuvwxyz" or any(each.isalpha() for each in before)
    return after_number and (token.lower() in _UNITS or (len(token) > 2 and not algebra))
