"""Arithmetic stories in the format of GSM8K: one to three steps on whole numbers up to 99, some with a distraction."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from topr_exp.data.embedded import THINGS, Calc, Task

SHE = ("Anna", "Bea", "Clara", "Dina", "Mia", "Nora")
HE = ("Ben", "Carl", "Evan", "Leo", "Omar", "Tom")
LARGEST = 99  # value of a story


class Level(NamedTuple):
    """How hard a story is, and its weight when levels are drawn."""

    steps: int
    is_distracting: bool
    weight: int


LEVELS = {
    1: Level(1, False, 20),
    2: Level(2, False, 25),
    3: Level(2, True, 20),
    4: Level(3, False, 20),
    5: Level(3, True, 15),
}
CHANGES = {
    "+": ("{she} buys {n} more.", "{she} finds {n} more {things}.", "Then {helper} brings {n} more."),
    "-": ("{she} loses {n} of them.", "{she} sells {n} {things}.", "Then {helper} takes {n} of them."),
}
COMPARISONS = {"+": "{n} more than", "-": "{n} fewer than"}
MULTIPLES = {
    2: "twice as many as",
    3: "three times as many as",
    4: "four times as many as",
    5: "five times as many as",
}
DISTRACTIONS = (
    "{who} is {n} years old.",
    "{who} also has {n} {others}.",
    "The bag costs {n} dollars.",
    "The house is {n} miles away.",
)


def draw(rng: random.Random) -> Task:
    """Draw one random story."""
    weights = [level.weight for level in LEVELS.values()]
    (level_number,) = rng.choices(list(LEVELS), weights)
    level = LEVELS[level_number]
    story = Story(rng)
    for step in range(1, level.steps + 1):
        story.add_event(is_last=step == level.steps)
    if level.is_distracting:
        story.add_distraction()
    question = " ".join([*story.sentences, story.closing])
    solve_story = partial(solve, story.start, tuple(story.steps))
    return Task(question, level_number, subject=None, solve=solve_story)


class Step(NamedTuple):
    """An operation on a story's value; operand None: the value before the previous step, for "together"."""

    op: str
    operand: int | None


def solve(start: int, steps: Sequence[Step], calc: Calc) -> str:
    """Compute a story's last value, with its steps in `calc.steps`."""
    value = previous_value = start
    for op, operand in steps:
        if operand is None:
            operand = previous_value
        result = calc(value, op, operand)
        previous_value = value
        value = result
    return str(value)


class Story:
    """A story under construction: a number of things that events change, one person at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._who, self._helper, *self._people = rng.sample(SHE + HE, 5)
        self._thing, self._second_thing = rng.sample(THINGS, 2)
        self._is_comparison = False  # the last step introduced a person by comparison
        self.start = self._value = self._previous_value = rng.randint(3, 40)
        self.steps: list[Step] = []
        self.sentences = [f"{self._who} has {self.start} {self._thing}."]
        self.closing = ""

    def add_event(self, *, is_last: bool) -> None:
        """Add one step, with the story's question if it is the last one."""
        add = self._rng.choice(self._possible_events(is_last))
        add()
        if is_last and not self.closing:
            self.closing = f"How many {self._thing} does {self._who} have now?"

    def add_distraction(self) -> None:
        """Insert a sentence with a number that does not matter."""
        sentence = self._choose_sentence(DISTRACTIONS, self._rng.randint(2, 30))
        self.sentences.insert(self._rng.randint(1, len(self.sentences)), sentence)

    def _possible_events(self, is_last: bool) -> list[Callable[[], None]]:
        """The methods that add an event and keep the value from 1 to LARGEST; likelier ones several times."""
        events: list[Callable[[], None]] = []
        if self._value + 2 <= LARGEST:
            events += [partial(self._change, "+")] * 2
            events.append(partial(self._compare, "+"))
        if self._value >= 4:
            events += [partial(self._change, "-")] * 2
            events.append(partial(self._compare, "-"))
        if 2 * self._value <= LARGEST:
            events += [self._multiply] * 2
        if is_last and self._box_counts():
            events.append(self._share)
        if is_last and self._is_comparison and self._value + self._previous_value <= LARGEST:
            events += [self._add_up] * 4
        return events

    @property
    def _pronoun(self) -> str:
        if self._who in SHE:
            return "She"
        return "He"

    def _choose_sentence(self, sentences: Sequence[str], n: int) -> str:
        return self._rng.choice(sentences).format(
            n=n,
            she=self._pronoun,
            who=self._who,
            helper=self._helper,
            things=self._thing,
            others=self._second_thing,
        )

    def _add_step(self, op: str, operand: int | None) -> None:
        self.steps.append(Step(op, operand))
        self._previous_value = self._value
        self._value = int(solve(self.start, self.steps, Calc()))
        self._is_comparison = False

    def _draw_operand(self, op: str) -> int:
        if op == "+":
            largest = LARGEST - self._value
        else:
            largest = self._value - 1
        return self._rng.randint(2, min(30, largest))

    def _change(self, op: str) -> None:
        n = self._draw_operand(op)
        sentence = self._choose_sentence(CHANGES[op], n)
        self._add_step(op, n)
        self.sentences.append(sentence)

    def _compare(self, op: str) -> None:
        """Go on with another person, who has more or fewer."""
        n = self._draw_operand(op)
        self._introduce(op, n, COMPARISONS[op].format(n=n))

    def _multiply(self) -> None:
        """Go on with another person, who has a multiple."""
        n = self._rng.randint(2, min(5, LARGEST // self._value))
        self._introduce("*", n, MULTIPLES[n])

    def _introduce(self, op: str, n: int, comparison: str) -> None:
        person = self._people.pop()
        self.sentences.append(f"{person} has {comparison} {self._who}.")
        self._who = person
        self._add_step(op, n)
        self._is_comparison = True

    def _box_counts(self) -> list[int]:
        """The numbers of boxes that hold equally many things, more than one in each."""
        return [boxes for boxes in range(2, 6) if self._value % boxes == 0 and self._value > boxes]

    def _share(self) -> None:
        boxes = self._rng.choice(self._box_counts())
        self._add_step("/", boxes)
        self.sentences.append(f"{self._pronoun} puts them into {boxes} equal boxes.")
        self.closing = f"How many {self._thing} are in each box?"

    def _add_up(self) -> None:
        self._add_step("+", None)
        self.closing = f"How many {self._thing} do they have together?"
