"""The report's tables and its page: every number under its name, in the row of its run or group."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from tests.run_folders import make_sweep
from topr_exp import read_curves, read_runs
from topr_exp.report.grouping import Comparison, group_runs
from topr_exp.report.page import render_page
from topr_exp.report.tables import as_csv, groups_frame, groups_tex, runs_frame

LEVELS = {"topr": [(60, 70, 5), (63, 66, 9), (55, 71, 7)], "is": [(45, 50, 11), (44, 56, 12), (49, 51, 16)]}
NAMES = ("pass@1", "maj@8", "invalid")


@pytest.fixture
def comparison() -> Comparison:
    """Of two algorithms, the seeds in no order."""
    runs = [made_run(f"{algo}_{seed}", evaluation(30 + seed, 40, 20, ends=(25, 36)),
                     evaluation(*levels, ends=(levels[0] - 3, levels[0] + 2)), {0: (31, 19), 10: (41, 9)},
                     seed=seed, algo__name=algo)
            for algo, levels_of_seeds in LEVELS.items() for seed, levels in enumerate(levels_of_seeds)]  # fmt: skip
    return group_runs([runs[i] for i in (4, 0, 2, 5, 1, 3)])


def rows(text: str, name: str) -> dict[str, dict[str, str]]:
    return {row[name]: row for row in csv.DictReader(io.StringIO(text))}


def numbers(cell: str) -> list[float]:
    return [float(text) for text in re.findall(r"-?\d+\.\d", cell)]


def test_each_run_has_its_own_row(comparison: Comparison) -> None:
    rows_by_run = rows(as_csv(runs_frame(comparison.runs)), "run")
    for algo, levels_of_seeds in LEVELS.items():
        for seed, (correct, maj, invalid) in enumerate(levels_of_seeds):
            row = rows_by_run[f"{algo}_{seed}"]
            assert (row["algo.name"], row["seed"], row["group"]) == (algo, str(seed), algo)
            values = [float(row[name]) for name in (*(f"final_{name}" for name in NAMES), "base_pass@1")]
            assert values == pytest.approx([correct / 100, maj / 100, invalid / 100, 0.3 + seed / 100])
            assert float(row["final_incorrect"]) == pytest.approx(1 - (correct + invalid) / 100)
            ends = float(row["final_pass@1_low"]), float(row["final_pass@1_high"])
            assert ends == pytest.approx(((correct - 3) / 100, (correct + 2) / 100))


def test_each_group_has_the_mean_of_its_runs_in_csv_latex_and_page(comparison: Comparison) -> None:
    table = rows(as_csv(groups_frame(comparison)), "group")
    lines = groups_tex(comparison).splitlines()
    heads = next(line for line in lines if "base pass@1" in line).removesuffix(r" \\").split(" & ")
    page = render_page("x", comparison, comparison.groups, {})
    page_rows = {cells[0]: cells for row in re.findall("<tr>(.*?)</tr>", page, re.DOTALL)
             if (cells := re.findall("<td>(.*?)</td>", row))}  # fmt: skip
    for algo, levels_of_seeds in LEVELS.items():
        tex = next(line for line in lines if line.startswith(f"{algo} & ")).removesuffix(r" \\").split(" & ")
        row = dict(zip(heads, tex, strict=True))
        assert (row["runs"], table[algo]["runs"]) == ("3", "3")
        for place, name in enumerate(NAMES):
            expected = by_hand.interval([levels[place] / 100 for levels in levels_of_seeds])
            ends = [float(table[algo][f"final_{name}{end}"]) for end in ("", "_low", "_high")]
            assert ends == pytest.approx(expected, abs=1e-4), (algo, name)
            assert table[algo][f"final_{name}_interval_over"] == "3 seeds"
            percent = pytest.approx(100 * np.array(expected), abs=0.06)
            assert numbers(row[f"final {name}"]) == percent
            assert numbers(page_rows[algo][2 + place]) == percent
        assert float(table[algo]["base_pass@1"]) == pytest.approx(0.31)
        for seed, (correct, maj, invalid) in enumerate(levels_of_seeds):
            cells = page_rows[f"{algo}_{seed}"]
            assert cells[1:5] == ["done", "0", algo, str(seed)]
            assert cells[5] == f"{correct:.1f} [{correct - 3:.1f}, {correct + 2:.1f}]"
            assert [numbers(cell)[0] for cell in cells[6:8]] == [maj, invalid]


def test_latex_and_spreadsheets_get_text_as_text() -> None:
    runs = [
        made_run(name, {}, {}, lr=lr) for name, lr in (("=HYPERLINK(1)", r"a_b & 5% {<x>} \input{y} #$"), ("b", "=1+1"))
    ]
    comparison = group_runs(runs)
    assert not any(
        cell.startswith("=") for row in csv.reader(io.StringIO(as_csv(runs_frame(comparison.runs)))) for cell in row
    )
    escaped = r"a\_b \& 5\% \{\textless{}x\textgreater{}\} \textbackslash input\{y\} \#\$"
    assert escaped in groups_tex(comparison)


def test_runs_are_read_as_a_data_frame(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, 4)
    frame = read_runs(sweep)
    assert {*frame.index} == {path.name for path in sweep.iterdir()}
    row = frame.loc["tis_0.05_s0"]
    names = ["group", "algo.name", "seed", "effective_positive (setting)", "positive_share", "updates", "seconds"]
    assert row[names].tolist() == ["tis, p̃=0.05", "tis", 0, 0.05, 0.2, 20, 11.0]
    assert row["notes"] == []
    assert row["final_pass@1_high"] == pytest.approx(1.1 * row["final_pass@1"])
    assert read_curves(sweep)["loss"].unstack("run").shape == (20, 4)
    assert read_curves(str(sweep), kind="test").loc["tis_0.05_s0", "pass@1"].iloc[0] == 0.2
