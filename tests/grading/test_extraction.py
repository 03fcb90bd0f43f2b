"""What counts as a completion's answer, and that finding it takes time linear in the text."""

import time

import pytest

from topr_exp.grading import extract, last_boxed
from topr_exp.types import ConfigError

BOXES = [
    (r"so \boxed{5}.", "5"),
    (r"\boxed{1} no, \boxed{2}", "2"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed {7}", "7"),
    (r"\fbox{7}", "7"),
    (r"$\boxed 5$ is it", "5"),
    (r"hence \boxed 5. Done", "5"),
    (r"$\boxed\frac{1}{2}$", r"\frac{1}{2}"),
    (r"\boxed{3} and then \boxed{4", "3"),  # the last balanced one
    (r"\boxed{ \left\{ 1, 2 \right\} }", r"\left\{ 1, 2 \right\}"),
    (r"{ \boxed{3} } } \boxed{4}", "4"),  # stray braces outside
    (r"\boxed{\boxed{3}}", r"\boxed{3}"),
    (r"\boxed{}", None),
    (r"\boxed{  }", None),
    (r"\boxed{", None),
    (r"\boxedx{5}", None),
    ("5", None),
    (r"\boxed{1} and \boxed{2}", "1, 2"),
    (r"$\boxed{1}$ or $\boxed{2}$", "1, 2"),
    (r"\[\boxed{1}\] \quad \text{and} \quad \[\boxed{2}\]", "1, 2"),
    (r"\boxed{2} and $\boxed{ 2 }$, \boxed{2}", "2"),  # the same box over and over
    (r"\boxed{x+1}, \boxed{x + 1}", "x+1"),
    (r"\boxed{\text{a number which is even}}", r"\text{a number which is even}"),
    (r"\boxed{1} gives us \boxed{2}", "2"),
    (r"\boxed{9}, then, after much more work of another kind altogether, \boxed{1}, \boxed{2}", "1, 2"),
]


@pytest.mark.parametrize(("text", "answer"), BOXES)
def test_last_boxed(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer
    assert extract(text, "math") == answer


GSM8K = [
    ("3 + 4 = 7. The answer is 7.", "7"),
    ("The answer is 7", "7"),
    ("So the answer is: 7.", "7"),
    ("The answer is $1,234.50.", "$1,234.50"),
    ("The answer is -3.5. I hope it is correct.", "-3.5"),
    ("The answer is **18**.", "18"),
    ("The answer is 18 dollars.\nThat is all.", "18 dollars"),
    ("The answer is\n\n42.", "42"),
    (r"The answer is $\boxed{42}$.", "42"),
    (r"The answer is \[ 42 \]", "42"),
    ("The answer is 5. No, the answer is 6.", "6"),  # the last completed phrase
    ("The answer is 5. The answer is", "5"),
    ("The answer is 5.\n\nQ: How many?\nA: The answer is 9.", "5"),  # a further question is not this one's
    ("The answer is 5.\nQuestion: How many?\nAnswer: The answer is 9.", "5"),
    ("The answer is which one?", "which one"),  # no value stands before the clause
    ("The answer is (that is, if all is well) 7.", "(that is, if all is well) 7"),
    ("The answer is not 5.", None),
    ("The answer isn't 5.", None),
    ("The answer is", None),
    ("The answer is ...", None),
    ("It is 7.", None),
    ("7", None),
    ("", None),
    ("<think>The answer is 3.</think> Hm.", None),
    ("<think>The answer is 3.</think> The answer is 4.", "4"),
]


@pytest.mark.parametrize(("text", "answer"), GSM8K)
def test_phrase(text: str, answer: str | None) -> None:
    assert extract(text, "gsm8k") == answer


FINAL = [
    ("Thus the final answer is 5.", "5"),
    (r"The final answer is $\frac{1}{2}$. I hope it is correct.", r"$\frac{1}{2}$"),
    (r"The final answer is (3, \pi).", r"(3, \pi)"),
    ("The answer is 5.", None),
    ("The final answer is 16386.16", "16386.16"),
    ("The final answer is 9 a.m. sharp.", "9 a.m. sharp"),
]


@pytest.mark.parametrize(("text", "answer"), FINAL)
def test_final(text: str, answer: str | None) -> None:
    assert extract(text, "final") == answer


def test_unknown_format() -> None:
    with pytest.raises(ConfigError, match="gsm8k, math, final, verdict; got mmlu"):
        extract("", "mmlu")


UNITS = (
    r"\boxed{", r"\boxed ", r"\boxed", "{", "}", "\n", "The answer is ", "The answer is 5. ", "the final answer is ",
    "the ", "The answer is 5, which ", r"\boxed{5 \text{ ", "</think>", r"\boxed{1} and ", "$", r"\[", "\nQ", " ", "\\",
)  # fmt: skip


@pytest.mark.parametrize("format", ["math", "gsm8k", "final"])
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str, format: str) -> None:
    """A million characters of anything; a quadratic scanner would need hours."""
    text = unit * (1_000_000 // len(unit))
    best = min(_seconds(text, format) for _ in range(2))
    assert best < 10.0


def _seconds(text: str, format: str) -> float:
    start = time.process_time()  # of this process alone: others may be at work
    extract(text, format)
    return time.process_time() - start
