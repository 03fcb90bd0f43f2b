"""Arithmetic stories in the format of GSM8K: one to three steps on whole numbers up to 99, some with a distraction.

Levels: 1 one step, 2 two steps, 3 two steps and a distraction, 4 three steps, 5 three steps and a distraction.
"""

from __future__ import annotations

import random
from functools import partial

from topr_exp.data.embedded import Calc, Task, draw_tasks, to_problems
from topr_exp.types import Problem

SHE = ("Anna", "Bea", "Clara", "Dina", "Mia", "Nora")
HE = ("Ben", "Carl", "Evan", "Leo", "Omar", "Tom")
THINGS = ("apples", "balls", "books", "cards", "coins", "eggs", "keys", "pens", "plums", "shells", "stamps", "toys")
LARGEST = 99
# level -> (steps, distraction?), and how often a level comes
LEVELS = {1: (1, False), 2: (2, False), 3: (2, True), 4: (3, False), 5: (3, True)}
WEIGHTS = (20, 25, 20, 20, 15)


def generate(split: str, count: int, seed: int) -> list[Problem]:
    """`count` distinct stories of `split` (train, test or pretrain), the same on every machine for the same seed."""
    return to_problems(draw_tasks(draw, split, count, seed), "gsm8k", split)


def draw(rng: random.Random) -> Task:
    """One random story."""
    level = rng.choices(list(LEVELS), WEIGHTS)[0]
    n_steps, distracted = LEVELS[level]
    story = Story(rng)
    for k in range(n_steps):
        story.event(last=k == n_steps - 1)
    if distracted:
        story.distract()
    question = " ".join([*story.sentences, story.closing])
    return Task(question, level, None, partial(_work, story.start, tuple(story.steps)))


def _work(start: int, steps: tuple[tuple[str, int | None], ...], calc: Calc) -> tuple[str, str]:
    """Run the chain; an operand of None is the value before the last step (for "together")."""
    text, value, before = "", start, start
    for op, operand in steps:
        b = before if operand is None else operand
        result = calc(value, op, b)
        text += f" {value}{op}{b}={result}."
        before, value = value, result
    return text, str(value)


class Story:
    """A story under construction: a number of things that events change, one person at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._who, self._helper, *self._others = rng.sample(SHE + HE, 5)
        self._thing, self._another_thing = rng.sample(THINGS, 2)
        self._compared = False  # the last step introduced a person by comparison
        self.start = self._value = rng.randint(3, 40)
        self.steps: list[tuple[str, int | None]] = []
        self.sentences = [f"{self._who} has {self.start} {self._thing}."]
        self.closing = ""

    def event(self, last: bool) -> None:
        """Add one step, as the last one with its question."""
        v = self._value
        kinds = []
        if v + 2 <= LARGEST:
            kinds += ["gain", "gain", "more"]
        if v >= 4:
            kinds += ["lose", "lose", "fewer"]
        if 2 * v <= LARGEST:
            kinds += ["times", "times"]
        if last and any(v % k == 0 and v > k for k in range(2, 6)):
            kinds += ["share"]
        if last and self._compared and self._value + self._before <= LARGEST:
            kinds += ["together"] * 4
        getattr(self, f"_{self._rng.choice(kinds)}")()
        if last and not self.closing:
            self.closing = f"How many {self._thing} does {self._who} have now?"

    def distract(self) -> None:
        """Put in a sentence with a number that does not matter."""
        n = self._rng.randint(2, 30)
        sentence = self._rng.choice(
            [
                f"{self._who} is {n} years old.",
                f"{self._who} also has {n} {self._another_thing}.",
                f"The bag costs {n} dollars.",
                f"The house is {n} miles away.",
            ]
        )
        self.sentences.insert(self._rng.randint(1, len(self.sentences)), sentence)

    def _step(self, op: str, operand: int | None, result: int, sentence: str) -> None:
        self.steps.append((op, operand))
        self._before, self._value = self._value, result
        self._compared = False
        if sentence:
            self.sentences.append(sentence)

    def _pronoun(self) -> str:
        return "She" if self._who in SHE else "He"

    def _gain(self) -> None:
        b = self._rng.randint(2, min(30, LARGEST - self._value))
        forms = (f"{self._pronoun()} buys {b} more.", f"{self._pronoun()} finds {b} more {self._thing}.")
        self._step("+", b, self._value + b, self._rng.choice((*forms, f"Then {self._helper} brings {b} more.")))

    def _lose(self) -> None:
        b = self._rng.randint(2, min(30, self._value - 1))
        forms = (f"{self._pronoun()} loses {b} of them.", f"{self._pronoun()} sells {b} {self._thing}.")
        sentence = self._rng.choice((*forms, f"Then {self._helper} takes {b} of them."))
        self._step("-", b, self._value - b, sentence)

    def _times(self) -> None:
        k = self._rng.randint(2, min(5, LARGEST // self._value))
        words = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[k]
        self._compare("*", k, self._value * k, f"{words} as many as {self._who}")

    def _more(self) -> None:
        b = self._rng.randint(2, min(30, LARGEST - self._value))
        self._compare("+", b, self._value + b, f"{b} more than {self._who}")

    def _fewer(self) -> None:
        b = self._rng.randint(2, min(30, self._value - 1))
        self._compare("-", b, self._value - b, f"{b} fewer than {self._who}")

    def _compare(self, op: str, operand: int, result: int, how: str) -> None:
        """The story goes on with another person."""
        self._who = self._others.pop()
        self._step(op, operand, result, f"{self._who} has {how}.")
        self._compared = True

    def _share(self) -> None:
        k = self._rng.choice([k for k in range(2, 6) if self._value % k == 0 and self._value > k])
        self._step("/", k, self._value // k, f"{self._pronoun()} puts them into {k} equal boxes.")
        self.closing = f"How many {self._thing} are in each box?"

    def _together(self) -> None:
        self._step("+", None, self._value + self._before, "")
        self.closing = f"How many {self._thing} do they have together?"
