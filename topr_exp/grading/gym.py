"""The grader of reasoning-gym's tasks: the task's own `score_answer`, except where that would evaluate the answer."""

import functools
import importlib
import json
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from topr_exp.grading.expression import rational_value
from topr_exp.grading.extraction import tagged


def prepare() -> None:
    """Load the library once, before the workers are forked."""
    importlib.import_module("reasoning_gym")


def grade(completion: str, gold: str) -> tuple[str, str | None, float]:
    """Grade the last <answer>...</answer>: the verdict, the answer and the task's score in [0, 1].

    gold: the problem as JSON, with `task`, `options` of the task, `answer` and `metadata`. A score of 1 is correct,
    anything else incorrect, also where the task's scorer fails. Without an answer: invalid, which scores 0.
    """
    answer = tagged(completion)
    if answer is None:
        return "invalid", None, 0.0
    reward = score(answer, json.loads(gold))
    verdict = "correct" if reward == 1 else "incorrect"
    return verdict, answer, reward


def score(answer: str, entry: Mapping[str, Any]) -> float:
    """A task's score of an answer, in [0, 1]; entry: the problem, as `grade` gets it."""
    task = entry["task"]
    metadata = entry["metadata"]
    if task in ("countdown", "puzzle24"):  # the library's scorers parse these answers by evaluating them
        arithmetic = value_and_numbers(answer)
        if arithmetic is None:
            return 0.0
        value, numbers = arithmetic
        target = metadata["target"] if task == "countdown" else 24
        uses_given_numbers = sorted(numbers) == sorted(metadata["numbers"])
        return float(value == target and uses_given_numbers)
    scorer = task_of(task, json.dumps(entry["options"]))
    try:
        return float(scorer.score_answer(answer, entry))
    except (MemoryError, RecursionError):
        raise  # they end the worker
    except Exception:  # the library's, on a text that it did not expect; golds are tried before a run
        return 0.0


@functools.lru_cache(maxsize=8)
def task_of(task: str, options: str) -> Any:
    """The task, with these options as JSON; its `score_answer` draws nothing."""
    library = importlib.import_module("reasoning_gym")
    return library.create_dataset(task, seed=0, size=1, **json.loads(options))


_ARITHMETIC = re.compile(r"[\s0-9+\-*/()]{1,200}", re.ASCII)
# A product without its sign, a sign without its number, and a number of over 12 digits.
_NO_ARITHMETIC = re.compile(r"[\d)]\s*\(|\)\s*\d|\d\s+\d|(^|[-+*/(])\s*\+|\d{13}", re.ASCII)


def value_and_numbers(text: str) -> tuple[Fraction, list[int]] | None:
    """The value of a text of whole numbers, + - * / and parentheses, and its numbers; nothing is evaluated as code.

    None for anything else, a division by zero, more than 200 characters or a number of more than 12 digits.
    """
    text = text.strip()
    if not _ARITHMETIC.fullmatch(text) or _NO_ARITHMETIC.search(text):
        return None
    value = rational_value(tuple(re.findall(r"\d+|\S", text)))
    if value is None:
        return None
    return value, [int(number) for number in re.findall(r"\d+", text)]
