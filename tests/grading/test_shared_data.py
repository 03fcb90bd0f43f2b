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
