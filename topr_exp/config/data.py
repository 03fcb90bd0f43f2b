"""Settings of the problems and their prompts (the `data` group)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from topr_exp.config.line_breaks import check_line_breaks
from topr_exp.config.section import Count, CountOrAll, Section, Seed, at_least


class Format(Enum):
    """The benchmark whose fields the problems have."""

    gsm8k = "gsm8k"
    math = "math"


class AnswerFormat(Enum):
    """How a completion marks its answer: "The answer is N.", a box, or "the final answer is X."."""

    gsm8k = "gsm8k"
    math = "math"
    final = "final"


class Split(Enum):
    """What a run is evaluated on: the test set, or problems of the training set that are not trained on."""

    test = "test"
    validation = "validation"


class Reward(Enum):
    """R0 of a correct response and of any other: 1 and -1, or 1 and 0."""

    pm1 = "pm1"
    zero_one = "zero_one"


@dataclass(frozen=True)
class DataConfig(Section):
    """Which problems, how they are asked, how often, and what an answer is worth."""

    name: str
    format: Format
    source: str  # embedded, hub or a folder
    seed: Seed  # draws the embedded problems, and the part of a larger set that train_problems asks for
    train_problems: CountOrAll  # None takes all that there are; the embedded source has no end
    test_problems: CountOrAll
    test_split: Split  # validation: choices are made by it, so that the test set decides nothing
    completions: str | None  # made elsewhere, trained on instead of sampling: a file of JSON lines or a store's table
    n: Count  # samples a training problem
    eval_n: Count  # samples a test problem
    answer_format: AnswerFormat
    grader: str | None  # None takes the grader of answer_format
    reward: Reward | None  # None: what the algorithm's paper uses
    shots: Annotated[int, at_least(0)]
    fewshot_file: str | None
    template: str | None  # with {question}; None takes the one of answer_format
    chat: bool
    stop: list[str] | None  # None: the next question's beginning where there are shots

    def check(self) -> None:
        if not self.source:
            raise ValueError("source must be embedded, hub or a folder; got nothing")
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) is None and self.source == "embedded":
                raise ValueError(f"{name} must be a number where source is embedded, which has no end; got null")
        sizes = (self.train_problems, self.test_problems)
        if self.test_split is Split.validation and None in sizes:
            given = " and ".join("null" if size is None else str(size) for size in sizes)
            raise ValueError(
                "train_problems and test_problems must be numbers where test_split is validation, which is taken "
                f"from what they leave of the training set; got {given}"
            )
        if (self.format is Format.gsm8k) != (self.answer_format is AnswerFormat.gsm8k):
            allowed = "gsm8k" if self.format is Format.gsm8k else "math or final"
            raise ValueError(
                f"answer_format must be {allowed} where format is {self.format.name}; got {self.answer_format.name}"
            )
        if self.fewshot_file is not None and self.shots == 0:
            raise ValueError(f"fewshot_file={self.fewshot_file} is not read where shots is 0")
        if self.template is not None and self.template.count("{question}") != 1:
            raise ValueError(f"template must hold {{question}} once; got {self.template!r}")
        if self.stop is not None and "" in self.stop:
            raise ValueError("stop must not hold an empty string")
        check_line_breaks("template", r'data.template="Q: {question}\nA:"', self.template)
        check_line_breaks("stop", r'data.stop=["\nQ:"]', *(self.stop or ()))

    @property
    def grader_name(self) -> str:
        """The grader by name: the answer format's own unless another is set."""
        return self.grader or self.answer_format.name
