"""GSM8K and MATH: from the embedded generators, the hub, or a folder of JSON lines with the fields of either.

GSM8K: question, and an answer that ends in "#### N". MATH: problem, solution or answer, level, subject or type.
"""

import logging
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from topr_exp.config.data import ENDINGS, DataConfig, NoAnswer
from topr_exp.data import embedded_gsm8k, embedded_math
from topr_exp.data.embedded import Task, draw_problems
from topr_exp.data.problems import level_of, refuse_no_number, text_of
from topr_exp.data.user_lines import read_json_lines
from topr_exp.schema import Rule, first_line
from topr_exp.types import Problem, TOPRError


@dataclass(frozen=True)
class Origin:
    """Location of a split's problems: in files of a folder, or in a data set on the hub."""

    files: tuple[str, ...]  # patterns, of which the first that matches counts
    path: str  # of the data set
    revision: str
    configs: tuple[str | None, ...] = (None,)  # parts of the data set; None: it has none


GSM8K = partial(Origin, path="openai/gsm8k", revision="740312add88f781978c0658806c59bc2815b9866", configs=("main",))
SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
# MATH-500 is a part of MATH's test problems, so it and the 7,500 training problems have none in common.
ORIGINS = {
    ("gsm8k", "train"): GSM8K(files=("train.jsonl",)),
    ("gsm8k", "test"): GSM8K(files=("test.jsonl",)),
    ("math", "train"): Origin(
        files=("train*.jsonl",),
        path="EleutherAI/hendrycks_math",
        revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
        configs=SUBJECTS,
    ),
    ("math", "test"): Origin(
        files=("test.jsonl", "math500.jsonl"),
        path="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    ),
}


@dataclass(frozen=True)
class Benchmarks(DataConfig):
    """Problems of GSM8K or MATH, or generated ones in their form."""

    name: Literal["gsm8k", "math"]
    source: str  # embedded (generated), hub (pinned revisions), or a folder with its files

    def check(self) -> Iterator[Rule]:
        yield "source", bool(self.source), "embedded, hub or a folder"

    @property
    def generated(self) -> bool:
        return self.source == "embedded"

    @property
    def at_hand(self) -> bool:
        return self.source != "hub"

    @property
    def source_name(self) -> str:
        return self.source

    def hub_name(self, split: str) -> str | None:
        if self.source == "hub":
            return ORIGINS[self.name, split].path
        return None

    @property
    def grader_name(self) -> str:
        if self.grader is not None:
            return super().grader_name
        return self.name

    @property
    def prompt_format(self) -> str:
        if isinstance(self.grader, str) and self.grader in ENDINGS:
            return self.grader
        return self.name

    @property
    def retired_settings(self) -> dict[str, Any]:
        return {"format": self.name, "answer_format": self.prompt_format}

    def solution(self, problem: Problem) -> None:
        """None: golds of the benchmarks are not tried before a run."""

    def files(self) -> Iterator[tuple[str, Path]]:
        if self.source in ("embedded", "hub"):
            return
        for split in ("train", "test"):
            for path in self.paths(split):
                yield "source", path

    def paths(self, split: str) -> list[Path]:
        """The split's files in the folder; none where it has none."""
        folder = Path(os.path.expanduser(self.source))
        for pattern in ORIGINS[self.name, split].files:
            if paths := sorted(folder.glob(pattern)):
                return paths
        return []

    def origin(self, split: str) -> str:
        origin = ORIGINS[self.name, split]
        if self.source == "embedded":
            return "embedded generator"
        if self.source == "hub":
            return f"{origin.path}@{origin.revision[:8]}"
        if not os.path.isdir(os.path.expanduser(self.source)):
            raise TOPRError(f"data.source={self.source}: no such folder; allowed: embedded, hub or a folder")
        if paths := self.paths(split):
            return ", ".join(map(str, paths))
        files = " or ".join(origin.files)
        raise TOPRError(f"data.source={self.source}: no {files} there, the {split} problems of {self.name}")

    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        form = FORMS[self.name]
        if self.source == "embedded":
            count = self.wanted(split)
            yield from draw_problems(form.draw, self.name, split=split, count=count, seed=self.seed)
            return
        for index, (where, row) in enumerate(self.rows(split)):
            problem = form.read(f"{self.name}/{split}/{index:06d}", where, row)
            yield problem or NoAnswer(where, f"{self.name} answer")

    def rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The rows of a split, each with its file and line, or its data set and number."""
        if self.source == "hub":
            origin = ORIGINS[self.name, split]
            index = 0
            for config in origin.configs:
                for row in load_hub_rows(origin, config, split):
                    yield f"{origin.path} row {index}", row
                    index += 1
        else:
            for path in self.paths(split):
                for number, row in read_json_lines(path):
                    yield f"{path}:{number}", row


def load_hub_rows(origin: Origin, config: str | None, split: str) -> Any:
    """Load a split of a data set; TOPRError, which says how to give a folder, when the hub can't be reached."""
    from datasets import load_dataset

    # The client announces each of its retries; the one line below says it all.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return load_dataset(origin.path, config, split=split, revision=origin.revision)
    except Exception as error:
        # The client raises many types (connection, time-out, offline mode, missing); the way out is the same.
        raise TOPRError(
            f"data.source=hub: {origin.path} can't be read ({type(error).__name__}: {first_line(error)}); without the "
            f"hub, give a folder with the same fields: data.source=FOLDER"
        ) from error


def read_gsm8k(problem_id: str, where: str, row: dict[str, Any]) -> Problem | None:
    """The problem of a row of GSM8K; None without a readable answer."""
    gold = gsm8k_gold(text_of(where, row, "answer"))
    question = text_of(where, row, "question")
    if gold is not None:
        return Problem(problem_id, question, gold)
    return None


def read_math(problem_id: str, where: str, row: dict[str, Any]) -> Problem | None:
    """The problem of a row of MATH; MATH-500 has an `answer`, elsewhere the gold is the last box of the solution."""
    question = text_of(where, row, "problem")
    if row.get("answer") is None:
        gold = math_gold(text_of(where, row, "solution"))
    else:
        gold = text_of(where, row, "answer")
    if gold is None:
        return None
    refuse_no_number(where, gold)
    subject = row.get("subject") or row.get("type")
    if not isinstance(subject, str):
        subject = None
    return Problem(problem_id, question, gold, level_of(row.get("level")), subject)


def gsm8k_gold(solution: str) -> str | None:
    """The number after the last "####", without thousands separators and dollar signs; None where there is none."""
    _, mark, tail = solution.rpartition("####")
    number = tail.strip().replace(",", "").replace("$", "")
    if mark and re.fullmatch(r"[-+]?[0-9]+(?:\.[0-9]+)?", number):
        return number
    return None


def math_gold(solution: str) -> str | None:
    r"""The content of the last \boxed (or \fbox) of a solution, braces balanced; None where there is none.

    MATH also writes a single character without braces, as in "\boxed 5".
    """
    tails = re.split(r"\\(?:boxed|fbox)\s*", solution)[1:]
    if not tails:
        return None
    tail = tails[-1]  # what follows the last \boxed
    if not tail.startswith("{"):
        words = tail.split("$")[0].split()
        return words[0] if words else None
    depth = 0
    for index, character in enumerate(tail):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
        if depth == 0:
            return tail[1:index].strip() or None
    return None


class Form(NamedTuple):
    """How problems of one benchmark's form are made and read."""

    draw: Callable[[random.Random], Task]
    read: Callable[[str, str, dict[str, Any]], Problem | None]  # id, where, row


FORMS = {
    "gsm8k": Form(embedded_gsm8k.draw, read_gsm8k),
    "math": Form(embedded_math.draw, read_math),
}
