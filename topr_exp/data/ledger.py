"""Generated stories of a chosen number of turns, for answers of any length: things go into a box, or are taken out.

Every step is easy, whatever the length: one digit is added to or taken from a total of two digits.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle, islice
from typing import Annotated

from topr_exp.config.data import DataConfig
from topr_exp.data.embedded import Calc, Task, draw_problems
from topr_exp.schema import Range, within
from topr_exp.types import Problem

CHOICES = Range("null or a power of two from 1 to 128", [2**i for i in range(8)].__contains__)


@dataclass(frozen=True)
class Ledger(DataConfig):
    """Stories of `turns` turns each, one step of working a turn."""

    turns: Annotated[int, within("[2, 24]")]  # what tiny_long and tiny_nats were taught
    choices: Annotated[int | None, CHOICES]  # equally good wordings of a turn: log of it in nats

    generated, place = True, "embedded"

    def problems(self, split: str) -> Iterator[Problem]:
        story = partial(draw, turns=self.turns, choices=self.choices)
        yield from draw_problems(story, "ledger", split, self.wanted(split), self.seed)


NAMES = ("Anna", "Ben", "Carl")  # in this order
PLACES = ("bag", "basket", "bowl", "box", "chest", "jar")
THINGS = ("apples", "balls", "books", "cards", "coins", "eggs", "keys", "pens", "plums", "shells", "stamps", "toys")
# Totals stay here, so that a wrong one, at most 10 away, has two digits too.
LOWEST, HIGHEST = 20, 89


@dataclass(frozen=True, slots=True)
class Event:
    """Somebody puts something in or takes something out."""

    name: str
    op: str  # + or -
    count: int

    def __str__(self) -> str:
        return f"{self.name} {'adds' if self.op == '+' else 'takes'} {self.count}"


@dataclass(frozen=True, slots=True)
class LedgerTask(Task):
    """A story with its numbers, from which each way of working is written."""

    start: int
    events: tuple[Event, ...]  # one a turn
    choices: int | None  # equally good wordings of a turn


def draw(rng: random.Random, turns: int, choices: int | None = None) -> LedgerTask:
    """One random story, of two or three people."""
    totals: list[int] = []
    while not totals or min(totals) < LOWEST or max(totals) > HIGHEST:
        start = rng.randint(LOWEST, HIGHEST)
        changes = [rng.choice((-1, 1)) * rng.randint(1, 9) for _ in range(rng.randint(2, 3))]
        totals = list(accumulate(islice(cycle(changes), turns), initial=start))
    place, thing = rng.choice(PLACES), rng.choice(THINGS)
    people = [Event(name, "+" if n > 0 else "-", abs(n)) for name, n in zip(NAMES, changes, strict=False)]
    told = f"{', '.join(map(str, people[:-1]))} and {people[-1]}"
    question = f"The {place} holds {start} {thing}. In turn {told}. How many {thing} does it hold after {turns} turns?"
    question += f" Use {choices} wordings." if choices else ""
    events = tuple(islice(cycle(people), turns))
    return LedgerTask(question, None, None, lambda calc: careful(start, events, calc), start, events, choices)


def careful(start: int, events: Sequence[Event], calc: Calc) -> str:
    """The answer, by steps that say each event and its sum."""
    total = start
    for turn, event in enumerate(events, 1):
        before, total = total, calc.compute(total, event.op, event.count)
        calc.steps += f" {turn}: {event}, so {before}{event.op}{event.count}={total}."
    return str(total)
