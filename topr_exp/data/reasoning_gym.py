"""reasoning-gym's generated tasks: drawn by `seed`, graded by the task's own scorer (topr_exp/grading/gym.py)."""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from topr_exp.config.data import DataConfig
from topr_exp.config.schema import Count
from topr_exp.types import Problem, TOPRError

PACKAGE = "reasoning-gym"
LISTED = json.loads(
    Path(__file__).with_name("gym_tasks.json").read_text(encoding="utf-8")
)  # scripts/try_gym_tasks.py checks it
TASKS: list[str] = LISTED["offered"]
EXCLUDED: dict[str, str] = {task: reason for reason, tasks in LISTED["left out"].items() for task in tasks}
MOST_DRAWS = 10  # for each question that is asked for; a task may have fewer different ones


@dataclass(frozen=True)
class ReasoningGym(DataConfig):
    """Problems of one task, `size` to train on and `test_size` to test on, no question twice in either.

    A gold is the problem's entry as JSON, with what the task's scorer reads.
    """

    task: str
    options: Any  # of the task, such as {max_terms: 3}; what they don't name is as the task has it
    size: Count
    test_size: Count

    def check(self) -> None:
        if self.task in EXCLUDED:
            raise ValueError(f"task must be one that can be graded; {self.task} can't: {EXCLUDED[self.task]}")
        if self.task not in TASKS:
            near = difflib.get_close_matches(self.task, TASKS, 1)
            raise ValueError(
                f"task must be one of {len(TASKS)} tasks of reasoning-gym (docs/using.md); got {self.task}"
                + (f"; did you mean {near[0]}?" if near else "")
            )
        if self.options is not None and (not isinstance(self.options, dict) or {"seed", "size"} & self.options.keys()):
            raise ValueError(
                "options must be settings of the task other than seed and size, as in {max_terms: 3}; "
                f"got {self.options}"
            )

    @property
    def place(self) -> str:
        return f"reasoning-gym's {self.task}"

    def origin(self, split: str) -> str:
        return f"reasoning-gym's {self.task}, drawn for {split} by data.seed={self.seed}"

    def files(self) -> Iterator[tuple[str, Path]]:
        """The list of the installed package's files with their hashes: another version draws other problems."""
        paths = (metadata.files(PACKAGE) or ()) if installed_version() else ()
        yield from (("task", Path(str(path.locate()))) for path in paths if path.name == "RECORD")

    def problems(self, split: str) -> Iterator[Problem]:
        count = self.test_size if split == "test" else self.size
        for index, (question, gold) in enumerate(
            draw(self.task, json.dumps(self.options or {}), self.seed, split, count)
        ):
            yield Problem(f"{self.name}/{self.task}/{split}{self.seed}/{index:06d}", question, gold)

    def solution(self, problem: Problem) -> str:
        return f"<answer>{json.loads(problem.answer)['answer']}</answer>"


def installed_version() -> str | None:
    """None where there is none, as drawing then says."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=4)
def draw(task: str, options: str, seed: int, split: str, count: int) -> list[tuple[str, str]]:
    """`count` different questions with their golds, or as many as there are; options: JSON.

    Raises TOPRError without the package, and where the task refuses its options.
    """
    made = open_task(task, json.loads(options), seed_of(task, seed, split), MOST_DRAWS * count)
    found: dict[str, str] = {}
    for index in range(MOST_DRAWS * count):
        entry = made[index]
        gold = {"task": task, "options": json.loads(options), "answer": entry["answer"], "metadata": entry["metadata"]}
        found.setdefault(entry["question"].strip(), json.dumps(gold, ensure_ascii=False))
        if len(found) == count:
            break
    return list(found.items())


def open_task(task: str, options: dict[str, Any], seed: int, size: int) -> Any:
    try:
        library = import_module("reasoning_gym")
    except ImportError as error:
        raise TOPRError(
            f"data=reasoning_gym: the package reasoning-gym is not installed (pip install 'topr-exp[tasks]'): {error}"
        ) from None
    try:
        return library.create_dataset(task, seed=seed, size=size, **options)
    except (AssertionError, TypeError, ValueError) as error:
        raise TOPRError(f"data.options={json.dumps(options)}: {task} does not take these: {error}") from None


def seed_of(task: str, seed: int, split: str) -> int:
    """A task's problem k is drawn by its seed + k: those of neighbouring seeds are nearly all the same ones."""
    text = f"{task}/{split}/{seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
