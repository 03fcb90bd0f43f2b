"""Completions that the token limit cut off: their share in the table, the summary and the records; a line above 5 %."""

from typing import Any

import numpy as np
import pytest

from tests.conftest import config_of, lines_of, overrides
from tests.report.made_up import evaluation, made_run
from topr_exp.pipeline import run
from topr_exp.report.grouping import group_runs
from topr_exp.report.plots import plot_runs
from topr_exp.report.tables import group_rows, run_rows, runs_frame
from topr_exp.sampling.cut_off import warn_of_imported, warn_of_sampled, warn_of_tested
from topr_exp.tracking.writer import chart_values

DROP = "compose.drop_truncated=true leaves them out"
ROUNDS = ("schedule.prompts=4", "schedule.updates=1", "schedule.rounds=2", "compose.n_examples=null")
SHORT = "sampler.max_new_tokens=4"


@pytest.mark.parametrize("cut_off", [0, 50, 51, 1000])
def test_more_than_5_percent_cut_off_is_one_line(cut_off: int, capsys: pytest.CaptureFixture[str]) -> None:
    truncated = np.arange(1000) < cut_off
    warn_of_imported(truncated)
    warn_of_tested(truncated, 64)
    assert warn_of_sampled(truncated, 64, dropped=False) == (cut_off > 50)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 * (cut_off > 50)
    assert all(f"{cut_off / 10:.1f} % of the " in line for line in lines)


@pytest.mark.parametrize(
    ("dropped", "says_drop", "says_short"), [(False, True, True), (True, False, False), (None, False, True)]
)
def test_the_line_names_what_these_settings_allow(
    dropped: bool | None, says_drop: bool, says_short: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_sampled(np.ones(9, bool), 4, dropped=dropped)
    line = capsys.readouterr().err
    assert "100.0 % of the completions to train on were cut off by sampler.max_new_tokens=4" in line
    assert (DROP in line, "teach shortness" in line, "raise it" in line) == (says_drop, says_short, True)


@pytest.mark.parametrize("rounds", [(), ROUNDS])
def test_a_run_says_what_its_limit_cut_off(rounds: tuple[str, ...], tmp_path: Any, capsys: Any) -> None:
    config = config_of(*overrides(tmp_path, SHORT, *rounds))
    summary = run(config)
    out, err = capsys.readouterr()
    assert [part["truncated_share"] for part in (summary, summary["base"], summary["final"])] == [1, 1, 1]
    assert summary["grader_timeouts"] == 0
    assert err.count("completions to train on were cut off") == 1
    assert err.count("answers to test problems were cut off") == 2
    table = [line.split() for line in out.splitlines()]
    assert [line[-3:] for line in table if line[:2] == ["%", "pass@1"]] == [["invalid", "cut", "off"]]
    assert [line[-1] for line in table if line[:1] in (["base"], ["trained"]) and line[1] != "on"] == ["100.0"] * 2
    assert "% positive, 100.0 % of those sampled cut off, baseline 0" in out
    for record in lines_of(config.folder / "eval.jsonl"):
        sent = chart_values("eval", {**record, "optimizer_step": 0, "samples_seen": 0})
        assert sent["rest/eval_truncated_share"] == 1
    if rounds:
        assert {record["sampled_truncated"] for record in lines_of(config.folder / "metrics.jsonl")} == {1}


def test_the_report_has_columns_and_a_curve_where_something_was_cut_off() -> None:
    def made() -> list[Any]:
        curve = {0: (30, 5), 5: (40, 5), 9: (50, 5)}
        return [made_run(f"{seed}", evaluation(30, 40, 5), evaluation(50, 60, 5), curve, seed=seed) for seed in (0, 1)]

    assert not any("cut off" in title for title in run_rows(group_runs(made()))[0])
    runs = made()
    comparison = group_runs(runs)
    for one, share in zip(runs, (0.1, 0.2), strict=True):
        one.summary |= {"truncated_share": share}
        one.summary["base"] |= {"truncated_share": 0.0}
        one.summary["final"] |= {"truncated_share": 2 * share}
        for point in one.curve:
            point["truncated_share"] = share
    shown = {"final cut off": "30.0", "base cut off": "0.0", "training cut off": "15.0"}
    (row,) = group_rows(comparison, comparison.groups)
    assert {title: row[title] for title in shown} == shown
    frame = runs_frame(runs)
    assert frame["truncated_share"].tolist() == [0.1, 0.2]
    assert frame["final_truncated_share"].tolist() == [0.2, 0.4]
    assert "curve_truncated_share" in {plot.name for plot in plot_runs(comparison, comparison.groups)}
