"""Shared parts of the problem generators: the splits, arithmetic that can go wrong, drawing without repeats.

A problem belongs to one split for good: a hash of its question decides, so splits are disjoint whatever the seeds.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from topr_exp.types import Problem, TOPRError

# Tenths of all questions. `pretrain` is what the tiny models were made from: runs neither train nor test on it.
SPLITS = {"test": range(2), "train": range(2, 6), "pretrain": range(6, 10)}


class Calc:
    """Exact integer arithmetic that writes down its steps, each after a space; one result can be wrong on purpose."""

    def __init__(self, wrong_at: int | None = None, rng: random.Random | None = None) -> None:
        self.calls, self.steps = 0, ""
        self._wrong_at, self._rng = wrong_at, rng  # which call, from 0

    def __call__(self, a: int, op: str, b: int) -> int:
        """a op b for op in + - * /, with its step."""
        result = self.compute(a, op, b)
        self.steps += f" {a}{op}{b}={result}."
        return result

    def add(self, a: int, b: int) -> int:
        """a + b, with its step, which subtracts |b| where b is negative."""
        return self(a, "+" if b > 0 else "-", abs(b))

    def compute(self, a: int, op: str, b: int) -> int:
        """The same without a step; a division must come out even, unless an earlier result was wrong."""
        if op == "/":
            assert self._wrong_at is not None or a % b == 0, f"{a} / {b} is not whole"
            result = a // b
        else:
            result = {"+": a + b, "-": a - b, "*": a * b}[op]
        if self.calls == self._wrong_at:
            assert self._rng is not None
            offsets = [d for d in (-10, -2, -1, 1, 2, 10) if result < 0 or result + d >= 0]
            result += self._rng.choice(offsets)
        self.calls += 1
        return result


@dataclass(frozen=True, slots=True)
class Task:
    """A generated question with a way to work it out: `solve(calc)` does, on paper, and returns the answer."""

    question: str
    level: int | None
    subject: str | None
    solve: Callable[[Calc], str]


Drawn = TypeVar("Drawn", bound=Task)


def digest(question: str) -> bytes:
    """A hash of the question that is the same on every machine."""
    return hashlib.blake2b(question.encode(), digest_size=8).digest()


def split_of(question: str) -> str:
    """The only split that may hold `question`."""
    tenth = int.from_bytes(digest(question), "big") % 10
    return next(name for name, tenths in SPLITS.items() if tenth in tenths)


def draw_tasks(draw: Callable[[random.Random], Drawn], split: str, count: int, seed: int) -> list[Drawn]:
    """`count` distinct tasks of one split; a smaller count gives the beginning of the same list.

    Raises TOPRError when the generator does not have that many.
    """
    assert split in SPLITS, split
    rng = random.Random(f"{split}/{seed}")
    tasks: dict[str, Drawn] = {}
    attempts = 0
    while len(tasks) < count:
        attempts += 1
        if attempts > 1000 + 100 * count:
            raise TOPRError(f"the embedded problems end at about {len(tasks)} for {split}; {count} were asked for")
        task = draw(rng)
        if task.question not in tasks and split_of(task.question) == split:
            tasks[task.question] = task
    return list(tasks.values())


def draw_problems(
    draw: Callable[[random.Random], Task], data_format: str, split: str, count: int, seed: int
) -> list[Problem]:
    """Draw problems, the same on every machine for the same seed.

    Each is named by its hash, so that it keeps its name whatever the seed.
    """
    tasks = draw_tasks(draw, split, count, seed)
    named = ((f"{data_format}/embedded/{split}/{digest(task.question).hex()}", task) for task in tasks)
    return [Problem(name, one.question, one.solve(Calc()), one.level, one.subject) for name, one in named]
