"""Table 2 stands for runs that differ in nothing but their seeds and their algorithm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topr_exp.report.runs import Run
from topr_exp.report.table2 import FILE, table2
from topr_exp.types import TOPRError

COUNTS = ("right", "unparsable", "verified", "right_on_correct", "verified_correct", "right_on_incorrect",
          "verified_incorrect", "weighted_sc", "maj", "oracle", "solved")  # fmt: skip


def verifier(folder: Path, right: list[float], **settings: Any) -> Run:
    """A finished run whose verifier was right so often on each of the problems, of 4 times, from 2 before."""
    config = {"model": {"name": "tiny"}, "task": {"solver": "base"}, "data": {"name": "math"}, **settings}
    folder.mkdir()
    zero, fixed = [0.0] * len(right), dict.fromkeys(COUNTS, [0.5] * len(right)) | {"verified": [4.0] * len(right)}
    steps = {str(i): fixed | {"unparsable": zero, "right": each} for i, each in enumerate(([2.0] * len(right), right))}
    noted = {"problems": [f"p{i}" for i in range(len(right))], "solutions": 2, "verifications": 2, "iterations": steps}
    (folder / FILE).write_text(json.dumps(noted))
    return Run(folder, folder.name, config, status="done")


def test_runs_of_other_settings_are_refused(tmp_path: Path) -> None:
    algo = {"name": "topr"}
    runs = [verifier(tmp_path / f"r{seed}", [3.0, 4.0], algo=algo, seed=seed, lr=1) for seed in (0, 1)]
    assert "2 runs, mean" in table2(runs)
    other = verifier(tmp_path / "other", [1.0, 1.0], algo=algo, seed=2, lr=2)
    with pytest.raises(TOPRError, match=r"can't stand in one table: they differ in lr$"):
        table2([*runs, other])


def test_algorithms_are_rows_of_their_own(tmp_path: Path) -> None:
    finals = {"sft": [2.0, 3.0], "topr": [4.0, 4.0]}
    runs = [verifier(tmp_path / name, right, algo={"name": name}) for name, right in finals.items()]
    rows = {line.split("  ")[0]: line for line in table2(runs).splitlines()}
    assert rows["tiny"].split()[1] == "50.0"
    assert rows["tiny, topr"].split()[2] == "100.0"
    assert rows["tiny, sft"].split()[2] == "62.5"
