"""What a group of settings declares about its keys: their ranges, and which of them are no part of a run's name."""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from topr_exp.config.schema import added_to, plain


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
    allows it. (A `Range` with a test of its own gets a name at the top of its file: an annotation sees no imports from
    within a lambda.) Rules about several keys follow in `check`. Both raise ValueError.

    `PLACE` and `ADDED` say what is no part of a run's name, and so not of what a stored run is compared in:

    - `PLACE` has the keys that decide where and how fast a run computes, but not its result.
    - `ADDED` has the keys that were added after runs had been made without them, each with the value that means "as
      before". THE RULE FOR A NEW KEY, a whole new group included: it stands in `ADDED` of its class. At that value it
      is left out, so that older runs keep their folders and go on; where stored settings lack it, it has that value.
    """

    PLACE: ClassVar[frozenset[str]] = frozenset()
    ADDED: ClassVar[Mapping[str, Any]] = {}

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


def deciding(settings: Any) -> Any:
    """What decides a run's result, as plain values: `settings` without what its classes' PLACE and ADDED leave out."""
    values = plain(settings)
    place, added = getattr(settings, "PLACE", ()), added_to(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in place or (field.name in added and value == added[field.name]):
            del values[field.name]
        elif dataclasses.is_dataclass(value):
            values[field.name] = deciding(value)
    if "_target_" in added and values.get("_target_") == added["_target_"]:  # the class, where that is a setting
        del values["_target_"]
    return values
