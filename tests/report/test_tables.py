"""The report's tables and its page: every number under its name, in the row of its run or group."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from tests.run_folders import make_sweep
from topr_exp.report import read_curves, read_runs
from topr_exp.report.groups import group_runs
from topr_exp.report.page import render_page
from topr_exp.report.runs import Run
from topr_exp.report.tables import as_csv, groups_frame, groups_tex, runs_csv

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
    found = rows(as_csv(groups_frame(runs, group_runs(runs))), "group")
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
    comparison = group_runs(runs)
    page = render_page("x", runs, comparison, [], [], {})
    found = {cells[0]: cells for row in re.findall("<tr>(.*?)</tr>", page, re.DOTALL)
             if (cells := re.findall("<td>(.*?)</td>", row))}  # fmt: skip
    for algo, each in LEVELS.items():
        printed = [[float(text) for text in re.findall(r"-?\d+\.\d", cell)] for cell in found[algo][2:5]]
        expected = [by_hand.interval([levels[place] for levels in each]) for place in range(3)]
        assert np.array(printed) == pytest.approx(np.array(expected), abs=0.06)
        for seed, (correct, maj, invalid) in enumerate(each):
            shown = [f"{correct:.1f} [{correct - 3:.1f}, {correct + 2:.1f}]", f"{maj:.1f}", f"{invalid:.1f}"]
            assert [found[f"{algo}_{seed}"][i] for i in (1, 2, 3)] == ["done", algo, str(seed)]
            assert [cell.split(" ")[0] for cell in found[f"{algo}_{seed}"][4:7]] == [
                each.split(" ")[0] for each in shown
            ]
            assert found[f"{algo}_{seed}"][4] == shown[0]


def test_latex_and_spreadsheets_get_text_as_text() -> None:
    runs = [
        made_run(name, {}, {}, lr=lr) for name, lr in (("=HYPERLINK(1)", r"a_b & 5% {<x>} \input{y} #$"), ("b", "=1+1"))
    ]
    comparison = group_runs(runs)
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(runs_csv(runs, comparison))) for cell in row)
    shown = r"a\_b \& 5\% \{\textless{}x\textgreater{}\} \textbackslash input\{y\} \#\$"
    assert shown in groups_tex(runs, comparison)


def test_runs_are_read_as_a_data_frame(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 4)
    found = read_runs(sweep)
    assert {*found.index} == {path.name for path in sweep.iterdir()}
    one = found.loc["tis_0.05_s0"]
    assert (one["group"], one["algo.name"], one["seed"], one["effective_positive (setting)"]) == (
        "tis, p~=0.05",
        "tis",
        0,
        0.05,
    )
    assert (one["positive_share"], one["updates"], one["seconds"], one["notes"]) == (0.2, 20, 11.0, [])
    tis = found[found["algo.name"] == "tis"]["final_pass@1"]
    assert found.groupby("algo.name")["final_pass@1"].mean()["tis"] == pytest.approx(tis.mean())
    assert one["final_pass@1_high"] == pytest.approx(1.1 * one["final_pass@1"])
    losses = read_curves(sweep)["loss"].unstack("run")
    assert losses.shape == (20, 4)
    assert read_curves(str(sweep), kind="test").loc["tis_0.05_s0", "pass@1"].iloc[0] == 0.2
