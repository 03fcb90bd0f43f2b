"""Completions that the token limit cut off: their share in the table, the summary and the records; a line above 5 %."""

import re

import numpy as np
import pytest

from tests.conftest import column, lines_of, small_config, values_of
from tests.report.made_up import evaluation, made_run
from topr_exp.pipeline import run
from topr_exp.report.grouping import group_runs
from topr_exp.report.plots import plot_runs
from topr_exp.report.tables import group_rows
from topr_exp.sampling.cut_off import warn_of_imported, warn_of_sampled, warn_of_tested
from topr_exp.tracking.writer import chart_values

ROUNDS = ["schedule.prompts=4", "schedule.updates=1", "schedule.rounds=2", "compose.n_examples=null"]


@pytest.mark.parametrize("cut_off, warns", [(0, False), (50, False), (51, True), (1000, True)])
def test_more_than_5_percent_cut_off_is_one_line(cut_off, warns, capsys):
    is_truncated = np.arange(1000) < cut_off

    warn_of_imported(is_truncated)
    warn_of_tested(is_truncated, 64)
    assert warn_of_sampled(is_truncated, 64, dropped=False) == warns

    text = capsys.readouterr().err
    assert text.count("\n") == text.count(f"{cut_off / 10:.1f} % of the ") == 3 * warns


@pytest.mark.parametrize("rounds", [[], ROUNDS], ids=["offline", "rounds"])
def test_a_run_says_what_its_limit_cut_off(rounds, tmp_path, capsys):
    config = small_config(tmp_path, "sampler.max_new_tokens=4", *rounds)

    summary = run(config)

    for part in (summary, summary["base"], summary["final"]):
        assert part["truncated_share"] == 1
    out, err = capsys.readouterr()
    assert err.count("completions to train on were cut off") == 1
    assert err.count("completions of test problems were cut off") == 2
    assert "% positive, 100.0 % of those sampled cut off, baseline 0" in out
    (headings,) = re.findall("^ *% +pass@1 .*", out, re.MULTILINE)
    assert headings.split()[-3:] == ["invalid", "cut", "off"]
    for record in lines_of(config.folder / "eval.jsonl"):
        chart = chart_values("eval", {**record, "optimizer_step": 0, "samples_seen": 0})
        assert chart["rest/eval_truncated_share"] == 1
    if rounds:
        assert set(column(lines_of(config.folder / "metrics.jsonl"), "sampled_truncated")) == {1}


def test_the_report_has_columns_and_a_curve_where_something_was_cut_off():
    finished_run = made_run("run", evaluation(30, 40, 5), evaluation(50, 60, 5), {0: (30, 5), 5: (40, 5), 9: (50, 5)})
    plain = group_runs([finished_run])
    assert "cut off" not in " ".join(group_rows(plain, plain.groups)[0])

    finished_run.summary |= {"truncated_share": 0.1}
    finished_run.summary["final"] |= {"truncated_share": 0.2}
    for point in finished_run.curve:
        point["truncated_share"] = 0.1
    comparison = group_runs([finished_run])

    (row,) = group_rows(comparison, comparison.groups)
    assert row["final cut off"] == "20.0"
    assert row["training cut off"] == "10.0"
    assert "curve_truncated_share" in values_of(plot_runs(comparison), "name")
