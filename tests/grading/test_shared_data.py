"""Agreement with labelled pairs of public graders' tests, and every gold against itself; skips without the data.

It is no part of the project: beside the repository, or in TOPR_SHARED_DATA.
"""

import json
from typing import Any

import pytest

from tests.conftest import SHARED_DATA
from topr_exp.grading import Grader, last_boxed


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a shared file; skips the test where it is absent."""
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set TOPR_SHARED_DATA)")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_equivalence(grader: Grader) -> None:
    """At least 98.5 % where all conventions agree, and not one wrong pair accepted."""
    pairs = [row for row in rows("grading/equivalence.jsonl") if row["policy"] is None]
    verdicts = grader.grade((rf"\boxed{{{row['pred']}}}", row["gold"]) for row in pairs)
    got = [outcome.verdict == "correct" for outcome in verdicts]
    accepted = [row["id"] for row, equal in zip(pairs, got, strict=True) if equal and not row["equal"]]
    agreeing = sum(equal == row["equal"] for row, equal in zip(pairs, got, strict=True))
    assert not accepted
    assert agreeing >= 0.985 * len(pairs)


def test_extraction() -> None:
    """At least 98.5 % of verdicts, and no invalid completion paid."""
    cases = [row for row in rows("grading/extraction.jsonl") if row["policy"] is None]
    agreeing = 0
    for format in sorted({row["format"] for row in cases}):
        part = [row for row in cases if row["format"] == format]
        with Grader(format, workers=2, deadline=20.0) as grader:
            outcomes = list(grader.grade((row["completion"], row["gold"]) for row in part))
        assert all(
            o.verdict != "correct" for o, row in zip(outcomes, part, strict=True) if row["expected"] == "invalid"
        )
        agreeing += sum(o.verdict == row["expected"] for o, row in zip(outcomes, part, strict=True))
    assert agreeing >= 0.985 * len(cases)


def golds(name: str) -> list[str]:
    if name == "math/math500.jsonl":
        return [row["answer"] for row in rows(name)]
    if name == "math/train4500.jsonl":
        return [str(last_boxed(row["solution"])) for row in rows(name)]
    return [row["answer"].rpartition("####")[2].strip() for row in rows(name)]


@pytest.mark.parametrize(
    "name", ["math/math500.jsonl", "math/train4500.jsonl", "gsm8k/train.jsonl", "gsm8k/test.jsonl"]
)
def test_every_gold_equals_itself(name: str) -> None:
    """Also when spaces and a full stop are added, so that more than the text's equality is at work."""
    answers = golds(name)
    format, form = ("gsm8k", "The answer is {}.") if "gsm8k" in name else ("math", r"\boxed{{{}}}")
    varied = r"\boxed{{\; {} \,.}}" if format == "math" else form
    with Grader(format, workers=1) as grader:
        for each in (form, varied):
            found = list(grader.grade((each.format(gold), gold) for gold in answers))
            assert {outcome.verdict for outcome in found} == {"correct"}
            assert "symbolic" not in {outcome.path for outcome in found}
