"""What counts as a verifier's verdict."""

from __future__ import annotations

import time

import pytest

from topr_exp.grading import Grader, extract

VERDICTS = [
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
    ("Verdict: correct.\nQuestion: What is 1+1?\nVerdict: incorrect.", "correct"),  # a further question is another's
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
]


@pytest.mark.parametrize(("text", "verdict"), VERDICTS)
def test_verdict(text: str, verdict: str | None) -> None:
    assert extract(text, "verdict") == verdict


@pytest.mark.parametrize("truth", ["correct", "incorrect"])
def test_a_verification_is_correct_when_it_tells_the_truth_and_invalid_without_a_verdict(truth: str) -> None:
    with Grader("verdict", workers=1) as grader:
        outcomes = list(grader.grade((text, truth) for text, _ in VERDICTS))
        assert not grader.worker_pids()  # nothing here is left to workers
    for outcome, (_, verdict) in zip(outcomes, VERDICTS, strict=True):
        assert outcome.verdict == ("invalid" if verdict is None else "correct" if verdict == truth else "incorrect")


@pytest.mark.parametrize(
    "text",
    ["Verdict: " * 200_000, "verdict" * 300_000, "Verdict:" + "\n" * 2_000_000, "Verdict: correct " * 100_000,
     "Verdict: " + "not " * 500_000, "Verdict: **" * 200_000 + "correct", "Verdict: \\boxed{" * 100_000],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_hostile_text_is_read_in_time(text: str) -> None:
    start = time.process_time()  # of this process alone: others may be at work
    assert extract(text, "verdict") in (None, "correct")
    assert time.process_time() - start < 20  # idle machine: well under a second
