"""reasoning-gym's generated tasks: drawn by `seed`, graded by the task's own scorer (topr_exp/grading/gym.py)."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from topr_exp.config.data import DataConfig
from topr_exp.schema import NamedValues
from topr_exp.types import Problem, TOPRError

# scripts/try_gym_tasks.py checks the list.
LISTED = json.loads(Path(__file__).with_name("gym_tasks.json").read_text(encoding="utf-8"))
TASKS: list[str] = LISTED["offered"]
EXCLUDED: dict[str, str] = {}  # task -> reason
for _reason, _tasks in LISTED["left out"].items():
    EXCLUDED |= dict.fromkeys(_tasks, _reason)
MOST_DRAWS = 10  # for each question that is asked for, since a task may draw one again


@dataclass(frozen=True)
class ReasoningGym(DataConfig):
    """Problems of one task, no question twice in a split.

    A gold is the problem's entry as JSON, which the task's scorer reads.
    """

    task: str
    options: NamedValues  # of the task, such as {max_terms: 3}; the others keep the task's defaults

    generated = True

    def check(self) -> None:
        if self.task in EXCLUDED:
            raise ValueError(f"task must be one that can be graded; {self.task} can't: {EXCLUDED[self.task]}")
        if self.task not in TASKS:
            raise ValueError(
                f"task must be one of {len(TASKS)} tasks of reasoning-gym (docs/problems.md); got {self.task}"
            )

    @property
    def described(self) -> str:
        return f"problems of {self.name} from {self.source_name}"

    @property
    def source_name(self) -> str:
        return f"reasoning-gym's {self.task}"

    def files(self) -> Iterator[tuple[str, Path]]:
        """The list of the installed package's files with their hashes: another version draws other problems."""
        for distribution in metadata.distributions(name="reasoning-gym"):
            for path in distribution.files or ():
                if path.name == "RECORD":
                    yield "task", Path(str(path.locate()))

    def problems(self, split: str) -> Iterator[Problem]:
        """Different questions, as many as are asked for or as there are; TOPRError where the task refuses `options`."""
        count = self.wanted(split)
        draws = MOST_DRAWS * count
        entries = self.open_task(split, draws)
        gold_by_question: dict[str, str] = {}
        for index in range(draws):
            entry = entries[index]
            gold_fields = {
                "task": self.task,
                "options": self.options or {},
                "answer": entry["answer"],
                "metadata": entry["metadata"],
            }
            gold = json.dumps(gold_fields, ensure_ascii=False)
            gold_by_question.setdefault(entry["question"].strip(), gold)
            if len(gold_by_question) == count:
                break
        for index, (question, gold) in enumerate(gold_by_question.items()):
            yield Problem(f"{self.name}/{self.task}/{split}{self.seed}/{index:06d}", question, gold)

    def open_task(self, split: str, size: int) -> Any:
        """The task's `size` entries, drawn when they are read; TOPRError without the package or for bad options."""
        try:
            library = import_module("reasoning_gym")
        except ImportError as error:
            command = "pip install -e '.[tasks]' -c constraints.txt"
            hint = f"the package reasoning-gym is not installed (in the checkout: {command})"
            raise TOPRError(f"data=reasoning_gym: {hint}: {error}") from None
        options = self.options or {}
        task_seed = seed_of(self.task, self.seed, split)
        try:
            return library.create_dataset(self.task, seed=task_seed, size=size, **options)
        except (AssertionError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise TOPRError(
                f"data.options={json.dumps(self.options)}: {self.task} does not take these: {reason}"
            ) from None

    def solution(self, problem: Problem) -> str:
        return f"<answer>{json.loads(problem.answer)['answer']}</answer>"


def seed_of(task: str, seed: int, split: str) -> int:
    """Hash a run's seed to the task's, which draws problem k by seed + k: near seeds would share most problems."""
    text = f"{task}/{split}/{seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
