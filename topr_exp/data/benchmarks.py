"""GSM8K and MATH: from the embedded generators, the hub, or a folder of JSON lines with the fields of either.

GSM8K: question, and an answer that ends in "#### N". MATH: problem, solution or answer, level, subject or type.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from topr_exp.config.data import AnswerFormat, DataConfig, NoAnswer
from topr_exp.data import embedded_gsm8k, embedded_math
from topr_exp.data.embedded import draw_problems
from topr_exp.data.problems import level_of, refuse_no_number, text_of
from topr_exp.runtime.files import read_json_lines
from topr_exp.schema import Rule
from topr_exp.types import Problem, TOPRError


@dataclass(frozen=True)
class Origin:
    """One split: the files that a folder has, the first pattern that any is like; and a data set on the hub."""

    files: tuple[str, ...]
    path: str
    revision: str
    configs: tuple[str | None, ...]


GSM8K = "openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", ("main",)
SUBJECTS = ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory", "prealgebra",
            "precalculus")  # fmt: skip
# MATH-500 is a part of MATH's test problems, so it and the 7,500 training problems have none in common.
ORIGINS = {
    ("gsm8k", "train"): Origin(("train.jsonl",), *GSM8K),
    ("gsm8k", "test"): Origin(("test.jsonl",), *GSM8K),
    ("math", "train"): Origin(
        ("train*.jsonl",), "EleutherAI/hendrycks_math", "21a5633873b6a120296cce3e2df9d5550074f4a3", SUBJECTS
    ),
    ("math", "test"): Origin(
        ("test.jsonl", "math500.jsonl"), "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", (None,)
    ),
}


@dataclass(frozen=True)
class Benchmarks(DataConfig):
    """The problems of one of the two benchmarks, or ones of its form."""

    format: Literal["gsm8k", "math"]
    source: str  # embedded, hub or a folder
    answer_format: AnswerFormat  # the grader too, unless `grader` names another

    def check(self) -> Iterator[Rule]:
        yield "source", bool(self.source), "embedded, hub or a folder"

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
        return ORIGINS[self.format, split].path if self.source == "hub" else None

    @property
    def grader_name(self) -> str:
        return self.grader or self.answer_format

    @property
    def asked_as(self) -> AnswerFormat:
        return self.answer_format

    def solution(self, problem: Problem) -> None:
        """None: what the benchmarks mark as right is no completion of the kind that is asked for."""

    def files(self) -> Iterator[tuple[str, Path]]:
        if self.source not in ("embedded", "hub"):
            yield from (("source", path) for split in ("train", "test") for path in self.paths(split))

    def paths(self, split: str) -> list[Path]:
        """The split's files in the folder; none where it has none."""
        folder = Path(self.source).expanduser()
        there = (sorted(folder.glob(pattern)) for pattern in ORIGINS[self.format, split].files)
        return next(filter(None, there), [])

    def origin(self, split: str) -> str:
        of_split = ORIGINS[self.format, split]
        if self.source == "embedded":
            return "embedded generator"
        if self.source == "hub":
            return f"{of_split.path}@{of_split.revision[:8]}"
        if not Path(self.source).expanduser().is_dir():
            raise TOPRError(f"data.source={self.source}: no such folder; allowed: embedded, hub or a folder")
        if there := self.paths(split):
            return ", ".join(map(str, there))
        wanted = " or ".join(of_split.files)
        raise TOPRError(f"data.source={self.source}: no {wanted} there, the {split} problems of {self.format}")

    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        name, gsm8k = self.format, self.format == "gsm8k"
        if self.source == "embedded":
            draw = embedded_gsm8k.draw if gsm8k else embedded_math.draw
            yield from draw_problems(draw, name, split, self.wanted(split), self.seed)
            return
        for index, (where, row) in enumerate(self.rows(split)):
            problem = (read_gsm8k if gsm8k else read_math)(f"{name}/{split}/{index:06d}", where, row)
            yield problem or NoAnswer(where, f"{name} answer")

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """A split's rows, each named by its file and line, or by data set and number."""
        if self.source == "hub":
            of_split = ORIGINS[self.format, split]
            found = (row for config in of_split.configs for row in load(of_split, config, split))
            yield from ((f"{of_split.path} row {index}", row) for index, row in enumerate(found))
        else:
            for path in self.paths(split):
                yield from ((f"{path}:{number}", row) for number, row in read_json_lines(path))


def load(origin: Origin, config: str | None, split: str) -> Any:
    """A data set of the hub; TOPRError, which says how to give a folder, when the hub can't be reached."""
    from datasets import load_dataset

    # The client announces each of its retries; the one line below says it all.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return load_dataset(origin.path, config, split=split, revision=origin.revision)
    except Exception as error:
        # The client raises many types (connection, time-out, offline mode, missing); the way out is the same.
        reason = (str(error).strip().splitlines() or [""])[0]
        raise TOPRError(
            f"data.source=hub: {origin.path} can't be read ({type(error).__name__}: {reason}); without the hub, "
            f"give a folder with the same fields: data.source=FOLDER"
        ) from error


def read_gsm8k(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    gold, question = gsm8k_gold(text_of(where, row, "answer")), text_of(where, row, "question")
    return None if gold is None else Problem(name, question, gold)


def read_math(name: str, where: str, row: dict[str, Any]) -> Problem | None:
    """MATH-500 has an `answer` field; elsewhere the gold is the last box of the solution."""
    question, answered = text_of(where, row, "problem"), row.get("answer") is not None
    gold = text_of(where, row, "answer") if answered else math_gold(text_of(where, row, "solution"))
    if not gold:
        return None
    refuse_no_number(where, gold)
    subject = row.get("subject") or row.get("type")
    return Problem(name, question, gold, level_of(row.get("level")), subject if isinstance(subject, str) else None)


def gsm8k_gold(solution: str) -> str | None:
    """The number after the last "####", without thousands separators and dollar signs; None where there is none."""
    _, mark, tail = solution.rpartition("####")
    number = tail.strip().replace(",", "").replace("$", "")
    return number if mark and re.fullmatch(r"[-+]?[0-9]+(?:\.[0-9]+)?", number) else None


def math_gold(solution: str) -> str | None:
    r"""The content of the last \boxed (or \fbox) of a solution, braces balanced; None where there is none.

    MATH also writes a single character without braces, as in "\boxed 5".
    """
    *before, after = re.split(r"\\(?:boxed|fbox)\s*", solution)
    if not after.startswith("{"):
        return next(iter(after.split("$")[0].split()), None) if before else None
    levels = accumulate((character == "{") - (character == "}") for character in after)
    end = next((index for index, level in enumerate(levels) if level == 0), None)
    return after[1:end].strip() or None if before and end is not None else None
