"""What a run says of verdicts that no comparison gave."""

from __future__ import annotations

import pyarrow as pa
import pytest

from topr_exp.grading.verdicts import Verdicts, warn_of_failures


def verdicts(*paths: str) -> Verdicts:
    rows = {"verdict": ["incorrect"] * len(paths), "answer": ["1"] * len(paths), "path": list(paths)}
    return Verdicts("name", pa.table(rows | {"class": pa.array([0] * len(paths), pa.int32())}))


def test_errors_of_the_comparison_are_told_and_slow_answers_of_a_model_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = verdicts("raised", "timeout", "died", "string", "raised")
    warn_of_failures(found, "math")
    assert [record.getMessage() for record in caplog.records] == [
        "warning: grader math failed with an error on 2 of 5 completions, which count as incorrect"
    ]
    caplog.clear()
    warn_of_failures(verdicts("timeout", "died", "string"), "own:grade")
    assert [record.getMessage() for record in caplog.records] == [
        "warning: grader own:grade overran its time or memory on 2 of 3 completions, which count as incorrect"
    ]
    caplog.clear()
    warn_of_failures(verdicts("string", "timeout"), "math")
    assert not caplog.records
