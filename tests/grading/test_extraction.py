"""The answer of a completion; finding it takes time linear in the text."""

import time

import pytest

from topr_exp.grading import Grader, extract, last_boxed
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


PHRASES = {
    "gsm8k": [
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
    ],
    "final": [
        ("Thus the final answer is 5.", "5"),
        (r"The final answer is $\frac{1}{2}$. I hope it is correct.", r"$\frac{1}{2}$"),
        (r"The final answer is (3, \pi).", r"(3, \pi)"),
        ("The answer is 5.", None),
        ("The final answer is 16386.16", "16386.16"),
        ("The final answer is 9 a.m. sharp.", "9 a.m. sharp"),
    ],
    "verdict": [
        (" 12+5=17. It says 17. Verdict: correct.", "correct"),
        (" 12+5=17. It says 18. Verdict: incorrect.", "incorrect"),
        ("verdict: INCORRECT", "incorrect"),
        ("**Verdict:** Correct", "correct"),
        ("**Verdict**: *incorrect*.", "incorrect"),
        ("Verdict:\ncorrect.", "correct"),
        ("My verdict is correct!", "correct"),
        (r"Verdict: \boxed{incorrect}", "incorrect"),
        ("Verdict: the solution is incorrect.", "incorrect"),
        ("Verdict: incorrect. The sum is not right.", "incorrect"),
        ("Verdict: correct. No: 3 is wrong. Verdict: incorrect.", "incorrect"),  # the last one counts
        ("Verdict: correct. Verdict:", "correct"),
        (
            "Verdict: correct.\nQuestion: What is 1+1?\nVerdict: incorrect.",
            "correct",
        ),  # another's
        ("Verdict: correct or incorrect.", None),
        ("Verdict: correct, not incorrect.", None),
        ("Verdict: not correct.", None),
        ("Verdict: this isn't correct.", None),
        ("Verdict: this isn’t correct.", None),
        ("Verdict: incorrectly stated.", None),
        ("Verdict: right.", None),
        ("The solution is correct.", None),
        ("It looks fine.", None),
        ("<think>Verdict: correct.</think> I don't know.", None),
        ("Verdict correct", None),
        ("Verdict:", None),
        ("", None),
    ],
}


@pytest.mark.parametrize(
    ("format", "text", "answer"), [(format, *case) for format, cases in PHRASES.items() for case in cases]
)
def test_phrase(format: str, text: str, answer: str | None) -> None:
    assert extract(text, format) == answer


@pytest.mark.parametrize("truth", ["correct", "incorrect"])
def test_a_verification_is_correct_when_it_tells_the_truth_and_invalid_without_a_verdict(truth: str) -> None:
    with Grader("verdict", workers=1) as grader:
        outcomes = list(grader.grade((text, truth) for text, _ in PHRASES["verdict"]))
        assert not grader.worker_pids()  # nothing here is left to workers
    expected = {None: "invalid", truth: "correct"}
    assert [one.verdict for one in outcomes] == [expected.get(said, "incorrect") for _, said in PHRASES["verdict"]]


def test_unknown_format() -> None:
    with pytest.raises(ConfigError, match="gsm8k, math, final, verdict; got mmlu"):
        extract("", "mmlu")


UNITS = (
    r"\boxed{", r"\boxed ", r"\boxed", "{", "}", "\n", "The answer is ", "The answer is 5. ", "the final answer is ",
    "the ", "The answer is 5, which ", r"\boxed{5 \text{ ", "</think>", r"\boxed{1} and ", "$", r"\[", "\nQ", " ", "\\",
    "Verdict: ", "verdict", "Verdict:\n", "Verdict: correct ", "Verdict: not ", "Verdict: **", "Verdict: \\boxed{",
)  # fmt: skip


@pytest.mark.parametrize("format", ["math", *PHRASES])
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str, format: str) -> None:
    """A million characters of anything; a quadratic scanner would need hours."""
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()  # of this process alone: others may be at work
    extract(text, format)
    assert time.process_time() - start < 20  # an idle machine needs well under a second
