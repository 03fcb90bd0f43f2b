r"""Kinds of answers: one expression, a list, a tuple or interval, a union, a matrix, x = ..., or a < x < b.

`parse` cuts canonical tokens at their top-level separators. Order, brackets and names are then compared by our
conventions (docs/verdicts.md), and only single expressions have to be compared by value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from topr_exp.grading.expression import FUNCTIONS
from topr_exp.grading.extraction import last_boxed
from topr_exp.grading.latex import (
    GREEK,
    MAX_CHARS,
    MAX_DEPTH,
    Tokens,
    TooComplexError,
    canonical_spellings,
    integer_like,
    number_like,
    tokenize,
    words,
)

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

    Kind: "list" or "union" (no order), brackets such as "(]", ":" or a matrix's shape. "=" is a chain of equal values,
    3 + 4 = 14 / 2 = 7: its last item is the answer, as long as no other item differs from it.
    """

    kind: str
    items: tuple[Node, ...]
    tokens: Tokens


@dataclass(frozen=True)
class Named:
    """name = value. The name is a variable, f(x), (x, y), a segment: anything that is not itself computed.

    The value of an inequality of one name is the interval that it describes.
    """

    name: Tokens
    value: Node
    tokens: Tokens


Node = Leaf | Group | Named

_OPEN = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_DEPTH_STEP = dict.fromkeys(_OPEN, 1) | dict.fromkeys(_CLOSE, -1)
_RELATIONS = words(r"= < > \leq \geq \neq \in \approx \equiv \subset")
_RISING = words(r"< \leq")
_FALLING = words(r"> \geq")
_STRICT = frozenset("<>")
_MATHEMATICAL_SIGNS = frozenset("=<>+*/^")  # no words have them
_NAME_SIGNS = words(r", | ' _ : \angle \triangle \frac \overline")
# Units that contradict each other; any other word after a number is dropped unread ("18 cookies" is 18).
_UNIT_OF_SPELLING = canonical_spellings(
    """
    cm centimeter centimeters centimetre centimetres
    mm millimeter millimeters
    m meter meters metre metres
    km kilometer kilometers
    in inch inches
    ft foot feet
    yd yard yards
    mi mile miles
    kg kilogram kilograms
    g gm gram grams
    mg
    lb lbs pound pounds
    oz ounce ounces
    liter liters l
    ml
    s sec second seconds
    min minute minutes
    hr hrs h hour hours
    day days
    week weeks
    month months
    year years
    am
    pm
    dollar dollars usd
    cent cents
    euro euros eur
    degree degrees deg
    radian radians rad
    mph
    kph
    """
)


@lru_cache(maxsize=1 << 14)
def parse(text: str) -> Node:
    """The structure of an answer. Raises TooComplexError where a bound is exceeded."""
    if len(text) > MAX_CHARS:
        raise TooComplexError
    while r"\boxed" in text or r"\fbox" in text:
        content = last_boxed(text)
        if content is None:
            raise TooComplexError
        text = content
    tokens = tokenize(text)
    if max(_bracket_depths(tokens), default=0) > MAX_DEPTH:
        raise TooComplexError
    return _node(tokens, 0)


def textual(tokens: Tokens) -> str | None:
    """The letters of an answer in words, for comparison; None for mathematics. Single letters keep their case."""
    if any(token[0] == "\\" or token in _MATHEMATICAL_SIGNS for token in tokens):
        return None
    if not (_is_text(tokens) or _is_wordy(tokens)):
        return None
    characters = "".join(tokens)
    letters = "".join(character for character in characters if character.isalnum() or character == ":")
    if len(letters) == 1:
        return letters
    return letters.lower()


def _is_text(tokens: Tokens) -> bool:
    r"""Check for a \text{...} that is no mathematics."""
    return any(token[0] == '"' for token in tokens)


def _is_wordy(tokens: Tokens) -> bool:
    """Check for words and numbers alone, with a word of three letters, or "no"."""
    if not all(token.isalnum() and token.isascii() for token in tokens):
        return False
    return any(token.isalpha() and (len(token) > 2 or token.lower() == "no") for token in tokens)


def _holds_letters(tokens: Tokens) -> bool:
    """Check for names: letters, Greek ones too."""
    return any(token.isalpha() or token in GREEK for token in tokens)


class _Cut(NamedTuple):
    """Tokens cut at separators; n parts have n - 1 separators between them."""

    parts: list[Tokens]
    separators: list[str]


def _cut(tokens: Tokens, separators: Collection[str]) -> _Cut:
    """Cut at the separators that stand outside of all brackets."""
    parts: list[Tokens] = []
    separators_met: list[str] = []
    depth = start = 0
    for index, token in enumerate(tokens):
        if token in _OPEN or token == r"\begin":
            depth += 1
        elif token in _CLOSE or token == r"\end":
            depth -= 1
        elif depth == 0 and token in separators:
            parts.append(tokens[start:index])
            separators_met.append(token)
            start = index + 1
    parts.append(tokens[start:])
    return _Cut(parts, separators_met)


def _items_between(separator: str, tokens: Tokens) -> list[Tokens]:
    """The parts of a cut that are not empty."""
    return [part for part in _cut(tokens, {separator}).parts if part]


def _bracket_depths(tokens: Tokens) -> Iterator[int]:
    """The number of open brackets behind each token."""
    return accumulate(_DEPTH_STEP.get(token, 0) for token in tokens)


def _is_enclosed(tokens: Tokens) -> bool:
    """Check that the first bracket closes at the very end (by any bracket: [0,1) is one interval)."""
    if len(tokens) < 2 or tokens[0] not in _OPEN:
        return False
    *inner_depths, last_depth = _bracket_depths(tokens)
    return last_depth == 0 and 0 not in inner_depths


def _node(tokens: Tokens, depth: int) -> Node:
    """The structure of tokens; depth: how many structures surround it."""
    if depth > MAX_DEPTH:
        raise TooComplexError
    while _is_enclosed(tokens) and tokens[0] == "{" and tokens[-1] == "}":
        tokens = tokens[1:-1]
    if tokens[:1] == ("+",):
        tokens = tokens[1:]
    if len(_cut(tokens, {","}).parts) > 1:
        return _group("list", _items_between(",", tokens), tokens, depth)
    relations = _cut(tokens, _RELATIONS)
    if relations.separators:
        return _relation(tokens, relations, depth)
    sets = _cut(tokens, {r"\cup"}).parts
    if len(sets) > 1 and all(sets):
        return _group("union", sets, tokens, depth)
    return _brackets(tokens, depth) or _matrix(tokens, depth) or _plus_minus(tokens, depth) or _ratio(tokens)


def _group(kind: str, parts: list[Tokens], tokens: Tokens, depth: int) -> Node:
    """A group of the parts; a list of one item is that item."""
    if len(parts) > MAX_ITEMS:
        raise TooComplexError
    items: list[Node] = []
    for part in parts:
        item = _node(part, depth + 1)
        is_set = part[0] == r"\{"
        if kind == "list" and isinstance(item, Group) and item.kind == "list" and not is_set:
            items += item.items  # 1 \pm 2 inside a list
        else:
            items.append(item)
    if len(items) == 1:
        return items[0]
    return Group(kind, tuple(items), tokens)


def _brackets(tokens: Tokens, depth: int) -> Node | None:
    """A set, tuple, interval or expression in brackets; None for anything else."""
    if tokens == (r"\emptyset",):
        return Group("list", (), tokens)
    if tokens == (r"\mathbb", "{", "R", "}"):
        tokens = ("(", "-", r"\infty", ",", r"\infty", ")")
    if not _is_enclosed(tokens):
        return None
    opening = tokens[0]
    closing = tokens[-1]
    content = tokens[1:-1]
    parts = _items_between(",", content)
    if opening == r"\{" and closing == r"\}":
        if "|" in content or ":" in content:  # {x | x > 5}
            return None
        return _group("list", list(dict.fromkeys(parts)), tokens, depth)
    if len(parts) == 1:
        if _OPEN[opening] == closing:
            return _node(content, depth + 1)
        return None
    opening_sign = {r"\langle": "<", r"\{": "{"}.get(opening, opening)
    closing_sign = {r"\rangle": ">"}.get(closing, closing)
    return _group(opening_sign + closing_sign, parts, tokens, depth)


def _matrix(tokens: Tokens, depth: int) -> Node | None:
    """One matrix as its cells, row by row; None for anything else."""
    begins = tokens[:4] == (r"\begin", "{", "pmatrix", "}")
    ends = tokens[-4:-2] == (r"\end", "{")
    if not (begins and ends) or tokens.count(r"\begin") > 1:
        return None
    content = tokens[4:-4]
    rows = [_cut(row, {"&"}).parts for row in _items_between(r"\\", content)]
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        return None
    (width,) = widths
    if len(rows) * width > MAX_ITEMS:
        return None
    cells: list[Node] = []
    for row in rows:
        cells += [_node(cell, depth + 1) for cell in row]
    return Group(f"{len(rows)}x{width}", tuple(cells), tokens)


def _plus_minus(tokens: Tokens, depth: int) -> Node | None:
    r"""a \pm b is the list of both; two signs in one expression stay as they are."""
    positions = [index for index, token in enumerate(tokens) if token in (r"\pm", r"\mp")]
    if len(positions) != 1:
        return None
    (sign_index,) = positions
    center = tokens[:sign_index]
    deviation = tokens[sign_index + 1 :]
    has_center = bool(center) and center[-1] not in _OPEN  # \frac{\pm 1}{2} has none
    plus = ("+",) if has_center else ()
    sum_node = _node((*center, *plus, *deviation), depth + 1)
    difference_node = _node((*center, "-", *deviation), depth + 1)
    return Group("list", (sum_node, difference_node), tokens)


def _ratio(tokens: Tokens) -> Node:
    """a:b, or else one expression."""
    parts, colons = _cut(tokens, {":"})
    if not colons or not all(parts):
        return _leaf(tokens)
    if textual(tokens) is not None:  # 4:30 p.m.
        return Leaf(tokens)
    return Group(":", tuple(_leaf(part) for part in parts), tokens)


def _relation(tokens: Tokens, relations: _Cut, depth: int) -> Node:
    """An assignment, a chain of equal values, an interval, or a relation as one expression."""
    parts = relations.parts
    kinds = set(relations.separators)
    if r"\approx" in kinds and kinds <= {"=", r"\approx"}:
        return _approximation(tokens, relations, depth)
    if not all(parts):
        return Leaf(tokens, relation=True)
    if kinds == {r"\in"} and _is_name(parts[0]):
        return Named(parts[0], _node(parts[-1], depth + 1), tokens)
    if kinds == {"="}:
        if _is_name(parts[0]):
            return Named(parts[0], _chain(parts[1:], depth), tokens)
        if all(_contradictable(part, parts[-1]) for part in parts):
            return _chain(parts, depth)
    return _interval(tokens, relations, depth) or Leaf(tokens, relation=True)


def _approximation(tokens: Tokens, relations: _Cut, depth: int) -> Node:
    """The exact value before the first approximation counts, if there is one: x = 1/3 ≈ 0.33 is x = 1/3."""
    parts, signs = relations
    exact_parts = parts[: signs.index(r"\approx") + 1]
    has_name = _is_name(parts[0])
    if has_name:
        exact_parts = exact_parts[1:] or [parts[-1]]  # x ≈ 0.33 has no exact value
    if not all(exact_parts):
        return Leaf(tokens, relation=True)
    value = _chain(exact_parts, depth)
    if has_name:
        return Named(parts[0], value, tokens)
    return value


def _chain(parts: list[Tokens], depth: int) -> Node:
    """The last of equal parts, together with the parts that could contradict it."""
    answer_tokens = parts[-1]
    witnesses = [_node(part, depth + 1) for part in parts[:-1] if _contradictable(part, answer_tokens)]
    answer = _node(answer_tokens, depth + 1)
    if not witnesses:
        return answer
    tokens: list[str] = []
    for part in parts:
        tokens += ["=", *part]
    return Group("=", (*witnesses, answer), tuple(tokens[1:]))


def _contradictable(part: Tokens, answer: Tokens) -> bool:
    r"""Check that two parts of a chain can be compared as they are written.

    False where one holds letters (A = \pi r^2 = 25\pi) and where the unit changes (1 hour = 60 minutes, 0.5 = 50\%).
    """
    part_value = _leaf(part).tokens
    answer_value = _leaf(answer).tokens
    if _holds_letters(part_value) or _holds_letters(answer_value):
        return False
    part_unit = part[len(part_value) :]
    answer_unit = answer[len(answer_value) :]
    if part_unit == answer_unit:
        return True
    unit = part_unit or answer_unit
    is_written_once = not (part_unit and answer_unit)  # 3 + 4 = 7 cm
    return is_written_once and unit not in (("%",), (r"\circ",))


def _is_name(tokens: Tokens) -> bool:
    r"""x, x_1, \theta, f(x), (x, y), |AB|, AB:CD, \angle ABC. Digits only in subscripts and arguments of a function."""
    if not (_holds_letters(tokens) or _is_text(tokens)):
        return False
    is_function = tokens[1:2] == ("(",)
    depth = 0
    for index, token in enumerate(tokens):
        if token in ("{", "("):
            depth += 1
        elif token in ("}", ")"):
            depth -= 1
        elif number_like(token) or token in ("-", "+"):
            has_subscript = "_" in tokens[:index]
            if depth == 0 or not (is_function or has_subscript):
                return False
        elif not (token.isalpha() or token[0] == '"' or token in _NAME_SIGNS or token in GREEK):
            return False
    return True


def _interval(tokens: Tokens, relations: _Cut, depth: int) -> Named | None:
    r"""x > 5, 5 < x, a \leq x < b (in either direction) as an interval; None for other relations."""
    parts, signs = relations
    if _FALLING.issuperset(signs):  # read from right to left it rises
        parts = parts[::-1]
        signs = signs[::-1]
    elif not _RISING.issuperset(signs):
        return None
    if len(signs) == 1:
        left_is_name = _is_name(parts[0])
        right_is_name = _is_name(parts[1])
        if left_is_name and not right_is_name:  # x < 5
            parts = [("-", r"\infty"), *parts]
            signs = ["<", *signs]
        elif right_is_name and not left_is_name:  # 5 < x
            parts = [*parts, (r"\infty",)]
            signs = [*signs, "<"]
    if len(signs) != 2:
        return None
    low, name, high = parts
    letters_of_bounds = {token for token in (*low, *high) if token.isalpha()}
    if not _is_name(name) or "|" in name or letters_of_bounds.intersection(name):
        return None
    opening = "(" if signs[0] in _STRICT else "["
    closing = ")" if signs[1] in _STRICT else "]"
    bounds = _node(low, depth + 1), _node(high, depth + 1)
    interval = Group(opening + closing, bounds, (*low, ",", *high))
    return Named(name, interval, tokens)


def _leaf(tokens: Tokens) -> Leaf:
    """An expression without its unit: words, degrees and percent signs behind a value."""
    value = tokens
    unit: str | None = None
    while len(value) > 1:
        measure = _cut_unit(value)
        if measure is None:
            break
        value = measure.value
        unit = unit or measure.unit
    return Leaf(value, unit)


class _Measure(NamedTuple):
    """A value and the unit behind it; None for a percent sign and for words that are in no table."""

    value: Tokens
    unit: str | None


def _cut_unit(tokens: Tokens) -> _Measure | None:
    """Cut the last unit off; None where the tokens end with none."""
    if tokens[-1] == "%":
        return _Measure(tokens[:-1], None)
    if tokens[-1] == r"\circ":
        if not FUNCTIONS.isdisjoint(tokens):
            return None  # \cos 15^\circ: the sign belongs to the argument
        return _Measure(tokens[:-1], "degree")
    # cm^{2}: four tokens behind the unit.
    is_powered = len(tokens) > 5 and tokens[-4] == "^" and tokens[-1] == "}" and integer_like(tokens[-2])
    power = tokens[-2] if is_powered else ""
    body = tokens[:-4] if is_powered else tokens
    value = body[:-1]
    word = body[-1]
    if not value or not _is_unit(word, value):
        return None
    unit = _UNIT_OF_SPELLING.get(re.sub(r"[^a-z]", "", word.lower()))
    if unit is not None:
        power += "".join(re.findall(r"\d", word))  # \mathrm{cm^2}
        unit += power
    return _Measure(value, unit)


def _is_unit(token: str, value: Tokens) -> bool:
    """Check for a text behind a value, and for a known unit or a word of three letters behind a number.

    A product of letters is none: 6abc, and what follows other letters.
    """
    if token[0] == '"':
        return textual(value) is None and any(character.isalpha() for character in token)
    if not (token.isalpha() and token.isascii() and len(token) > 1):
        return False
    follows_number = number_like(value[-1]) or (value[-1] == "}" and r"\frac" in value)
    if not follows_number:
        return False
    word = token.lower()
    if word in _UNIT_OF_SPELLING:
        return True
    is_run_of_alphabet = word in "abcdefghijklmnopqrstuvwxyz"  # such as abc
    is_product = is_run_of_alphabet or any(letters.isalpha() for letters in value)
    return len(word) > 2 and not is_product
