"""Shared parts of the problem generators: splits, arithmetic that can go wrong on purpose, drawing without repeats.

A hash of its question decides a problem's split, so splits are disjoint for all seeds.
"""

import hashlib
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from topr_exp.types import Problem, TOPRError

# Tenths of all questions. `pretrain` is what the tiny models were made from: runs neither train nor test on it.
SPLITS = {"test": range(2), "train": range(2, 6), "pretrain": range(6, 10)}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
THINGS = ("apples", "balls", "books", "cards", "coins", "eggs", "keys", "pens", "plums", "shells", "stamps", "toys")
ERRORS = (-10, -2, -1, 1, 2, 10)  # added to a result that is to be wrong


@dataclass
class Calc:
    """Exact integer arithmetic that writes down its steps, each after a space; one result can be wrong on purpose."""

    wrong_at: int | None = None  # the index of a call
    rng: random.Random | None = None  # draws the error
    calls: int = 0
    steps: str = ""

    def __call__(self, a: int, op: str, b: int) -> int:
        """Compute a op b, for op in + - * /, and write the step."""
        result = self.compute(a, op, b)
        self.write(f"{a}{op}{b}={result}.")
        return result

    def add(self, a: int, b: int) -> int:
        """Compute a + b; the step subtracts |b| where b is negative."""
        return self(a, "+" if b > 0 else "-", abs(b))

    def compute(self, a: int, op: str, b: int) -> int:
        """Compute without a step; a division must come out even, unless an earlier result was wrong."""
        must_be_whole = op == "/" and self.wrong_at is None
        assert not must_be_whole or a % b == 0, f"{a} / {b} is not whole"
        result: int = OPERATIONS[op](a, b)
        if self.calls == self.wrong_at:
            assert self.rng is not None
            # A wrong result is not negative where the right one is not.
            errors = [error for error in ERRORS if result < 0 or result + error >= 0]
            result += self.rng.choice(errors)
        self.calls += 1
        return result

    def write(self, step: str) -> None:
        """Add a step that is written in another way."""
        self.steps += f" {step}"


@dataclass(frozen=True, slots=True)
class Task:
    """A generated question; `solve(calc)` returns the answer and leaves its steps in `calc.steps`."""

    question: str
    level: int | None
    subject: str | None
    solve: Callable[[Calc], str]


AnyTask = TypeVar("AnyTask", bound=Task)


def digest(question: str) -> bytes:
    """Hash a question, the same on every machine."""
    return hashlib.blake2b(question.encode(), digest_size=8).digest()


def split_of(question: str) -> str:
    """The only split that may hold `question`."""
    tenth = int.from_bytes(digest(question), "big") % 10
    return next(name for name, tenths in SPLITS.items() if tenth in tenths)


def draw_tasks(draw: Callable[[random.Random], AnyTask], split: str, *, count: int, seed: int) -> list[AnyTask]:
    """Draw `count` distinct tasks of one split; a smaller count gives the beginning of the same list.

    Raises TOPRError when the generator does not have that many.
    """
    assert split in SPLITS, split
    rng = random.Random(f"{split}/{seed}")
    tasks: dict[str, AnyTask] = {}
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
    draw: Callable[[random.Random], Task], family: str, *, split: str, count: int, seed: int
) -> list[Problem]:
    """Draw problems with their gold answers, the same on every machine; a question has one id for all seeds."""
    problems = []
    for task in draw_tasks(draw, split, count=count, seed=seed):
        problem_id = f"{family}/embedded/{split}/{digest(task.question).hex()}"
        answer = task.solve(Calc())
        problems.append(Problem(problem_id, task.question, answer, task.level, task.subject))
    return problems
