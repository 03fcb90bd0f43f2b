"""The report's figures show each group's own numbers, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from topr_exp.report.curves import Band
from topr_exp.report.figures import draw_plot, drawings
from topr_exp.report.groups import group_runs
from topr_exp.report.plots import Line, Plot
from topr_exp.report.runs import Run

SHIFT = (0.0, 3.0, -2.0)  # points between the seeds


def group(algo: str, correct: float, maj: float, invalid: float, **settings: Any) -> list[Run]:
    """Three seeds; the curve is below what is measured in the end, which is on other problems."""
    found = []
    for seed, shift in enumerate(SHIFT):
        final = evaluation(correct + shift, maj + shift, invalid, ends=(correct - 4, correct + 4))
        final["correct_histogram"] = [10, 0, 0, 0, 0, 0, 0, 0, 40] if algo == "topr" else [25, 25, 0, 0, 0, 0, 0, 0, 0]
        base = evaluation(30, 40, 20, ends=(25, 36))
        base["correct_histogram"] = [0, 0, 50, 0, 0, 0, 0, 0, 0]
        curve = {0: (28.0, 22.0), 10: (correct - 9 + shift, invalid + 4), 20: (correct - 5 + shift, invalid + 2)}
        updates = [{"loss": i + shift, "kl_mu": 2.0 * i + len(algo)} for i in range(1, 5)]
        more = {"seed": seed, "algo__name": algo, **settings}
        found.append(made_run(f"{algo}{seed}{settings}", base, final, curve, updates, **more))
    return found


def drawn(runs: Sequence[Run]) -> dict[str, Any]:
    """The axes of each figure by its name."""
    from matplotlib.figure import Figure

    comparison = group_runs(list(runs))
    groups = {label: [runs[i] for i in members] for label, members in comparison.groups.items()}
    found = {}
    for name, _, drawing in drawings(runs, comparison, groups):
        found[name] = Figure().subplots()
        drawing(found[name])
    return found


def lines(ax: Any) -> dict[str, tuple[list[float], list[float]]]:
    """By label, without the number of runs."""
    return {line.get_label().split(" (")[0]: (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
            for line in ax.lines if not line.get_label().startswith("_")}  # fmt: skip


def filled(ax: Any, i: int, x: float) -> list[float]:
    """The ends of the i-th band at one of its places."""
    ys = [y for place, y in ax.collections[i].get_paths()[0].vertices if place == x]
    return [min(ys), max(ys)]


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    return drawn([*group("topr", 60, 70, 5), *group("is", 45, 50, 11)])


def test_curves_are_those_of_their_groups(figures: dict[str, Any]) -> None:
    found = lines(figures["curve_pass_1"])
    more = by_hand.mean(SHIFT)
    assert found["topr"] == ([0, 10, 20], pytest.approx([28, 51 + more, 55 + more]))
    assert found["is"] == ([0, 10, 20], pytest.approx([28, 36 + more, 40 + more]))
    (labels, ends) = list(found), by_hand.interval([51 + shift for shift in SHIFT])[1:]
    assert filled(figures["curve_pass_1"], labels.index("topr"), 10) == pytest.approx(ends, abs=0.01)
    assert lines(figures["curve_invalid"])["is"] == ([0, 10, 20], pytest.approx([22, 15, 13]))


def test_metrics_are_those_of_their_groups(figures: dict[str, Any]) -> None:
    more = by_hand.mean(SHIFT)
    assert lines(figures["training_loss"])["topr"] == ([1, 2, 3, 4], pytest.approx([i + more for i in range(1, 5)]))
    assert lines(figures["training_kl_mu"])["is"] == ([1, 2, 3, 4], pytest.approx([4, 6, 8, 10]))


def test_the_final_figures_stand_side_by_side(figures: dict[str, Any]) -> None:
    ax, more = figures["final"], by_hand.mean(SHIFT)
    names = [text.get_text() for text in ax.get_xticklabels()]
    bars = {}
    for patch in ax.patches:
        place = patch.get_x() + patch.get_width() / 2
        bars.setdefault(names[round(place)], []).append((place, patch.get_height()))
    heights = {name: [height for _, height in sorted(each)] for name, each in bars.items()}
    assert heights == {
        "topr": pytest.approx([60 + more, 70 + more, 5]),
        "is": pytest.approx([45 + more, 50 + more, 11]),
    }
    ends = sorted(tuple(segment[:, 1]) for each in ax.collections for segment in each.get_segments()
                  if len(segment))  # fmt: skip
    expected = [by_hand.interval([level + shift for shift in SHIFT])[1:] for level in (45, 50, 60, 70)]
    for pair in expected:
        assert any(found == pytest.approx(pair, abs=0.02) for found in ends), (pair, ends)
    assert lines(ax)["base pass@1"][1] == pytest.approx([30, 30])


def test_k_and_histograms(figures: dict[str, Any]) -> None:
    more = by_hand.mean(SHIFT)
    found = lines(figures["pass_at_k"])
    assert found["topr"] == ([1, 8], pytest.approx([60 + more, 80 + more]))
    assert found["is"] == ([1, 8], pytest.approx([45 + more, 65 + more]))
    assert found["base"] == ([1, 8], pytest.approx([30, 50]))
    assert lines(figures["maj_at_k"])["is"] == ([8], pytest.approx([50 + more]))
    counts = {name: y for name, (_, y) in lines(figures["correct_histogram"]).items()}
    assert counts == {"base": pytest.approx([0, 0, 100] + [0] * 6), "topr": pytest.approx([20] + [0] * 7 + [80]),
                      "is": pytest.approx([50, 50] + [0] * 7)}  # fmt: skip


def test_a_sweep_s_points_are_the_groups_of_their_setting() -> None:
    levels = {
        ("topr", 0.1): 40,
        ("topr", 0.2): 60,
        ("topr", 0.5): 55,
        ("is", 0.1): 20,
        ("is", 0.2): 30,
        ("is", 0.5): 35,
    }
    runs = [run for (algo, p), level in levels.items()
            for run in group(algo, level, 50, 5, effective_positive=p)]  # fmt: skip
    ax = drawn(runs)["sweep_effective_positive"]
    more = by_hand.mean(SHIFT)
    whiskers = [[tuple(one[:, 1]) for one in each.lines[2][0].get_segments()] for each in ax.containers]
    found = {name: (*points, ends) for (name, points), ends in zip(lines(ax).items(), whiskers, strict=True)}
    assert set(found) == {"topr", "is"}
    for algo, (x, y, ends) in found.items():
        mine = [levels[algo, p] for p in (0.1, 0.2, 0.5)]
        assert x == pytest.approx([0.1, 0.2, 0.5], abs=0.02)  # beside the other line's
        assert y == pytest.approx([level + more for level in mine])
        for pair, level in zip(ends, mine, strict=True):
            assert pair == pytest.approx(by_hand.interval([level + shift for shift in SHIFT])[1:], abs=0.02)


def test_an_interval_reaches_as_far_down_and_up_as_it_does() -> None:
    """Those over problems, and of shares near 0 and 1, lie on one side more than on the other."""
    from matplotlib.figure import Figure

    columns = ((1, 2, 4), (0.9, 0.5, 0.1), (0.7, 0.3, 0.0), (1.0, 0.6, 0.2))
    places, means, low, high = (np.array(column, dtype=np.float64) for column in columns)
    line = Line("topr", 0, Band(places, means, low, high, 1))
    for whiskers in (True, False):
        ax = Figure().subplots()
        draw_plot(ax, Plot([line], "x", "y", whiskers=whiskers))
        ends = ([one[:, 1] for one in ax.containers[0].lines[2][0].get_segments()] if whiskers
                else [filled(ax, 0, x) for x in places])  # fmt: skip
        assert np.array(ends) == pytest.approx(100 * np.stack([low, high], axis=1))
