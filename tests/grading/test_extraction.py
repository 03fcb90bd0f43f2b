"""Answers of completions, in time linear in the text, and every convention of docs/verdicts.md in both directions."""

import re
import time

import pytest

from tests.conftest import ROOT
from tests.grading.cases import ANSWERS, VERDICTS
from topr_exp.grading import Grader, extract, last_boxed

DOCUMENT = (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")
EXTRACTED = re.findall(r"- `(.+?)`: `(.+?)` → `(.+?)`", DOCUMENT)
SECTIONS = re.split(r"^## (.+)$", (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
CONVENTIONS = {
    title: re.findall(r"- `(.+?)` ([=≠]) `(.+?)`", body)
    for title, body in zip(SECTIONS[1::2], SECTIONS[2::2], strict=True)
}


@pytest.mark.parametrize(("format", "text", "answer"), [(each, *case) for each in ANSWERS for case in ANSWERS[each]])
def test_answer(format: str, text: str, answer: str | None) -> None:
    assert extract(text, format) == answer
    if format == "math":
        assert last_boxed(text) == answer


def test_answers_of_the_document() -> None:
    assert (len(EXTRACTED) >= 9, len(CONVENTIONS) >= 12) == (True, True)
    assert [extract(completion, format) for format, completion, _ in EXTRACTED] == [answer for *_, answer in EXTRACTED]


@pytest.mark.parametrize("title", CONVENTIONS)
def test_convention(title: str, grader: Grader) -> None:
    pairs, expected = [], []
    for gold, sign, answer in CONVENTIONS[title]:
        pairs += [(rf"\boxed{{{answer}}}", gold), (rf"\boxed{{{gold}}}", answer)]
        expected += ["correct" if sign == "=" else "incorrect"] * 2
    assert len(pairs) >= 4
    verdicts = [outcome.verdict for outcome in grader.grade(pairs)]
    assert not [pair for pair, got, want in zip(pairs, verdicts, expected, strict=True) if got != want]


@pytest.mark.parametrize("format", VERDICTS)
def test_hedging_is_not_paid(format: str) -> None:
    with Grader(format, workers=1, deadline=20.0) as grader:
        found = grader.grade((completion, gold) for completion, gold, _ in VERDICTS[format])
        got = [(*case[:2], one.verdict) for case, one in zip(VERDICTS[format], found, strict=True)]
    assert got == VERDICTS[format]


@pytest.mark.parametrize("truth", ["correct", "incorrect"])
def test_a_verification_is_correct_when_it_tells_the_truth_and_invalid_without_a_verdict(truth: str) -> None:
    with Grader("verdict", workers=1) as grader:
        outcomes = list(grader.grade((text, truth) for text, _ in ANSWERS["verdict"]))
        assert not grader.worker_pids()  # nothing here is left to workers
    expected = {None: "invalid", truth: "correct"}
    assert [one.verdict for one in outcomes] == [expected.get(said, "incorrect") for _, said in ANSWERS["verdict"]]


UNITS = (
    r"\boxed{", r"\boxed ", r"\boxed", "{", "}", "\n", "The answer is ", "The answer is 5. ", "the final answer is ",
    "the ", "The answer is 5, which ", r"\boxed{5 \text{ ", "</think>", r"\boxed{1} and ", "$", r"\[", "\nQ", " ", "\\",
    "Verdict: ", "verdict", "Verdict:\n", "Verdict: correct ", "Verdict: not ", "Verdict: **", "Verdict: \\boxed{",
)  # fmt: skip


@pytest.mark.parametrize("format", ANSWERS)
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str, format: str) -> None:
    """A million characters of anything; a quadratic scanner would need hours."""
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()  # of this process alone: others may be at work
    extract(text, format)
    assert time.process_time() - start < 20  # an idle machine needs well under a second
