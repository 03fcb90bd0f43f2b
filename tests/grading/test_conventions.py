"""Every convention of docs/grading.md, by the examples that stand there, in both directions."""

import re
from pathlib import Path

import pytest

from topr_exp.grading import Grader, extract

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "grading.md"
EXAMPLE = re.compile(r"- `(.+?)` ([=≠]) `(.+?)`")
EXTRACTED = re.compile(r"- `(.+?)`: `(.+?)` → `(.+?)`")
REQUIRED = (
    "Percent", "Units", "Degrees", "Lists and sets", "Tuples", "Intervals", "Mixed numbers", "Thousands", "Rounding",
    "Value, not form", "Several signs", "Names",
)  # fmt: skip


def conventions() -> dict[str, list[tuple[str, bool, str]]]:
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Conventions")[2].partition("\n## ")[0]
    sections = re.split(r"^### (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: [(gold, sign == "=", answer) for gold, sign, answer in EXAMPLE.findall(body)]
        for title, body in zip(sections[::2], sections[1::2], strict=True)
    }


def test_the_document_covers_the_conventions() -> None:
    found = conventions()
    assert set(REQUIRED) <= set(found)
    assert all(len(examples) >= 2 for examples in found.values())
    assert sum(len(examples) for examples in found.values()) > 90


@pytest.mark.parametrize("title", conventions())
def test_convention(title: str, grader: Grader) -> None:
    examples = conventions()[title]
    pairs = [(rf"\boxed{{{answer}}}", gold) for gold, _, answer in examples]
    mirrored = [(rf"\boxed{{{gold}}}", answer) for gold, _, answer in examples]
    verdicts = [outcome.verdict for outcome in grader.grade(pairs + mirrored)]
    expected = ["correct" if equal else "incorrect" for _, equal, _ in examples] * 2
    wrong = [pair for pair, got, want in zip(pairs + mirrored, verdicts, expected, strict=True) if got != want]
    assert not wrong


def test_the_answers_of_the_documents_completions() -> None:
    examples = EXTRACTED.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert len(examples) >= 9
    assert [extract(completion, format) for format, completion, _ in examples] == [answer for _, _, answer in examples]


def test_a_chain_that_contradicts_itself_votes_for_nothing(grader: Grader) -> None:
    answers = ["42", "x=41=42", "x=42=42.0", r"x=\sqrt{4}=2", "2", "x=41=43"]
    assert grader.classes(answers) == [0, 1, 0, 2, 2, 3]


HEDGES = [
    (r"\boxed{3} or \boxed{5}", "5", "incorrect"),
    (r"\boxed{3}, \boxed{5}", "5", "incorrect"),
    (r"\boxed{3 \text{ or } 5}", "5", "incorrect"),
    (r"\boxed{5, 6, 7}", "5", "incorrect"),
    (r"\boxed{x = 3 \text{ or } x = 5}", "5", "incorrect"),
    (r"First I thought it was \boxed{3}. But it is \boxed{5}", "5", "correct"),
    (r"\boxed{x = 3 = 5}", "5", "incorrect"),
    (r"\boxed{x = 3 = 5}", "3", "incorrect"),
    (r"\boxed{3 = 5}", "5", "incorrect"),
    (r"\boxed{-2} \text{ and } \boxed{1}", "1,-2", "correct"),
]
GSM8K = [
    ("The answer is 18 dollars.", "18", "correct"),
    ("The answer is $18.", "18", "correct"),
    ("The answer is 1,234.", "1234", "correct"),
    ("The answer is 18.0.", "18", "correct"),
    ("The answer is 18 or 19.", "18", "incorrect"),
    ("The answer is between 17 and 18.", "18", "incorrect"),
    ("The answer is 180.", "18", "incorrect"),
    ("The answer is 1.8", "18", "incorrect"),
    ("The answer is -18.", "18", "incorrect"),
    ("The answer is 18, which is 2 times 9.", "18", "correct"),
    ("The answer is 18 (i.e. 18.0).", "18", "correct"),
    ("The answer is 17 or 18, which is even.", "18", "incorrect"),
    ("The answer is x = 17 = 18.", "18", "incorrect"),
    ("The answer is 12, but 18 is near.", "18", "incorrect"),
    ("18", "18", "invalid"),
    ("The answer is", "18", "invalid"),
]


def test_hedging_is_not_paid(grader: Grader) -> None:
    found = grader.grade((completion, gold) for completion, gold, _ in HEDGES)
    assert [(*case[:2], one.verdict) for case, one in zip(HEDGES, found, strict=True)] == HEDGES
    with Grader("gsm8k") as phrases:
        found = phrases.grade((completion, gold) for completion, gold, _ in GSM8K)
        assert [(*case[:2], one.verdict) for case, one in zip(GSM8K, found, strict=True)] == GSM8K
