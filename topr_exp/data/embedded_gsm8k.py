"""Arithmetic stories in the format of GSM8K: one to three steps on whole numbers up to 99, some with a distraction.

Levels: 1 one step, 2 two steps, 3 two steps and a distraction, 4 three steps, 5 three steps and a distraction.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial

from topr_exp.data.embedded import Calc, Task

SHE = ("Anna", "Bea", "Clara", "Dina", "Mia", "Nora")
HE = ("Ben", "Carl", "Evan", "Leo", "Omar", "Tom")
THINGS = ("apples", "balls", "books", "cards", "coins", "eggs", "keys", "pens", "plums", "shells", "stamps", "toys")
LARGEST = 99
# level -> steps, distraction?, and how often it comes
LEVELS = {1: (1, False, 20), 2: (2, False, 25), 3: (2, True, 20), 4: (3, False, 20), 5: (3, True, 15)}
CHANGES = {
    "+": ("{she} buys {n} more.", "{she} finds {n} more {things}.", "Then {helper} brings {n} more."),
    "-": ("{she} loses {n} of them.", "{she} sells {n} {things}.", "Then {helper} takes {n} of them."),
}
THAN = {"+": "more than", "-": "fewer than"}
TIMES = {2: "twice as many as", 3: "three times as many as", 4: "four times as many as", 5: "five times as many as"}
DISTRACTIONS = (
    "{who} is {n} years old.",
    "{who} also has {n} {others}.",
    "The bag costs {n} dollars.",
    "The house is {n} miles away.",
)


def draw(rng: random.Random) -> Task:
    """One random story."""
    level = rng.choices(list(LEVELS), [weight for *_, weight in LEVELS.values()])[0]
    n_steps, distracted, _ = LEVELS[level]
    story = Story(rng)
    for k in range(n_steps):
        story.event(last=k == n_steps - 1)
    if distracted:
        story.distract()
    question = " ".join([*story.sentences, story.closing])
    return Task(question, level, None, partial(_solve, story.start, tuple(story.steps)))


def _solve(start: int, steps: tuple[tuple[str, int | None], ...], calc: Calc) -> str:
    """Run the chain; an operand of None is the value before the last step (for "together")."""
    value, before = start, start
    for op, operand in steps:
        before, value = value, calc(value, op, before if operand is None else operand)
    return str(value)


class Story:
    """A story under construction: a number of things that events change, one person at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._who, self._helper, *self._others = rng.sample(SHE + HE, 5)
        self._thing, self._another_thing = rng.sample(THINGS, 2)
        self._compared = False  # the last step introduced a person by comparison
        self.start = self._value = self._before = rng.randint(3, 40)
        self.steps: list[tuple[str, int | None]] = []
        self.sentences = [f"{self._who} has {self.start} {self._thing}."]
        self.closing = ""

    def event(self, last: bool) -> None:
        """Add one step, as the last one with its question."""
        v = self._value
        kinds: list[Callable[[], None]] = []
        for op, possible in (("+", v + 2 <= LARGEST), ("-", v >= 4)):
            if possible:
                kinds += [partial(self._change, op), partial(self._change, op), partial(self._relate, op)]
        if 2 * v <= LARGEST:
            kinds += [partial(self._relate, "*")] * 2
        if last and self._boxes():
            kinds += [self._share]
        if last and self._compared and v + self._before <= LARGEST:
            kinds += [self._together] * 4
        self._rng.choice(kinds)()
        if last and not self.closing:
            self.closing = f"How many {self._thing} does {self._who} have now?"

    def distract(self) -> None:
        """Put in a sentence with a number that does not matter."""
        sentence = self._choose(DISTRACTIONS, self._rng.randint(2, 30))
        self.sentences.insert(self._rng.randint(1, len(self.sentences)), sentence)

    def _choose(self, sentences: Sequence[str], n: int) -> str:
        she, words = "She" if self._who in SHE else "He", {"things": self._thing, "others": self._another_thing}
        return self._rng.choice(sentences).format(n=n, she=she, who=self._who, helper=self._helper, **words)

    def _step(self, op: str, operand: int | None, sentence: str = "") -> None:
        self.steps.append((op, operand))
        result = Calc().compute(self._value, op, self._before if operand is None else operand)
        self._before, self._value, self._compared = self._value, result, False
        if sentence:
            self.sentences.append(sentence)

    def _number(self, op: str) -> int:
        return self._rng.randint(2, min(30, LARGEST - self._value if op == "+" else self._value - 1))

    def _change(self, op: str) -> None:
        n = self._number(op)
        self._step(op, n, self._choose(CHANGES[op], n))

    def _relate(self, op: str) -> None:
        """Go on with another person, who has so many more, so many fewer or so many times as many."""
        n = self._rng.randint(2, min(5, LARGEST // self._value)) if op == "*" else self._number(op)
        before, self._who = self._who, self._others.pop()
        self._step(op, n, f"{self._who} has {TIMES[n] if op == '*' else f'{n} {THAN[op]}'} {before}.")
        self._compared = True

    def _boxes(self) -> list[int]:
        """The numbers of boxes with equally many things, more than one in each."""
        return [k for k in range(2, 6) if self._value % k == 0 and self._value > k]

    def _share(self) -> None:
        k = self._rng.choice(self._boxes())
        self._step("/", k, f"{'She' if self._who in SHE else 'He'} puts them into {k} equal boxes.")
        self.closing = f"How many {self._thing} are in each box?"

    def _together(self) -> None:
        self._step("+", None)
        self.closing = f"How many {self._thing} do they have together?"
