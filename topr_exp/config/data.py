"""Settings of the problems and their prompts (the `data` group), and what a source of problems says of itself."""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from topr_exp.schema import FINITE, CountOrAll, OptionalCount, Range, Section, Seed, drop_keys, show, within
from topr_exp.types import Problem

# Classes by the choice of `data=` that names them.
SOURCES = {
    "gsm8k": "topr_exp.data.benchmarks.Benchmarks",
    "jsonl": "topr_exp.data.jsonl.JsonLines",
    "ledger": "topr_exp.data.ledger.Ledger",
    "reasoning_gym": "topr_exp.data.reasoning_gym.ReasoningGym",
}

# A backslash and an n where a line break was meant, which a shell and YAML keep in plain quotes; not LaTeX (\neq).
TYPED_LINE_BREAK = re.compile(r"\\n(?![a-z])")

ENDINGS: dict[str, str] = {  # how an answer is stated, by its format
    "gsm8k": "The answer is {answer}.",
    "math": r"The answer is $\boxed{{{answer}}}$.",
    "final": "So the final answer is {answer}.",
}

THOUGHT_START = "<think>"  # some chat templates put it behind the prompt

# Graders that read more than the mark that the prompt asks for, each with the answer format of its prompt.
PROMPT_FORMATS = {"lenient": "gsm8k"}
ANSWER_GRADERS = ("gsm8k", *PROMPT_FORMATS, "math", "final")
# Values of data.grader that are the package's own, which may run whoever wrote the settings.
GRADERS = (*ANSWER_GRADERS, "verdict", {"_target_": "topr_exp.grading.gym.grade"})
# R0 of a correct completion and of any other: 1 and -1, 1 and 0, or the number that the grader or the log gives.
Reward = Literal["pm1", "zero_one", "graded", "given"]
LARGEST_REWARD = 3.4e38  # training computes in float32


@dataclass(frozen=True)
class Columns(Section):
    """Columns of a log of completions; null: the first known name that a row has (`imported.roles.KNOWN_NAMES`)."""

    prompt: str | None = None  # a text, messages or token ids
    completion: str | None = None  # a text, messages or token ids
    reward: str | None = None  # or several that are added up, as in accuracy+format
    logprobs: str | None = None
    tokens: str | None = None  # ids of the completion
    prompt_tokens: str | None = None  # ids of the prompt
    question: str | None = None  # for the run's own template
    gold: str | None = None
    problem_id: str | None = None  # the same for all completions of a prompt
    finish: str | None = None  # stop, length or stop_string; or true if the row was cut off


@dataclass(frozen=True)
class Grading:
    """How completions are graded: the part of the settings that grading sees."""

    grader: str  # an answer format, or package.module.name of a user's function or class
    graded: bool = False  # the grader's numbers are the rewards
    threshold: float = 1.0  # smallest number that is correct, without a verdict
    settings: str = "{}"  # of a user's class, as JSON


def has_no_typed_break(texts: str | list[str]) -> bool:
    """True for a text, or a list of them, without a backslash and an n in the place of a line break."""
    if isinstance(texts, str):
        texts = [texts]
    return not any(map(TYPED_LINE_BREAK.search, texts))


LINE_BREAKS = Range(
    "text without a backslash and an n, which make no line break; in bash write one as in $'KEY=\"one\\ntwo\"', in a "
    "YAML file in double quotes",
    has_no_typed_break,
)
COMPLETIONS = Range("null, a file, a folder, hub:NAME or a table of the store", bool)
WITH_QUESTION = Range("a text that holds {question} once", lambda text: text.count("{question}") == 1)
NO_EMPTY = Range("texts, none of them empty", all)
SHOTS = Range(
    "0 or more, or a file of JSON lines",
    lambda shots: shots >= 0 if type(shots) is int else isinstance(shots, str) and shots != "",
)
Samples = Annotated[int, within("[1, 32767]")]  # the store numbers a problem's samples by 16 bits
FIXED_OPTIONS = ("tokenize", "add_generation_prompt")  # of a chat template; this package sets them
CHAT_OPTIONS = Range(
    f"null or {{NAME: VALUE}}, no NAME of {', '.join(FIXED_OPTIONS)}",
    lambda options: isinstance(options, Mapping) and options.keys().isdisjoint(FIXED_OPTIONS),
)


class NoAnswer(NamedTuple):
    """In the place of a problem whose gold answer can't be read: it is left out and counted."""

    where: str
    kind: str = "answer"  # in words, for the message


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section, ABC):
    """Which problems, how they are asked, how often, and what an answer is worth.

    The class of a choice of `data=` (its `_target_`) is a frozen dataclass below this one: it adds settings of its
    own, and `problems` yields what they stand for. The rest of the methods can stay as they are.
    """

    name: str  # `data=NAME` chooses; of your own problems, a label
    seed: Seed  # for generated problems, and for selecting train_problems from a larger set
    train_problems: CountOrAll  # None: all
    test_problems: CountOrAll
    test_split: Literal["test", "validation"] = "test"
    completions: Annotated[str | None, COMPLETIONS] = None  # a log of completions to train on instead of sampling
    columns: Columns | None = None  # column names in `completions`; null: known names
    skip_malformed: bool = False  # skip and count unreadable rows of `completions` instead of stopping
    completion_limit: OptionalCount = None  # token limit of a log without a finish column
    n: Samples  # samples per training problem
    eval_n: Samples  # samples per test problem
    grader: str | dict[str, Any] | None
    reward: Reward | None = None  # None: as in the algorithm's paper
    threshold: Annotated[float, FINITE] = Grading.threshold  # numbers of your grader or log are correct from here on
    shots: Annotated[Any, SHOTS]
    # With {question}, and the names of further fields; None takes that of the grader.
    template: Annotated[str | None, WITH_QUESTION, LINE_BREAKS] = None
    chat: bool = False
    chat_options: Annotated[Any, CHAT_OPTIONS] = None  # variables of the chat template, by name
    # None: the next question's beginning where there are shots.
    stop: Annotated[list[str] | None, NO_EMPTY, LINE_BREAKS] = None

    # ---- what a source says

    @abstractmethod
    def problems(self, split: str) -> Iterable[Problem | NoAnswer]:
        """The problems of a split (train or test), each time the same and in the same order, no id twice."""

    @property
    def generated(self) -> bool:
        """True if there is no end of problems: then the first `wanted(split)` are taken, no part is drawn."""
        return False

    @property
    def at_hand(self) -> bool:
        """True if the problems can be read, and so checked, before a run starts."""
        return True

    def files(self) -> Iterator[tuple[str, Path]]:
        """The files that are read, each with the setting that names it: a run whose files changed is refused."""
        yield from ()

    def origin(self, split: str) -> str:
        """Describe the origin of a split."""
        return f"the {split} split of data={self.name}"

    def why_empty(self, split: str) -> str:
        """Say that a split has no problems, in a line."""
        return f"{self.origin(split)} holds no problems"

    @property
    def source_name(self) -> str:
        """Origin of the problems in a word: the class, a folder, ..."""
        return type(self).__name__

    @property
    def described(self) -> str:
        """The problems in words: generated ones are not those of the benchmark whose form they have."""
        whose = f"generated in the form of {self.name}" if self.generated else f"of {self.name} from {self.source_name}"
        return f"problems {whose}"

    def hub_name(self, split: str) -> str | None:
        """The data set of the hub that the problems of a split are, for the card of a trained model."""
        return None

    @property
    def grader_name(self) -> str:
        """The grader by name: an answer format, or package.module.name of a user's."""
        if isinstance(self.grader, dict) and isinstance(self.grader.get("_target_"), str):
            return str(self.grader["_target_"])
        if isinstance(self.grader, str) and self.grader in GRADERS:
            return self.grader
        example = "package.module.name"
        if isinstance(self.grader, str) and ":" in self.grader:
            example = self.grader.replace(":", ".")
        raise ValueError(
            f"grader must be {', '.join(ANSWER_GRADERS)} or your own by data.grader._target_={example}; "
            f"got {show(self.grader)}"
        )

    def grading(self, *, graded: bool = False) -> Grading:
        """Settings of grading; graded: the grader's numbers are the rewards."""
        settings = {}
        if isinstance(self.grader, dict):
            settings = drop_keys(self.grader, "_target_")
        return Grading(self.grader_name, graded, self.threshold, json.dumps(settings, sort_keys=True))

    @property
    def prompt_format(self) -> str | None:
        """The answer format whose template and worked examples are taken; None for a grader of the user's own."""
        answer_format = PROMPT_FORMATS.get(self.grader_name, self.grader_name)
        if answer_format in ENDINGS:
            return answer_format
        return None

    def solution(self, problem: Problem) -> str | None:
        """A completion that the grader has to call correct, since every gold is tried; None: it is not tried."""
        if self.prompt_format is None:
            return problem.answer
        return ENDINGS[self.prompt_format].format(answer=problem.answer)

    # ---- what all have in common

    def wanted(self, split: str) -> int:
        """Number of problems of a split to ask of a source without end."""
        assert self.train_problems is not None
        assert self.test_problems is not None
        if split == "test":
            return self.test_problems
        if self.test_split == "validation":
            return self.train_problems + self.test_problems
        return self.train_problems

    def __post_init__(self) -> None:
        """Expand `~` of the files that every source may read; `path` and `source` keep it, which name runs."""
        for name in ("completions", "shots"):
            path = getattr(self, name)
            if isinstance(path, str):
                object.__setattr__(self, name, os.path.expanduser(path))
        super().__post_init__()
        if self.shots is None:
            raise ValueError(f"shots must be {SHOTS.allowed}; got null")
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) is None and self.generated:
                raise ValueError(f"{name} must be a number: {self.source_name} problems have no end; got null")
            if getattr(self, name) is None and self.test_split == "validation":
                raise ValueError(f"{name} must be a number where test_split is validation; got null")
        assert self.grader_name  # the property raises ValueError for no grader: null, or an unknown name
