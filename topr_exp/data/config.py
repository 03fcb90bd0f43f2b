"""Settings of the problems and their prompts (the `data` group)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
class DataConfig:
    """Which problems, how they are asked, how often, and what an answer is worth."""

    name: str
    format: Format
    source: str  # embedded, hub or a folder
    seed: int  # draws the embedded problems, and the part of a larger set that train_problems asks for
    train_problems: int | None  # None takes all that there are; the embedded source has no end
    test_problems: int | None
    test_split: Split  # validation: choices are made by it, so that the test set decides nothing
    completions: str | None  # made elsewhere, trained on instead of sampling: a file of JSON lines or a store's table
    n: int  # samples a training problem
    eval_n: int  # samples a test problem
    answer_format: AnswerFormat
    grader: str | None  # None takes the grader of answer_format
    reward: Reward | None  # None: what the algorithm's paper uses
    shots: int
    fewshot_file: str | None
    template: str | None  # with {question}; None takes the one of answer_format
    chat: bool
    stop: list[str] | None  # None: the next question's beginning where there are shots

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("source must be embedded, hub or a folder; got nothing")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more; got {self.seed}")
        for name in ("train_problems", "test_problems"):
            value = getattr(self, name)
            if value is None and self.source == "embedded":
                raise ValueError(f"{name} must be a number where source is embedded, which has no end; got null")
            if value is not None and value < 1:
                raise ValueError(f"{name} must be null (all) or 1 or more; got {value}")
        sizes = (self.train_problems, self.test_problems)
        if self.test_split is Split.validation and None in sizes:
            given = " and ".join("null" if size is None else str(size) for size in sizes)
            raise ValueError(
                "train_problems and test_problems must be numbers where test_split is validation, which is taken "
                f"from what they leave of the training set; got {given}"
            )
        for name in ("n", "eval_n"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more; got {getattr(self, name)}")
        if (self.format is Format.gsm8k) != (self.answer_format is AnswerFormat.gsm8k):
            allowed = "gsm8k" if self.format is Format.gsm8k else "math or final"
            raise ValueError(
                f"answer_format must be {allowed} where format is {self.format.name}; got {self.answer_format.name}"
            )
        if self.shots < 0:
            raise ValueError(f"shots must be 0 or more; got {self.shots}")
        if self.fewshot_file is not None and self.shots == 0:
            raise ValueError(f"fewshot_file={self.fewshot_file} is not read where shots is 0")
        if self.template is not None and self.template.count("{question}") != 1:
            raise ValueError(f"template must hold {{question}} once; got {self.template!r}")
        if self.stop is not None and "" in self.stop:
            raise ValueError("stop must not hold an empty string")

    @property
    def grader_name(self) -> str:
        """The grader by name: the answer format's own unless another is set."""
        return self.grader or self.answer_format.name
