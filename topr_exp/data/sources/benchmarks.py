"""GSM8K and MATH: from the embedded generators, the hub, or a folder of JSON lines with the fields of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from topr_exp.config.data import AnswerFormat, DataConfig, NoAnswer
from topr_exp.data import embedded_gsm8k, embedded_math, folder, hub
from topr_exp.data.jsonl import text_of
from topr_exp.data.problems import gsm8k_gold, level_of, math_gold, refuse_no_number
from topr_exp.types import Problem


class Format(Enum):
    """The benchmark whose fields the problems have."""

    gsm8k = "gsm8k"
    math = "math"


@dataclass(frozen=True)
class Benchmarks(DataConfig):
    """The problems of one of the two benchmarks, or ones of its form."""

    format: Format
    source: str  # embedded, hub or a folder
    answer_format: AnswerFormat  # the grader too, unless `grader` names another

    def check(self) -> None:
        if not self.source:
            raise ValueError("source must be embedded, hub or a folder; got nothing")
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) is None and self.generated:
                raise ValueError(f"{name} must be a number where source is embedded, which has no end; got null")
        if (self.format is Format.gsm8k) != (self.answer_format is AnswerFormat.gsm8k):
            allowed = "gsm8k" if self.format is Format.gsm8k else "math or final"
            raise ValueError(
                f"answer_format must be {allowed} where format is {self.format.name}; got {self.answer_format.name}"
            )

    @property
    def generated(self) -> bool:
        return self.source == "embedded"

    @property
    def at_hand(self) -> bool:
        return self.source != "hub"

    @property
    def place(self) -> str:
        return self.source

    def hub_name(self, split: str) -> str | None:
        return hub.SOURCES[self.format.name, split].path if self.source == "hub" else None

    @property
    def grader_name(self) -> str:
        return self.grader or self.answer_format.name

    @property
    def asked_as(self) -> AnswerFormat:
        return self.answer_format

    def solution(self, problem: Problem) -> None:
        """None: what the benchmarks mark as right is no completion of the kind that is asked for."""

    def files(self) -> Iterator[tuple[str, Path]]:
        if self.source not in ("embedded", "hub"):
            for split in ("train", "test"):
                for path in folder.paths(self.format.name, split, self.root):
                    yield "source", path

    @property
    def root(self) -> Path:
        return Path(self.source).expanduser()

    def origin(self, split: str) -> str:
        if self.source == "embedded":
            return "embedded generator"
        if self.source == "hub":
            return hub.origin(self.format.name, split)
        return ", ".join(map(str, folder.found(self.format.name, split, self.root)))

    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        if self.source == "embedded":
            generate = {Format.gsm8k: embedded_gsm8k.generate, Format.math: embedded_math.generate}[self.format]
            yield from generate(split, self.wanted(split), self.seed)
            return
        name = self.format.name
        rows = hub.rows(name, split) if self.source == "hub" else folder.rows(name, split, self.root)
        read = read_gsm8k if self.format is Format.gsm8k else read_math
        for index, (where, row) in enumerate(rows):
            yield read(f"{name}/{split}/{index:06d}", where, row) or NoAnswer(where, f"{name} answer")


def read_gsm8k(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    gold = gsm8k_gold(text_of(where, row, "answer"))
    question = text_of(where, row, "question").strip()
    return None if gold is None else Problem(name, question, gold)


def read_math(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    """MATH-500 has an `answer` field; elsewhere the gold is the last box of the solution."""
    question = text_of(where, row, "problem").strip()
    answer = row.get("answer")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = str(answer)
    gold = answer.strip() if isinstance(answer, str) else math_gold(text_of(where, row, "solution"))
    if not gold:
        return None
    refuse_no_number(where, gold)
    subject = row.get("subject") or row.get("type")
    return Problem(name, question, gold, level_of(row.get("level")), subject if isinstance(subject, str) else None)
