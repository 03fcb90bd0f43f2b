"""What the report says first: who ended best, by how much, and what of that is not sure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run_folders import make_run
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report import ranking as module
from topr_exp.report.groups import group_runs
from topr_exp.report.page import best_first
from topr_exp.report.ranking import Row, listed, ranking
from topr_exp.report.results import packed
from topr_exp.report.runs import Run, find_runs
from topr_exp.types import TOPRError

N, PROBLEMS = 8, 40
LEVELS = {"topr": 0.8, "tis": 0.78, "sft": 0.3}


def counts(algo: str, seed: int, part: str) -> np.ndarray:
    chance = np.random.default_rng([*algo.encode(), seed])
    return chance.binomial(N, LEVELS[algo] if part == "final" else 0.1, PROBLEMS)


def shown(algo: str, seed: int, part: str) -> dict[str, Any]:
    values = packed(counts(algo, seed, part))
    return {"n": N, "of_problems": {"correct": values, "invalid": values, "maj": values}}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Three algorithms on three seeds, whose verdicts are made up."""
    for algo in LEVELS:
        for seed in range(3):
            make_run(tmp_path, f"algo={algo}", f"seed={seed}")
    found = find_runs([tmp_path])
    for run in found:
        algo, seed = run.config["algo"]["name"], run.config["seed"]
        for part in ("base", "final"):
            run.summary[part] = {"pass@1": float(counts(algo, seed, part).mean() / N)}
    monkeypatch.setattr(module, "gold_answers", lambda run: "all of one test")

    def record(run: Run, draw: int, part: str = "final") -> Any:
        return {"settings": {"seed": draw}, part: shown(run.config["algo"]["name"], run.config["seed"], part)}

    monkeypatch.setattr(module, "record", record)
    return found


def ranked(runs: list[Run]) -> tuple[str, list[Row]]:
    comparison = group_runs(runs)
    return ranking(best_first(runs, comparison), runs, comparison)


def paired(first: str, second: str) -> str:
    values = [np.stack([counts(algo, seed, "final") / N for seed in range(3)]) for algo in (first, second)]
    return crossed_interval(values[0] - values[1]).percent(sign=True)


def test_the_best_is_named_with_what_is_not_told_apart_from_it(runs: list[Run]) -> None:
    sentence, rows = ranked(runs)
    assert [(row["group"], row["runs"]) for row in rows] == [("topr", 3), ("tis", 3), ("sft", 3)]
    assert [row.get("minus topr") for row in rows] == [None, paired("tis", "topr"), paired("sft", "topr")]
    assert [row.get("over") for row in rows] == [None, "3 seeds, problems", "3 seeds, problems"]
    assert sentence == (
        f"topr ended best: {rows[0]['pass@1 %']} % pass@1 (3 runs). Not told apart from it: tis. "
        "The others ended below it, each beyond its own 95 % interval."
    )
    sentence, rows = ranked([run for run in runs if run.config["seed"] == 0])
    assert [row.get("over") for row in rows] == [None, "problems", "problems"]
    assert sentence.endswith("Where one seed is compared, nothing is said of other seeds.")


def test_without_verdicts_nothing_is_compared(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(run: Run) -> Any:
        raise TOPRError("gone")

    monkeypatch.setattr(module, "gold_answers", gone)
    sentence, rows = ranked(runs)
    mean = rows[0]["pass@1 %"]
    nobody = (
        f"topr has the highest number, {mean} % pass@1 (3 runs), "
        "but no other shares a seed, the test and its verdicts with it."
    )
    assert sentence == nobody
    assert not any("minus topr" in row for row in rows)
    monkeypatch.setattr(module, "gold_answers", lambda run: run.config["algo"]["name"])
    assert ranked(runs)[0] == nobody
    monkeypatch.setattr(module, "gold_answers", lambda run: run.config["algo"]["name"] == "tis")
    sentence, _ = ranked(runs)
    assert sentence.startswith(
        f"topr ended best: {mean} % pass@1 (3 runs). Not compared, for want of a common seed, test or verdicts: tis."
    )


def test_a_long_list_is_cut_short() -> None:
    assert listed(["a", "b"], 3) == "a; b"
    assert listed(["a", "b"], 2) == "all others"
    assert listed([*"abcdefg"], 9) == "a; b; c; d; e; 2 more"


def test_a_single_group_begins_with_base_against_trained(runs: list[Run]) -> None:
    sentence, rows = ranked([run for run in runs if run.config["algo"]["name"] == "topr"])
    gained = np.stack([counts("topr", seed, "final") - counts("topr", seed, "base") for seed in range(3)]) / N
    assert [row["model"] for row in rows] == ["base", "trained"]
    assert rows[1]["minus base"] == crossed_interval(gained).percent(sign=True)
    assert sentence.startswith("pass@1 went from ")
    assert sentence.endswith(f"(3 runs), by {rows[1]['minus base']} points.")


def test_unfinished_runs_are_left_out(runs: list[Run]) -> None:
    for run in runs:
        run.status = "running"
    assert ranked(runs) == ("No run has finished yet.", [])
    runs[0].status = "done"
    assert [row["model"] for row in ranked(runs)[1]] == ["base", "trained"]
