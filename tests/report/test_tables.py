"""The report's tables: every number under its name, in the row of its run or group."""

import math

import numpy as np
import pytest

from tests import by_hand
from tests.conftest import lines_of, names_in
from tests.report.made_up import ends_of, evaluation, made_run
from tests.run_folders import make_sweep
from topr_exp import read_curves, read_runs
from topr_exp.report.grouping import group_runs
from topr_exp.report.page import render_page
from topr_exp.report.tables import as_csv, groups_frame, groups_tex, runs_frame

LEVELS = {  # of three seeds, in percent
    "topr": {"pass@1": (60, 63, 55), "maj@8": (70, 66, 71), "invalid": (5, 9, 7)},
    "is": {"pass@1": (45, 44, 49), "maj@8": (50, 56, 51), "invalid": (11, 12, 16)},
}


@pytest.fixture
def comparison():
    """Of two algorithms, the seeds in no order."""
    runs = []
    for algo, levels_of_figure in LEVELS.items():
        for seed, (correct, maj, invalid) in enumerate(zip(*levels_of_figure.values(), strict=True)):
            base = evaluation(30 + seed, 40, 20, ends=(25, 36))
            final = evaluation(correct, maj, invalid, ends=(correct - 3, correct + 2))
            runs.append(made_run(f"{algo}_{seed}", base, final, seed=seed, algo__name=algo))
    return group_runs([runs[4], runs[0], runs[2], runs[5], runs[1], runs[3]])


def test_each_group_has_the_mean_of_its_runs_in_csv_latex_and_page(comparison):
    frame = groups_frame(comparison)
    tex = groups_tex(comparison)
    page = "".join(line.strip() for line in render_page("x", comparison, []).splitlines())

    assert frame["runs"].tolist() == [3, 3]
    assert (100 * frame["base_pass@1"]).tolist() == pytest.approx([31, 31])
    for algo, levels_of_figure in LEVELS.items():
        cells = []
        for figure, levels in levels_of_figure.items():
            mean, low, high = by_hand.interval(levels)
            shares = np.array(ends_of(frame, algo, f"final_{figure}"))
            assert 100 * shares == pytest.approx([mean, low, high], abs=0.01)
            cells.append(f"{mean:.1f} [{low:.1f}, {high:.1f}]")
        assert f"{algo} & 3 & {' & '.join(cells)} &" in tex
        assert f"<td>{algo}</td><td>3</td><td>{'</td><td>'.join(cells)}</td>" in page


def test_a_group_says_how_many_of_its_runs_its_final_figures_are_of():
    runs = [made_run(f"r{seed}", evaluation(30, 40, 20), evaluation(60, 70, 5), seed=seed) for seed in range(3)]
    runs[1].status = "running"

    comparison = group_runs(runs)

    assert groups_frame(comparison)[["runs", "finished"]].to_numpy().tolist() == [[3, 2]]
    assert "topr & 2 of 3 & 60.0" in groups_tex(comparison)


def test_settings_without_a_limit_are_numbers_in_a_data_frame():
    runs = [made_run("bounded", {}, {}, algo__b_pos=1.0), made_run("unbounded", {}, {}, algo__b_pos=".inf")]

    frame = runs_frame(group_runs(runs).runs)

    assert sorted(frame["algo.b_pos"]) == [1.0, math.inf]
    assert frame["base_truncated_share"].dtype == float, "without any number, too"


def test_latex_and_spreadsheets_get_text_as_text():
    formula_as_name = made_run("=HYPERLINK(1)", {}, {}, lr=r"a_b & 5% {<x>} \input{y} #$")
    formula_as_value = made_run("b", {}, {}, lr="-1+cmd()")
    comparison = group_runs([formula_as_name, formula_as_value])

    csv = as_csv(runs_frame(comparison.runs))
    tex = groups_tex(comparison)

    assert "\n'=HYPERLINK(1)," in csv
    assert ",'-1+cmd()," in csv
    assert r"a\_b \& 5\% \{\textless{}x\textgreater{}\} \textbackslash input\{y\} \#\$" in tex


def test_runs_are_read_as_a_data_frame(tmp_path):
    """Each has its own settings and figures in its row, [runs], and its updates in a column, [updates]."""
    sweep = make_sweep(tmp_path, 4)

    frame = read_runs(sweep)

    assert {*frame.index} == names_in(sweep)
    for name, row in frame.iterrows():
        base, *_, final = lines_of(sweep / name / "eval.jsonl")
        assert row["base_pass@1"] == base["pass@1"]
        assert row["final_pass@1"] == final["pass@1"]
        assert row["final_pass@1_high"] == final["pass@k"]["1"]["high"]
        assert row["final_incorrect"] == final["incorrect"]
        assert f"{row['algo.name']}_{row['effective_positive (setting)']}_s{row['seed']}" == name
    row = frame.loc["tis_0.05_s0"]
    assert row["group"] == "tis, p̃=0.05"
    assert row[["positive_share", "updates", "seconds"]].tolist() == [0.2, 20, 11.0]
    assert read_curves(sweep)["loss"].unstack("run").shape == (20, 4)
    tested = read_curves(str(sweep), split="test")
    assert tested.loc["tis_0.05_s0", "pass@1"].iloc[0] == 0.2
