"""The report's tables and its page: every number under its name, in the row of its run or group."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from topr_exp.report.groups import group_runs
from topr_exp.report.page import payload
from topr_exp.report.runs import Run
from topr_exp.report.tables import groups_csv, groups_tex, runs_csv

LEVELS = {"topr": [(60, 70, 5), (63, 66, 9), (55, 71, 7)], "is": [(45, 50, 11), (44, 56, 12), (49, 51, 16)]}
NAMES = ("pass@1", "maj@8", "invalid")


@pytest.fixture
def runs() -> list[Run]:
    """Of two algorithms, the seeds in no order."""
    made = [made_run(f"{algo}_{seed}", evaluation(30 + seed, 40, 20, ends=(25, 36)),
                     evaluation(*levels, ends=(levels[0] - 3, levels[0] + 2)), {0: (31, 19), 10: (41, 9)},
                     seed=seed, algo__name=algo)
            for algo, each in LEVELS.items() for seed, levels in enumerate(each)]  # fmt: skip
    return [made[i] for i in (4, 0, 2, 5, 1, 3)]


def rows(text: str, name: str) -> dict[str, dict[str, str]]:
    return {row[name]: row for row in csv.DictReader(io.StringIO(text))}


def test_each_run_has_its_own_row(runs: list[Run]) -> None:
    found = rows(runs_csv(runs, group_runs(runs)), "run")
    for algo, each in LEVELS.items():
        for seed, (correct, maj, invalid) in enumerate(each):
            row = found[f"{algo}_{seed}"]
            assert (row["algo.name"], row["seed"], row["group"]) == (algo, str(seed), algo)
            values = [float(row[f"final_{name}"]) for name in NAMES]
            assert values == pytest.approx([correct / 100, maj / 100, invalid / 100])
            assert float(row["final_incorrect"]) == pytest.approx(1 - (correct + invalid) / 100)
            assert float(row["base_pass@1"]) == pytest.approx(0.3 + seed / 100)
            ends = float(row["final_pass@1_low"]), float(row["final_pass@1_high"])
            assert ends == pytest.approx(((correct - 3) / 100, (correct + 2) / 100))


def test_each_group_has_the_mean_of_its_runs(runs: list[Run]) -> None:
    found = rows(groups_csv(runs, group_runs(runs)), "group")
    for algo, each in LEVELS.items():
        for place, name in enumerate(NAMES):
            expected = by_hand.interval([levels[place] / 100 for levels in each])
            shown = [float(found[algo][f"final_{name}{end}"]) for end in ("", "_low", "_high")]
            assert shown == pytest.approx(expected, abs=1e-4), (algo, name)
            assert found[algo][f"final_{name}_interval_over"] == "3 seeds"
        assert float(found[algo]["base_pass@1"]) == pytest.approx(0.31)


def test_latex_has_the_same_numbers(runs: list[Run]) -> None:
    lines = groups_tex(runs, group_runs(runs)).splitlines()
    heads = next(line for line in lines if "base pass@1" in line).removesuffix(r" \\").split(" & ")
    for algo, each in LEVELS.items():
        cells = next(line for line in lines if line.startswith(f"{algo} & ")).removesuffix(r" \\").split(" & ")
        row = dict(zip(heads, cells, strict=True))
        assert row["runs"] == "3"
        for place, name in enumerate(NAMES):
            expected = [100 * value for value in by_hand.interval([levels[place] / 100 for levels in each])]
            numbers = [float(text) for text in re.findall(r"-?\d+\.\d", row[name])]
            assert numbers == pytest.approx(expected, abs=0.06), (algo, name)


def test_the_page_has_the_same_numbers(runs: list[Run]) -> None:
    data: dict[str, Any] = payload("x", runs, group_runs(runs), [])
    assert data["headlines"] == ["pass@1", "maj@8", "invalid"]
    for run in data["runs"]:
        algo, seed = run["name"].split("_")
        levels = LEVELS[algo][int(seed)]
        assert [run["final"][name][0] for name in NAMES] == pytest.approx([level / 100 for level in levels])
        assert run["final"]["pass@1"][1] == f"{levels[0]:.1f} [{levels[0] - 3:.1f}, {levels[0] + 2:.1f}]"
        assert run["base"]["pass@1"][0] == pytest.approx(0.3 + int(seed) / 100)
    plot = data["curves"]["test: pass@1"]
    single = {line["name"]: [data["arrays"][line[axis]] for axis in ("x", "y")] for line in plot["runs"]}
    assert all(found == [[0, 10], [0.31, 0.41]] for found in single.values())
    assert {*single} == {run["name"] for run in data["runs"]}
    for group in data["groups"]:
        for place, name in enumerate(NAMES):
            expected = by_hand.interval([levels[place] / 100 for levels in LEVELS[group["label"]]])
            assert group["final"][name][0] == pytest.approx(expected[0])
            printed = [float(text) for text in re.findall(r"-?\d+\.\d", group["final"][name][1])]
            assert printed == pytest.approx([100 * value for value in expected], abs=0.06)
