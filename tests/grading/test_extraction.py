"""Answers of completions, in time linear in the text, and every convention of docs/verdicts.md in both directions."""

import json
import re
import time
from typing import Any

import pytest

from tests.conftest import ROOT, SHARED_DATA
from tests.grading.cases import ANSWERS, VERDICTS
from tests.grading.conftest import worker_pids
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
        assert not worker_pids(grader)  # nothing here is left to workers
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


# ---- labelled pairs of public graders' tests; skips without the data


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a shared file; skips the test where it is absent."""
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set TOPR_SHARED_DATA)")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_agreement(grader: Grader) -> None:
    """At least 98.5 % where all conventions agree; not one wrong pair and no invalid completion is paid."""
    pairs = [row for row in rows("grading/equivalence.jsonl") if row["policy"] is None]
    verdicts = [one.verdict for one in grader.grade((rf"\boxed{{{row['pred']}}}", row["gold"]) for row in pairs)]
    found = [(verdict == "correct", row["equal"]) for verdict, row in zip(verdicts, pairs, strict=True)]
    assert (True, False) not in found
    assert sum(got == right for got, right in found) >= 0.985 * len(pairs)
    cases, found = [row for row in rows("grading/extraction.jsonl") if row["policy"] is None], []
    for format in sorted({row["format"] for row in cases}):
        part = [row for row in cases if row["format"] == format]
        with Grader(format, workers=2, deadline=20.0) as other:
            outcomes = other.grade((row["completion"], row["gold"]) for row in part)
            found += [(one.verdict, row["expected"]) for one, row in zip(outcomes, part, strict=True)]
    assert ("correct", "invalid") not in found
    assert sum(got == expected for got, expected in found) >= 0.985 * len(cases)


GOLDS = dict.fromkeys(
    ("gsm8k/train.jsonl", "gsm8k/test.jsonl"), lambda row: row["answer"].rpartition("####")[2].strip()
)
GOLDS["math/math500.jsonl"] = lambda row: row["answer"]
GOLDS["math/train4500.jsonl"] = lambda row: str(last_boxed(row["solution"]))


@pytest.mark.parametrize("name", GOLDS)
def test_every_gold_equals_itself(name: str) -> None:
    """Also when spaces and a full stop are added, so that more than the text's equality is at work."""
    answers = [*map(GOLDS[name], rows(name))]
    format, form = ("gsm8k", "The answer is {}.") if "gsm8k" in name else ("math", r"\boxed{{{}}}")
    varied = r"\boxed{{\; {} \,.}}" if format == "math" else form
    with Grader(format, workers=1) as grader:
        for each in (form, varied):
            found = list(grader.grade((each.format(gold), gold) for gold in answers))
            assert {outcome.verdict for outcome in found} == {"correct"}
            assert "symbolic" not in {outcome.path for outcome in found}
