"""The user's problems: a file of JSON lines, or a folder with train.jsonl and test.jsonl."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from topr_exp.config.data import DataConfig, NoAnswer
from topr_exp.data.problems import as_text, full_question, level_of, refuse_no_number, text_of
from topr_exp.data.user_lines import read_json_lines
from topr_exp.runtime.terminal import plural
from topr_exp.schema import Rule, Section, drop_keys, within
from topr_exp.types import Problem, TOPRError


@dataclass(frozen=True)
class FieldNames(Section):
    """Fields of a line that hold a problem."""

    question: str = "question"
    answer: str = "answer"
    id: str | None = None  # None: the number of the line
    level: str | None = None
    subject: str | None = None


@dataclass(frozen=True)
class JsonLines(DataConfig):
    """One problem a line, in the fields that the settings name; the others are further fields."""

    retired_settings: ClassVar[dict[str, str]] = {"question": "question", "answer": "answer"}
    path: str | None  # FILE.jsonl, or a folder with train.jsonl and test.jsonl
    test_share: Annotated[float | None, within("(0, 1)")]  # share of the problems to test on, without a test.jsonl
    fields: FieldNames = FieldNames()  # names of the fields with question, answer, id, level (1 to 5) and subject
    correct: str | None = None  # a correct completion, with {answer}, to check golds with; None: the grader's ending

    def check(self) -> Iterator[Rule]:
        yield "path", bool(self.path), "FILE.jsonl or a folder with train.jsonl and test.jsonl"
        yield "correct", self.correct is None or "{answer}" in self.correct, "null or a text that holds {answer}"

    @property
    def source_name(self) -> str:
        return str(self.path)

    def solution(self, problem: Problem) -> str | None:
        if self.correct is None:
            return super().solution(problem)
        return self.correct.replace("{answer}", problem.answer)

    def files(self) -> Iterator[tuple[str, Path]]:
        for path in self.paths():
            if path.is_file():
                yield "path", path

    def paths(self) -> list[Path]:
        """The file, or the folder's two; they may not exist."""
        root = Path(os.path.expanduser(str(self.path)))
        if root.is_dir():
            return [root / "train.jsonl", root / "test.jsonl"]
        return [root]

    def origin(self, split: str) -> str:
        path, is_shared = self.file_of(split)
        if is_shared:
            return f"{path}, {self.test_share:g} of it to test on"
        return str(path)

    def why_empty(self, split: str) -> str:
        path, is_shared = self.file_of(split)
        count = sum(1 for _ in read_json_lines(path))
        if not is_shared or not count:
            return f"{path} holds no problems"
        problems = plural(count, "problem")
        return f"{path}: of its {problems} data.test_share={self.test_share:g} leaves none to {split} on"

    def file_of(self, split: str) -> tuple[Path, bool]:
        """The file that holds a split, and True if it holds the other one too.

        TOPRError for a missing file, and unless exactly one of a test set and `test_share` is there.
        """
        train, *test_files = self.paths()
        is_folder = bool(test_files)
        has_test = is_folder and test_files[0].exists()
        if not train.exists():
            fault = "no train.jsonl there" if is_folder else "no such file or folder"
            raise TOPRError(f"data.path={self.path}: {fault}")
        if has_test and self.test_share is not None:
            share = f"data.test_share={self.test_share:g}"
            raise TOPRError(f"{share}: {self.path} has a test.jsonl; leave data.test_share out")
        if not has_test and self.test_share is None:
            fault = "no test.jsonl there" if is_folder else "it is one file, with nothing to test on"
            raise TOPRError(
                f"data.path={self.path}: {fault}; data.test_share=0.1 tests on a tenth of the problems, a folder with "
                "train.jsonl and test.jsonl on those of the second"
            )
        if has_test and split != "train":
            return test_files[0], False
        return train, not has_test

    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        path, is_shared = self.file_of(split)
        # In a file that holds both splits, a line's id does not say which of them it is in.
        id_prefix = self.name if is_shared else f"{self.name}/{split}"
        problems = []
        for index, (number, row) in enumerate(read_json_lines(path)):
            line_id = f"{id_prefix}/{index:06d}"
            problems.append(self.problem_of_line(line_id, f"{path}:{number}", row))
        if is_shared:
            return self.problems_of_split(problems, split)
        return problems

    def problem_of_line(self, line_id: str, where: str, row: dict[str, Any]) -> Problem | NoAnswer:
        """The problem of a line; TOPRError for a line without a question, or with a gold that no answer can equal."""
        names = self.fields

        def read_text(setting: str) -> str:
            field = getattr(names, setting)
            return text_of(where, row, field, hint=f"; data.fields.{setting}=NAME names the field")

        question = read_text("question")
        if not str(row.get(names.answer)).strip():
            return NoAnswer(where)
        answer = read_text("answer")
        refuse_no_number(where, answer)
        problem_id = read_text("id") if names.id is not None else line_id
        level = None
        if names.level is not None:
            level = level_of(row.get(names.level))
        subject = None
        if names.subject is not None and row.get(names.subject) is not None:
            subject = as_text(row[names.subject])
        further_fields = drop_keys(row, *astuple(names))
        fields = {name: as_text(value) for name, value in further_fields.items() if value is not None}
        return Problem(problem_id, question, answer, level, subject=subject, fields=fields)

    def problems_of_split(self, problems: list[Problem | NoAnswer], split: str) -> list[Problem | NoAnswer]:
        """The problems of one split, in the file's order.

        A hash of the question decides, so that a longer file moves few problems to the other split.
        """

        def hash_of(index: int) -> bytes:
            problem = problems[index]
            text = full_question(problem, self) if isinstance(problem, Problem) else problem.where
            return hashlib.blake2b(text.encode()).digest()

        assert self.test_share is not None
        indices_by_hash = sorted(range(len(problems)), key=hash_of)
        test_count = round(self.test_share * len(problems))
        if split == "test":
            indices = indices_by_hash[:test_count]
        else:
            indices = indices_by_hash[test_count:]
        return [problems[index] for index in sorted(indices)]
