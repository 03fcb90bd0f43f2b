"""Table 2 from what verifiers' runs noted: problems are known by their names, whatever order a run has them in."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduce.table2 import table2
from tests import by_hand
from topr_exp.report.runs import read_run
from topr_exp.types import TOPRError

SOLUTIONS, VERIFICATIONS = 4, 2
NUMBER = r"-?\d+\.\d"
Noted = Mapping[str, Mapping[str, float]]  # problem -> column -> its sum or score

rng = np.random.default_rng(0)
PROBLEMS = [f"p{i:02}" for i in range(40)]


def noted(weighted: Mapping[str, float], right: float, invalid: float) -> dict[str, dict[str, float]]:
    """right, invalid: of the 8 verifications of each problem; 2 of these are of its one correct solution."""
    return {problem: {"right": right, "unparsable": invalid, "verified": 8.0, "right_on_correct": right / 8,
                      "verified_correct": 2.0, "right_on_incorrect": right * 7 / 8, "verified_incorrect": 6.0,
                      "weighted_sc": weighted[problem], "maj": 0.2 + HARD[problem] / 2, "oracle": 0.9, "solved": 0.25}
            for problem in weighted}  # fmt: skip


HARD = {problem: float(value) for problem, value in zip(PROBLEMS, rng.uniform(0, 0.6, 40), strict=True)}


def run(
    folder: Path,
    before: Noted,
    after: Noted,
    *,
    algo: str = "topr",
    seed: int = 0,
    order: int = 0,
    lr: float = 1.0,
    **more: Any,
) -> Any:
    """The folder of a finished run; order: of a shuffle of its problems."""
    folder.mkdir()
    problems = [[*before][i] for i in np.random.default_rng(order).permutation(len(before))]
    steps = {
        step: {column: [each[problem][column] for problem in problems] for column in each[problems[0]]}
        for step, each in (("0", before), ("1", after))
    }
    stored = {"problems": problems, "solutions": SOLUTIONS, "verifications": VERIFICATIONS, "iterations": steps} | more
    settings = {"algo": {"name": algo}, "model": {"name": "small"}, "task": {"solver": "tiny"}, "seed": seed, "lr": lr,
                "data": {"name": "gsm8k"}}  # fmt: skip
    (folder / "verification.json").write_text(json.dumps(stored))
    (folder / "config.json").write_text(json.dumps({"resolved": settings}))
    (folder / "DONE").touch()
    return read_run(folder)


def shown(lines: list[str], start: str) -> list[list[float]]:
    """The three figures of a row with their intervals; a dash is none."""
    line = next(line for line in lines if line.startswith(f"{start}  ")).removeprefix(start)
    cells = re.findall(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?|–", line.split("  paper")[0])
    return [[float(value) for value in cell if value] for cell in cells[:3]]


def differences(lines: list[str], start: str) -> dict[str, list[float]]:
    line = next(line for line in lines if line.startswith(f"{start}: "))
    found = re.findall(rf"(balanced accuracy|weighted SC - \w+) ({NUMBER}) \[({NUMBER}), ({NUMBER})\]", line)
    return {name: [float(value) for value in values] for name, *values in found}


def test_problems_are_paired_by_name(tmp_path: Path) -> None:
    """Every problem's vote gains 25 points on the base, and the base is 10 above the vote without a verifier: intervals
    of differences have no width, though each run has the problems in another order."""
    base = noted({problem: 0.3 + HARD[problem] / 2 for problem in PROBLEMS}, right=3.0, invalid=2.0)
    trained = noted({problem: 0.55 + HARD[problem] / 2 for problem in PROBLEMS}, right=6.0, invalid=0.5)
    other = noted({problem: 0.25 + HARD[problem] / 2 for problem in PROBLEMS}, right=4.0, invalid=1.0)
    runs = [run(tmp_path / "a", base, other, algo="tis", order=1), run(tmp_path / "b", base, trained, order=2),
            run(tmp_path / "c", base, trained, seed=1, order=3)]  # fmt: skip
    lines = table2(runs).splitlines()
    level = 100 * by_hand.mean([HARD[problem] / 2 for problem in PROBLEMS])
    half = 100 * 1.96 * np.std([HARD[problem] / 2 for problem in PROBLEMS]) / np.sqrt(len(PROBLEMS))
    for name, accuracy, invalid, weighted in (
        ("small", 3 / 8, 2 / 8, 30 + level), ("small, topr", 6 / 8, 0.5 / 8, 55 + level),
        ("small, tis", 4 / 8, 1 / 8, 25 + level)):  # fmt: skip
        first, second, third = shown(lines, name)
        assert first == pytest.approx([100 * accuracy] * 3, abs=0.06)  # alike in all problems
        assert second == pytest.approx([100 * invalid] * 3, abs=0.06)
        assert third == pytest.approx([weighted, weighted - half, weighted + half], abs=0.4)
    assert shown(lines, "none (maj@4)")[2][0] == pytest.approx(20 + level, abs=0.06)
    assert shown(lines, "oracle (pass@4)")[2] == pytest.approx([90, 90, 90])
    assert differences(lines, "small")["weighted SC - none"] == pytest.approx([10, 10, 10])
    assert differences(lines, "small, topr") == {
        "balanced accuracy": pytest.approx([100 * (6 / 8 / 2 + 6 * 7 / 8 / 6) / 2] * 3, abs=0.06),
        "weighted SC - none": pytest.approx([35, 35, 35]),
        "weighted SC - base": pytest.approx([25, 25, 25]),
    }
    assert differences(lines, "small, tis")["weighted SC - base"] == pytest.approx([-5, -5, -5])


def test_a_problem_counts_once_and_is_averaged_over_the_runs_that_have_it(tmp_path: Path) -> None:
    """Two runs of 30 problems that share 20; a third, of another algorithm, has 10 of these."""
    level = {problem: i / 40 for i, problem in enumerate(PROBLEMS)}
    first = {problem: level[problem] for problem in PROBLEMS[:30]}
    second = {problem: level[problem] / 2 for problem in PROBLEMS[10:]}
    third = dict.fromkeys(PROBLEMS[15:25], 0.5)

    def made(name: str, after: Mapping[str, float], **more: Any) -> Any:
        return run(tmp_path / name, noted(dict.fromkeys(after, 0.1), 3.0, 2.0), noted(after, 6.0, 1.0), **more)

    lines = table2(
        [made("a", first, order=1), made("b", second, seed=1, order=2), made("c", third, algo="tis")]
    ).splitlines()
    each = [by_hand.mean([part[problem] for part in (first, second) if problem in part]) for problem in PROBLEMS]
    assert shown(lines, "small, topr")[2][0] == pytest.approx(100 * by_hand.mean(each), abs=0.06)
    assert "bootstrap over 40 problems" in "\n".join(lines)
    assert shown(lines, "small")[2] == pytest.approx([10, 10, 10])
    assert differences(lines, "small, tis")["weighted SC - base"] == pytest.approx([40, 40, 40])
    means = [100 * by_hand.mean([*part.values()]) for part in (first, second)]
    _, _, high = by_hand.interval(means)
    told = re.search(rf"2 runs, .*weighted SC ({NUMBER}) ± ({NUMBER})", "\n".join(lines))
    assert told is not None
    assert [float(value) for value in told.groups()] == pytest.approx(
        [by_hand.mean(means), high - by_hand.mean(means)], rel=0.01
    )


def test_runs_that_differ_in_what_they_verify_stand_in_no_table(tmp_path: Path) -> None:
    each = noted(dict.fromkeys(PROBLEMS, 0.5), 3.0, 2.0)
    runs = [run(tmp_path / "a", each, each), run(tmp_path / "b", each, each, verifications=4)]
    with pytest.raises(TOPRError, match=r"can't stand in one table: data\.eval_n is 2 and 4"):
        table2(runs)
    other = run(tmp_path / "other", each, each, seed=2, lr=2.0)
    with pytest.raises(TOPRError, match=r"can't stand in one table: they differ in lr$"):
        table2([runs[0], other])
    (tmp_path / "b" / "verification.json").write_text("{")
    with pytest.raises(TOPRError, match="can't be read"):
        table2(runs)
    (tmp_path / "a" / "DONE").unlink()
    with pytest.raises(TOPRError, match="no finished run of a verifier"):
        table2([read_run(tmp_path / "a")])
