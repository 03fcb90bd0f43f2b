"""`python -m topr_exp.store regrade`, and where a run says what was cut off: workers that something else killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.conftest import config_of, overrides
from topr_exp.config.data import Grading
from topr_exp.grading.verdicts import grade_rollouts
from topr_exp.pipeline import run
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store
from topr_exp.store.__main__ import main
from topr_exp.store.completions import import_file
from topr_exp.store.table import Table
from topr_exp.types import Problem

GOLDS = ("5", "7", "9")
PROBLEMS = [Problem(f"p{index}", f"{index}?", gold) for index, gold in enumerate(GOLDS)]


def damage(table: Table, shard: int, *rows: int) -> None:
    """Make some rows of a shard what a worker that was killed left."""
    columns = table.shard(shard).to_pydict()
    for row in rows:
        columns["verdict"][row], columns["path"][row], columns["class"][row] = "incorrect", "died", -1
    table.replace(shard, pa.table(columns, schema=table.shard(shard).schema))


def rollouts(store: Store, imported: bool, folder: Path) -> Rollouts:
    """Two completions of each problem, a shard for each problem; imported: in one shard, the problems mixed."""
    said = [f"The answer is {number}." for number in (5, 6, 7, 9, 9, 9.0)]
    if not imported:
        index = np.repeat(np.arange(3), 2)
        table = store.table("rollouts", {"a": 1}, 3)
        columns = pa.table({"text": said, "problem": pa.array(index, pa.int32())})
        table.fill(lambda shard: columns.slice(2 * shard, 2))
        return Rollouts(table.name, table.read(), [np.zeros(1, np.int32)] * 3, [0, 2, 4, 6], 0)
    order = [0, 2, 4, 1, 3, 5]
    rows = [{"question": f"{row // 2}?", "gold": GOLDS[row // 2], "completion": said[row]} for row in order]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table, _, _ = import_file(store, folder / "own.jsonl")
    columns = table.read().append_column("problem", pa.array([row // 2 for row in order], pa.int32()))
    return Rollouts(f"{table.name} as read by x", columns, [np.zeros(1, np.int32)] * 3, [0, 6], 0)


@pytest.mark.parametrize("imported", [False, True])
def test_what_was_cut_off_is_graded_again_and_the_rest_stays(
    imported: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, command = Store(tmp_path / "store"), ["--root", str(tmp_path / "store"), "regrade"]
    found = grade_rollouts(rollouts(store, imported, tmp_path), PROBLEMS, Grading("gsm8k"), store)
    table = store.open(tmp_path / "store" / found.name)
    whole = [table.shard(shard) for shard in range(table.shards)]
    assert whole[0]["verdict"].to_pylist()[0] == "correct"
    damage(table, 0, 0)
    damage(table, table.shards - 1, 1)
    kept = table.shard_file(1).stat().st_mtime_ns if not imported else None
    again = store.open(table.folder)
    assert grade_rollouts(rollouts(store, imported, tmp_path), PROBLEMS, Grading("gsm8k"), store).cut_off == 2
    assert main(command) == 0
    assert capsys.readouterr().out == f"{table.name}: 2 completions were cut off, 0 are still\n"
    assert [again.shard(shard).equals(one) for shard, one in enumerate(whole)] == [True] * len(whole)
    assert kept is None or table.shard_file(1).stat().st_mtime_ns == kept
    assert main([*command, table.name]) == 0
    assert f"{table.name}: 0 completions were cut off" in capsys.readouterr().out


def test_code_and_completions_that_are_not_there_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    store, command = Store(tmp_path), ["--root", str(tmp_path), "regrade"]
    own = "own_graders:with_answer"
    found = grade_rollouts(rollouts(store, False, tmp_path), PROBLEMS, Grading(own), store)
    damage(store.open(tmp_path / found.name), 1, 0)
    assert main(command) == 1
    assert f"{found.name}: not graded: its grader is code of your own; add --grader {own}" in capsys.readouterr().out
    assert main([*command, "--grader", own]) == 0
    damage(store.open(tmp_path / found.name), 1, 0)
    there = [sys.executable, "-m", "topr_exp.store", *command, "--grader", own]  # a file of the current folder
    done = subprocess.run(there, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert "1 completions were cut off, 0 are still" in done.stdout, done.stdout + done.stderr
    damage(store.open(tmp_path / found.name), 1, 0)
    shutil.rmtree(tmp_path / "rollouts")
    assert main([*command, "--grader", own]) == 1
    assert "not graded: cannot read" in capsys.readouterr().out


def test_a_run_says_what_was_cut_off_and_does_not_after_a_regrade(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = run(config_of(*overrides(tmp_path)))
    assert (first["cut_off"], first["base"]["cut_off"], first["final"]["cut_off"]) == (0, 0, 0)
    config = config_of(*overrides(tmp_path, "name=second"))
    store, base = Store(config.store), Path(first["base"]["verdicts"]).name
    for table in map(store.open, (config.store / "verdicts").iterdir()):
        damage(table, 0, *((0, 1, 2) if table.folder.name == base else (3,)))
    capsys.readouterr()
    second = run(config)
    assert (second["cut_off"], second["base"]["cut_off"], second["final"]["cut_off"]) == (1, 3, 0)
    assert "note: the grader was cut off twice on 4 completions, which count as incorrect" in capsys.readouterr().out
    assert f"regrade verdicts/{base}" in caplog.text
    assert main(["--root", str(config.store), "regrade"]) == 0
    third = run(config_of(*overrides(tmp_path, "name=third")))
    assert (third["cut_off"], third["base"]) == (0, first["base"])
    assert third["final"]["pass@k"] == first["final"]["pass@k"]
