"""Generated stories of a chosen number of turns, for answers of any length: things go into a box, or are taken out.

Every step is equally easy: one digit is added to or taken from a total of two digits.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle, islice
from typing import Annotated

from topr_exp.config.data import DataConfig
from topr_exp.data.embedded import THINGS, Calc, Task, draw_problems
from topr_exp.schema import Range, within
from topr_exp.types import Problem

CHOICES = Range("null or a power of two from 1 to 128", [2**i for i in range(8)].__contains__)


@dataclass(frozen=True)
class Ledger(DataConfig):
    """Stories of `turns` turns each, one step of working a turn."""

    turns: Annotated[int, within("[2, 24]")]  # turns of a story, each a step of its solution
    choices: Annotated[int | None, CHOICES]  # equally good wordings of a turn, log of it in nats; None: no choice

    generated = True
    source_name = "embedded"

    def problems(self, split: str) -> Iterator[Problem]:
        draw_story = partial(draw, turns=self.turns, choices=self.choices)
        yield from draw_problems(draw_story, "ledger", split=split, count=self.wanted(split), seed=self.seed)


NAMES = ("Anna", "Ben", "Carl")  # in this order
PLACES = ("bag", "basket", "bowl", "box", "chest", "jar")
# Totals stay here, so that a wrong one, at most 10 away, has two digits too.
LOWEST = 20
HIGHEST = 89


@dataclass(frozen=True, slots=True)
class Event:
    """A person puts something in or takes something out."""

    name: str
    op: str  # + or -
    count: int

    def __str__(self) -> str:
        verb = "adds" if self.op == "+" else "takes"
        return f"{self.name} {verb} {self.count}"


@dataclass(frozen=True, slots=True)
class LedgerTask(Task):
    """A story with its numbers, from which every way of working is written."""

    start: int
    events: tuple[Event, ...]  # one a turn
    choices: int | None  # equally good wordings of a turn


def draw(rng: random.Random, turns: int, choices: int | None = None) -> LedgerTask:
    """Draw one random story, of two or three people."""
    start, changes = draw_changes(rng, turns)
    place = rng.choice(PLACES)
    thing = rng.choice(THINGS)
    person_events = []  # what each person does in every turn of theirs
    for name, change in zip(NAMES, changes, strict=False):
        op = "+" if change > 0 else "-"
        person_events.append(Event(name, op, abs(change)))
    *first_texts, last_text = map(str, person_events)
    turn_order = f"{', '.join(first_texts)} and {last_text}"
    question = f"The {place} holds {start} {thing}. In turn {turn_order}. "
    question += f"How many {thing} does it hold after {turns} turns?"
    if choices:
        question += f" Use {choices} wordings."
    events = tuple(islice(cycle(person_events), turns))
    solve = partial(solve_by_turns, start, events)
    return LedgerTask(question, None, None, solve, start, events, choices)


def draw_changes(rng: random.Random, turns: int) -> tuple[int, list[int]]:
    """Draw the first total, and what each person adds in every turn of theirs; all totals stay within the limits."""
    while True:
        start = rng.randint(LOWEST, HIGHEST)
        people = rng.randint(2, 3)
        changes = [rng.choice((-1, 1)) * rng.randint(1, 9) for _ in range(people)]
        change_of_turn = islice(cycle(changes), turns)
        totals = list(accumulate(change_of_turn, initial=start))
        if min(totals) >= LOWEST and max(totals) <= HIGHEST:
            return start, changes


def solve_by_turns(start: int, events: Sequence[Event], calc: Calc) -> str:
    """Work out the answer, by steps that say the event and its sum."""
    total = start
    for turn, event in enumerate(events, 1):
        result = calc.compute(total, event.op, event.count)
        calc.write(f"{turn}: {event}, so {total}{event.op}{event.count}={result}.")
        total = result
    return str(total)
