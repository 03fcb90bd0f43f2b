"""Base class of the settings' dataclasses, and ranges of their keys."""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Range:
    """The values that a key may have: in words, for the message to the user, and as a test."""

    allowed: str
    holds: Callable[[Any], bool]


def at_least(least: float, allowed: str = "") -> Range:
    return Range(allowed or f"{least} or more", lambda value: bool(value >= least))


def above(limit: float, allowed: str = "") -> Range:
    return Range(allowed or f"above {limit}", lambda value: bool(value > limit))


def within(interval: str) -> Range:
    """The numbers of an interval as it is written, such as "(0, 1]"."""
    low, high = (float(end) for end in interval[1:-1].split(","))

    def holds(value: float) -> bool:
        above_low = value >= low if interval[0] == "[" else value > low
        return above_low and (value <= high if interval[-1] == "]" else value < high)

    return Range(f"in {interval}", holds)


FINITE = Range("a finite number", math.isfinite)
Count = Annotated[int, at_least(1)]
OptionalCount = Annotated[int | None, at_least(1, "null or 1 or more")]
CountOrAll = Annotated[int | None, at_least(1, "null (all) or 1 or more")]
Seed = Annotated[int, at_least(0)]


class Section:
    """Base of the settings' dataclasses.

    A range stands in the annotation of its key, as in `n: Annotated[int, at_least(1)]`; null passes where the type
    allows it. (Define a `Range` with another test at module level: annotations can't see names used in a lambda.) Rules
    about several keys follow in `check`. Both raise ValueError. A field has a default where that changes no result
    (config.identity); what runs use stands in the YAMLs.
    """

    def __post_init__(self) -> None:
        schema: Any = type(self)
        for name, range_ in ranges(schema):
            value = getattr(self, name)
            if value is not None and not range_.holds(value):
                raise ValueError(f"{name} must be {range_.allowed}; got {value}")
        self.check()

    def check(self) -> None:
        """Refuse values that don't go together."""


@functools.cache
def ranges(schema: Any) -> list[tuple[str, Range]]:
    """The ranges of the keys that have one, in the order of the keys."""
    hints = typing.get_type_hints(schema, include_extras=True)
    return [(name, item) for name, hint in hints.items() for item in getattr(hint, "__metadata__", ())]
