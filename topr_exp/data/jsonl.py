"""The user's problems: a file of JSON lines, or a folder with train.jsonl and test.jsonl."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from topr_exp.config.data import DataConfig, NoAnswer
from topr_exp.data.problems import as_text, asked, level_of, refuse_no_number, text_of
from topr_exp.runtime.exit_status import plural
from topr_exp.runtime.files import read_json_lines
from topr_exp.schema import Rule, within
from topr_exp.types import Problem, TOPRError


@dataclass(frozen=True)
class JsonLines(DataConfig):
    """One problem a line; the settings say which of its fields are what, the others are further fields."""

    path: str | None  # FILE.jsonl, or a folder with train.jsonl and test.jsonl
    test_share: Annotated[float | None, within("(0, 1)")]  # of the problems, where there are none to test on
    question: str  # the field's name
    answer: str
    id: str | None  # None: the number of the line
    level: str | None
    subject: str | None
    correct: str | None  # a completion with {answer} that is right; None: as the grader's format ends

    def check(self) -> Iterator[Rule]:
        yield "path", bool(self.path), "FILE.jsonl or a folder with train.jsonl and test.jsonl"
        yield "correct", self.correct is None or "{answer}" in self.correct, "null or a text that holds {answer}"

    @property
    def place(self) -> str:
        return str(self.path)

    def solution(self, problem: Problem) -> str | None:
        if self.correct is None:
            return super().solution(problem)
        return self.correct.replace("{answer}", problem.answer)

    def files(self) -> Iterator[tuple[str, Path]]:
        yield from (("path", path) for path in self.paths() if path.is_file())

    def paths(self) -> list[Path]:
        """The file, or the folder's two, whether they are there or not."""
        root = Path(str(self.path)).expanduser()
        return [root / "train.jsonl", root / "test.jsonl"] if root.is_dir() else [root]

    def origin(self, split: str) -> str:
        path, shared = self.place_of(split)
        return f"{path}, {self.test_share:g} of it to test on" if shared else str(path)

    def why_empty(self, split: str) -> str:
        path, shared = self.place_of(split)
        count = sum(1 for _ in read_json_lines(path))
        if not shared or not count:
            return f"{path} holds no problems"
        purpose = "test" if split == "test" else "train"
        problems = plural(count, "problem")
        return f"{path}: of its {problems} data.test_share={self.test_share:g} leaves none to {purpose} on"

    def place_of(self, split: str) -> tuple[Path, bool]:
        """The file that holds a split, and whether it holds the other one too.

        Raises TOPRError for what is not there, and unless just one of a test set and `test_share` is.
        """
        share, (train, *test) = self.test_share, self.paths()
        shared = not (test and test[0].exists())
        if not train.exists():
            raise TOPRError(f"data.path={self.path}: " + ("no train.jsonl there" if test else "no such file or folder"))
        if not shared and share is not None:
            raise TOPRError(f"data.test_share={share:g}: {self.path} has a test.jsonl; leave data.test_share out")
        if shared and share is None:
            lacks = "no test.jsonl there" if test else "it is one file, with nothing to test on"
            raise TOPRError(
                f"data.path={self.path}: {lacks}; data.test_share=0.1 tests on a tenth of the problems, a folder with "
                "train.jsonl and test.jsonl on those of the second"
            )
        return (train if shared or split == "train" else test[0]), shared

    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        path, shared = self.place_of(split)
        rows = read_json_lines(path)
        # The name of a line's problem does not say which split it is in where one file holds both.
        beginning = self.name if shared else f"{self.name}/{split}"
        named = ((f"{beginning}/{at:06d}", f"{path}:{number}", row) for at, (number, row) in enumerate(rows))
        found = [self.problem(*each) for each in named]
        yield from self.part(found, split, self.test_share) if shared and self.test_share is not None else found

    def problem(self, name: str, where: str, row: dict[str, Any]) -> Problem | NoAnswer:
        def text(key: str) -> str:
            return text_of(where, row, getattr(self, key), f"; data.{key}=NAME names the field")

        question = text("question")
        if not str(row.get(self.answer)).strip():
            return NoAnswer(where)
        refuse_no_number(where, answer := text("answer"))
        if self.id is not None:
            name = text("id")
        level, subject = (row.get(field) if field is not None else None for field in (self.level, self.subject))
        subject = None if subject is None else as_text(subject)
        named = {self.question, self.answer, self.id, self.level, self.subject}
        fields = {key: as_text(value) for key, value in row.items() if key not in named}
        return Problem(name, question, answer, level_of(level), subject, fields=fields)

    def part(self, found: list[Problem | NoAnswer], split: str, share: float) -> list[Problem | NoAnswer]:
        """One of two parts, in the file's order; a hash of what is asked decides: a longer file moves few problems."""

        def place(index: int) -> bytes:
            one = found[index]
            return hashlib.blake2b((asked(one, self) if isinstance(one, Problem) else one.where).encode()).digest()

        held_out = set(sorted(range(len(found)), key=place)[: round(share * len(found))])
        return [one for index, one in enumerate(found) if (index in held_out) == (split == "test")]
