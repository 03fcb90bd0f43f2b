"""The report's tables: every number under its name, in the row of its run or group."""

import pytest

from tests import by_hand
from tests.conftest import names_in
from tests.report.made_up import evaluation, made_run
from tests.run_folders import make_sweep
from topr_exp import read_curves, read_runs
from topr_exp.report.grouping import group_runs
from topr_exp.report.page import render_page
from topr_exp.report.tables import as_csv, groups_frame, groups_tex, runs_frame

LEVELS = {"topr": [(60, 70, 5), (63, 66, 9), (55, 71, 7)], "is": [(45, 50, 11), (44, 56, 12), (49, 51, 16)]}
NAMES = ("pass@1", "maj@8", "invalid")


@pytest.fixture
def comparison():
    """Of two algorithms, the seeds in no order."""
    runs = []
    for algo, levels_of_seeds in LEVELS.items():
        for seed, (correct, maj, invalid) in enumerate(levels_of_seeds):
            base = evaluation(30 + seed, 40, 20, ends=(25, 36))
            final = evaluation(correct, maj, invalid, ends=(correct - 3, correct + 2))
            runs.append(made_run(f"{algo}_{seed}", base, final, seed=seed, algo__name=algo))
    return group_runs([runs[i] for i in (4, 0, 2, 5, 1, 3)])


def test_each_run_has_its_own_row(comparison):
    frame = runs_frame(comparison.runs)

    for algo, levels_of_seeds in LEVELS.items():
        for seed, levels in enumerate(levels_of_seeds):
            row = frame.loc[f"{algo}_{seed}"]
            assert (row["algo.name"], row["seed"], row["group"]) == (algo, seed, algo)
            assert [100 * row[f"final_{name}"] for name in NAMES] == pytest.approx(levels)
            assert 100 * row["final_incorrect"] == pytest.approx(100 - levels[0] - levels[2])
            assert 100 * row["final_pass@1_low"] == pytest.approx(levels[0] - 3)
            assert 100 * row["base_pass@1"] == pytest.approx(30 + seed)


def test_each_group_has_the_mean_of_its_runs_in_csv_latex_and_page(comparison):
    frame, tex = groups_frame(comparison), groups_tex(comparison)
    page = render_page("x", comparison, [])

    assert frame["runs"].tolist() == [3, 3]
    assert (100 * frame["base_pass@1"]).tolist() == pytest.approx([31, 31])
    for algo, levels_of_seeds in LEVELS.items():
        texts = []
        for name, levels in zip(NAMES, zip(*levels_of_seeds, strict=True), strict=True):
            ends = by_hand.interval(levels)
            columns = [f"final_{name}{end}" for end in ("", "_low", "_high")]
            assert (100 * frame.loc[algo, columns]).tolist() == pytest.approx(ends, abs=0.01)
            texts.append("{:.1f} [{:.1f}, {:.1f}]".format(*ends))
        assert f"{algo} & 3 & {' & '.join(texts)} &" in tex
        assert "".join(f"<td>{text}</td>" for text in (algo, 3, *texts)) in "".join(map(str.strip, page.splitlines()))


def test_latex_and_spreadsheets_get_text_as_text():
    comparison = group_runs(
        [
            made_run("=HYPERLINK(1)", {}, {}, lr=r"a_b & 5% {<x>} \input{y} #$"),
            made_run("b", {}, {}, lr="=1+1"),
        ]
    )

    csv, tex = as_csv(runs_frame(comparison.runs)), groups_tex(comparison)

    assert "\n'=HYPERLINK(1)," in csv
    assert ",'=1+1," in csv
    assert r"a\_b \& 5\% \{\textless{}x\textgreater{}\} \textbackslash input\{y\} \#\$" in tex


def test_runs_are_read_as_a_data_frame(tmp_path):
    sweep = make_sweep(tmp_path, 4)

    frame = read_runs(sweep)

    assert {*frame.index} == names_in(sweep)
    row = frame.loc["tis_0.05_s0"]
    names = ["group", "seed", "effective_positive (setting)", "positive_share", "updates", "seconds"]
    assert row[names].tolist() == ["tis, p̃=0.05", 0, 0.05, 0.2, 20, 11.0]
    assert row["final_pass@1_high"] == pytest.approx(1.1 * row["final_pass@1"])
    assert read_curves(sweep)["loss"].unstack("run").shape == (20, 4)
    assert read_curves(str(sweep), kind="test").loc["tis_0.05_s0", "pass@1"].iloc[0] == 0.2
