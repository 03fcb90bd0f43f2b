"""What a sweep makes of files and of a Slurm that may not answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topr_exp.sweeps import queue, slurm
from topr_exp.sweeps.status import newest_accuracy
from topr_exp.sweeps.sweep import Submission, Sweep
from topr_exp.types import TOPRError

PART: dict[str, object] = {"subset": True}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([PART | {"pass@1": 0.1}, {"pass@1": 0.2}], (0.2, 0.2)),
        ([PART | {"pass@1": 0.1}, {"pass@1": 0.2}, PART | {"pass@1": 0.3}], (0.3, 0.1)),
        ([PART | {"pass@1": 0.1}, {"pass@1": 0.2}, PART | {"pass@1": 0.3}, {"pass@1": 0.4}], (0.4, 0.2)),
        ([{"pass@1": 0.2}, {"pass@1": 0.4}], (0.4, 0.2)),
        ([], (None, None)),
    ],
)  # fmt: skip
def test_a_pass_at_1_stands_beside_the_base_s_on_the_same_problems(
    tmp_path: Path, records: list[dict[str, object]], expected: tuple[float | None, float | None]
) -> None:
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert newest_accuracy(tmp_path) == expected


def test_a_slurm_that_does_not_answer_forgets_no_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(tmp_path, [], submissions=[Submission("ab12", [1, 2], None)])
    monkeypatch.setattr(queue, "run_slurm", lambda command: ([], "slurm_load_jobs error: Unable to contact controller"))
    with pytest.raises(TOPRError, match="Unable to contact controller: some runs may be queued already"):
        slurm.recover(sweep)
    assert len(sweep.submissions) == 1
    monkeypatch.setattr(queue, "run_slurm", lambda command: ([["77"]], ""))
    slurm.recover(sweep)
    assert sweep.submissions[0].slurm == "77"
    sweep.submissions[0].slurm = None
    monkeypatch.setattr(queue, "run_slurm", lambda command: ([], ""))
    slurm.recover(sweep)
    assert sweep.submissions == []
