"""Every number that a plot shows is computed once, of runs that differ in nothing but their seeds."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topr_exp.report.figures import MOST_LINES, best_groups
from topr_exp.report.groups import axes, bases, group_runs
from topr_exp.report.page import payload
from topr_exp.report.plots import curve_plot, kinds_plot, sweep_plot
from topr_exp.report.runs import Run


def scored(final: float, *, base: float = 0.2, seed: int = 0, model: str = "tiny", **settings: Any) -> Run:
    """A run with a curve from `base` to `final` and its figures at both ends."""
    config = {"algo": {"name": "topr"}, "model": {"name": model}, "seed": seed, **settings}
    ends = [
        {"iteration": i, "pass@1": value, "pass@k": {"1": {"value": value, "low": value - 0.1, "high": value + 0.1}}}
        for i, value in enumerate((base, final))
    ]
    curve = [end | {"optimizer_step": 10 * i, "samples_seen": 80 * i} for i, end in enumerate(ends)]
    name = "_".join(f"{key}{value}" for key, value in {"seed": seed, "model": model, **settings}.items())
    summary = {"base": ends[0], "final": ends[1], "effective_positive": settings.get("effective_positive")}
    return Run(Path(name), name, config, summary, curve=curve, status="done")


def groups_of(runs: list[Run]) -> dict[str, list[Run]]:
    return {label: [runs[i] for i in members] for label, members in group_runs(runs).groups.items()}


def test_a_line_of_a_sweep_is_of_one_setting_each() -> None:
    """As in Figure 5: p̃ in several runs, each once, beside another setting that differs."""
    runs = [scored(0.1 * lr + 0.1 * p, effective_positive=p, lr=lr) for lr in (1.0, 2.0) for p in (0.1, 0.5, 0.9)]
    comparison = group_runs(runs)
    plot = sweep_plot(runs, comparison, "effective_positive", axes(runs, comparison)["effective_positive"], "pass@1")
    assert [line.name for line in plot.lines] == ["lr=1", "lr=2"]
    for lr, line in enumerate(plot.lines, 1):
        assert line.band.x.tolist() == [0.1, 0.5, 0.9]
        assert line.band.mean == pytest.approx([0.1 * lr + 0.1 * p for p in (0.1, 0.5, 0.9)])
        assert line.band.high - line.band.mean == pytest.approx([0.1] * 3)  # over problems: there is one run of each


def test_the_lines_of_a_sweep_with_most_points_come_first() -> None:
    points = {"sft": (0.5,), "tis": (0.2, 0.5), "topr": (0.2, 0.5, 0.8)}
    runs = [scored(0.5, effective_positive=p, algo={"name": algo}) for algo in points for p in points[algo]]
    comparison = group_runs(runs)
    plot = sweep_plot(runs, comparison, "effective_positive", axes(runs, comparison)["effective_positive"], "pass@1")
    assert [line.name for line in plot.lines] == ["topr", "tis", "sft"]


def test_what_follows_from_the_drawn_set_is_averaged_over_seeds() -> None:
    runs = [scored(0.5, seed=seed, n=n) for n in (1, 2) for seed in range(3)]
    for i, run in enumerate(runs):
        run.summary["effective_positive"] = 0.2 * run.config["n"] + 0.01 * i
    comparison = group_runs(runs)
    plot = sweep_plot(runs, comparison, "effective_positive", axes(runs, comparison)["effective_positive"], "pass@1")
    assert sorted(float(line.band.x[0]) for line in plot.lines) == pytest.approx([0.21, 0.44])


def test_figures_leave_groups_out_and_never_pool_them() -> None:
    runs = [scored(p, effective_positive=p) for p in np.linspace(0.1, 0.9, MOST_LINES + 2).tolist()]
    kept, (note,) = best_groups(runs, group_runs(runs))
    assert all(len(members) == 1 for members in kept.values())
    assert min(members[0].summary["final"]["pass@1"] for members in kept.values()) > runs[1].summary["final"]["pass@1"]
    assert note == f"figures show the {MOST_LINES} of {MOST_LINES + 2} groups with the highest final pass@1"


def test_each_base_is_its_own_line() -> None:
    runs = [scored(0.5, model=model, base=base) for model, base in (("tiny", 0.2), ("noise", 0.3))]
    assert {label: len(each) for label, each in bases(runs, group_runs(runs)).items()} == {
        "base, tiny": 1,
        "base, noise": 1,
    }
    lines = kinds_plot(groups_of(runs), bases(runs, group_runs(runs)), "pass@k").lines
    assert {line.name: line.band.mean.tolist() for line in lines if line.style < 0} == {
        "base, tiny": [0.2], "base, noise": [0.3]
    }  # fmt: skip
    same = [scored(0.5, model=model) for model in ("one", "two")]
    assert list(bases(same, group_runs(same))) == ["base"]


def test_a_line_over_seeds_has_students_interval() -> None:
    finals = [0.3 + 0.01 * seed**1.5 / 2 for seed in range(17)]
    runs = [scored(final, seed=seed) for seed, final in enumerate(finals)]
    half = 2.12 * statistics.stdev(finals) / math.sqrt(17)  # t of 16 degrees of freedom
    plots = curve_plot(groups_of(runs), "test", "pass@1"), kinds_plot(groups_of(runs), {"base": runs}, "pass@k")
    for plot in plots:
        band = plot.lines[-1].band
        assert band.mean[-1] == pytest.approx(statistics.mean(finals))
        assert band.high[-1] - band.mean[-1] == pytest.approx(half, rel=1e-3)
        assert band.mean[-1] - band.low[-1] == pytest.approx(half, rel=1e-3)
    base = plots[1].lines[0].band  # the same completions in all: the interval over problems
    assert (base.mean[0], base.low[0], base.high[0]) == pytest.approx((0.2, 0.1, 0.3))


def test_the_page_holds_the_same_numbers() -> None:
    runs = [scored(0.3 + 0.1 * seed, seed=seed) for seed in range(3)]
    data = payload("t", runs, group_runs(runs), [])
    made = data["curves"]["test: pass@1"]
    (line,) = made["lines"]
    numbers = {name: data["arrays"][line[name]] for name in ("x", "samples", "y", "low", "high")}
    assert numbers["x"] == [0, 10]
    assert numbers["samples"] == [0, 80]
    assert numbers["y"] == [0.2, 0.4]
    assert numbers["high"] == pytest.approx([0.2, 0.4 + 4.303 * 0.1 / math.sqrt(3)], rel=1e-3)
    assert [data["arrays"][one["y"]] for one in made["runs"]] == [[0.2, 0.3], [0.2, 0.4], [0.2, 0.5]]
    assert all(one["low"] is None for one in made["runs"])
    (group,) = data["groups"]
    assert group["final"]["pass@1"] == (pytest.approx(0.4), "40.0 [15.2, 64.8]")
    json_size = len(data["arrays"])
    assert json_size == len({str(each) for each in data["arrays"]})  # each stands there once


def test_the_page_says_what_was_held_fixed() -> None:
    runs = [scored(0.5, seed=seed, optim={"lr": 0.001}, effective_positive=p) for p in (0.1, 0.2) for seed in (0, 1)]
    for run in runs:
        run.environment = {"git_commit": "0123456789abcdef", "git_dirty": False, "command": ["x.py", "experiment=fig5"]}
        run.evaluations = [{"problems": 200, "samples": 8}]
    data = payload("t", runs, group_runs(runs), [])
    assert data["facts"] == {
        "held fixed": "algo.name topr, model.name tiny, optim.lr 0.001",
        "tested on": "200 problems, 8 completions each",
        "commit": "0123456789",
        "command": "python -m topr_exp experiment=fig5",
    }
    assert data["fixed"] == {"algo.name": "topr", "model.name": "tiny", "optim.lr": "0.001"}
    runs[0].environment["git_dirty"], runs[1].evaluations = True, [{"problems": 50, "samples": 8}]
    facts = payload("t", runs, group_runs(runs), [])["facts"]
    assert facts["commit"] == "0123456789, 0123456789 with uncommitted changes"
    assert facts["tested on"] == "200 problems, 8 completions each; 50 problems, 8 completions each"
