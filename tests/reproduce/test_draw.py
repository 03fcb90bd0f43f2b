"""What the figures show is what was planted: means, 95 % intervals, each at its own place and under its own name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from reproduce import agro, draw, iterations, limits, proportions, tabular, training
from tests import by_hand
from tests.reproduce import test_verifier
from tests.reproduce.made_up import named
from tests.reproduce.test_agro import at
from tests.reproduce.test_iterations import figure_8
from tests.reproduce.test_limits import variances
from tests.reproduce.test_proportions import sweep
from tests.reproduce.worlds import Group, group
from topr_exp.report.selection import Runs


def axes() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def runs_of(*groups: Group) -> Runs:
    return Runs([record for each in groups for record in each.records()])


def lines(ax: Any) -> dict[str, tuple[list[float], list[float]]]:
    """What is drawn under each name of the legend."""
    return {line.get_label(): (list(map(float, line.get_xdata())), list(map(float, line.get_ydata())))
            for line in ax.lines if not line.get_label().startswith("_")}  # fmt: skip


def error_bars(ax: Any) -> list[tuple[float, float]]:
    """The ends of every error bar, in the order in which they were drawn."""
    found = [each for each in ax.containers if type(each).__name__ == "ErrorbarContainer"]
    return [tuple(segment[:, 1]) for each in found for segment in each.lines[2][0].get_segments()]


def filled(collection: Any, x: float) -> tuple[float, float]:
    """The lower and the upper end of a band at one of its places."""
    ys = [y for place, y in collection.get_paths()[0].vertices if place == x]
    return min(ys), max(ys)


def test_bars_are_the_final_shares_after_the_base_s() -> None:
    groups = {
        "topr": runs_of(group("topr", 60, maj=75, invalid=2)),
        "ppo": runs_of(group("ppo", 45, maj=35, invalid=12)),
    }
    for name, heights in (("pass@1", [30, 60, 45]), ("maj", [40, 75, 35]), ("invalid", [20, 2, 12])):
        ax = axes()
        draw.bars(ax, groups, name)
        bars = [each[0] for each in ax.containers if type(each).__name__ == "BarContainer"]
        assert [bar.get_height() for bar in bars] == pytest.approx(heights, abs=0.1)
        assert [text.get_text() for text in ax.get_xticklabels()] == ["base", "TOPR", "PPO"]
        (_, topr, ppo) = error_bars(ax)
        for (low, high), runs in ((topr, groups["topr"]), (ppo, groups["ppo"])):
            found = by_hand_over(runs, name)
            assert (low, high) == pytest.approx(found, abs=0.35), name
    ax = axes()
    draw.bars(ax, groups, base=False)
    assert [text.get_text() for text in ax.get_xticklabels()] == ["TOPR", "PPO"]
    draw.base_line(ax, groups["ppo"], "invalid")
    assert ax.lines[-1].get_ydata()[0] == pytest.approx(20)


def test_more_lines_than_markers_are_drawn() -> None:
    groups = {f"way {i}": runs_of(group("topr", 20 + 5 * i, optim__lr=1e-4)) for i in range(len(draw.MARKERS) + 2)}
    ax = axes()
    draw.against(ax, groups, "optim.lr")
    assert [*lines(ax)] == [*groups]
    ax = axes()
    draw.each_seed(ax, groups, "optim.lr", lambda record: float(record["final"]["correct"]))
    assert [*lines(ax)] == [*groups]


def by_hand_over(runs: Runs, name: str) -> tuple[float, float]:
    """The ends of the 95 % interval over seeds and problems, in percent."""
    rows = [[int(count) for count in each["final"]["of_problems"][{"pass@1": "correct"}.get(name, name)].split()]
            for each in runs]  # fmt: skip
    of_one = 1000 if name == "maj" else runs[0]["final"]["n"]
    _, low, high = by_hand.crossed_interval(rows)
    return max(0.0, 100 * low / of_one), 100 * high / of_one


def test_points_stand_at_their_settings() -> None:
    levels = {0.5: 60, 0.02: 20, 0.1: 45}
    ax = axes()
    draw.against(ax, {"topr": runs_of(*sweep("topr", levels)), "tis": runs_of(*sweep("tis", {0.1: 25, 0.5: 70}))},
                 "effective_positive", shift=0.0)  # fmt: skip
    assert lines(ax)["TOPR"] == ([0.02, 0.1, 0.5], pytest.approx([20, 45, 60], abs=0.1))
    assert lines(ax)["TIS"] == ([0.1, 0.5], pytest.approx([25, 70], abs=0.1))
    for (low, high), (algo, p) in zip(error_bars(ax), [("topr", 0.02), ("topr", 0.1), ("topr", 0.5), ("tis", 0.1),
                                                       ("tis", 0.5)], strict=True):  # fmt: skip
        level = {"topr": levels, "tis": {0.1: 25, 0.5: 70}}[algo][p]
        assert (low, high) == pytest.approx(by_hand_over(runs_of(*sweep(algo, {p: level})), "pass@1"), abs=0.35)


def test_curves_are_means_over_seeds_with_their_interval() -> None:
    curve = {"step": [0, 10, 20], "pass@1": [30, 50, 40], "invalid": [20, 10, 5]}
    other = {"step": [0, 10, 20], "pass@1": [30, 20, 10], "invalid": [20, 30, 40]}
    groups = {"topr": runs_of(group("topr", 80, curve=curve)), "naive": runs_of(group("naive", 3, curve=other))}
    for name in ("pass@1", "invalid"):
        ax = axes()
        draw.curves(ax, groups, name)
        assert lines(ax)["TOPR"] == ([0, 10, 20], pytest.approx(curve[name]))
        assert lines(ax)["naive REINFORCE"] == ([0, 10, 20], pytest.approx(other[name]))
        middle = [curve[name][1] + shift for shift in (0, 0.1, -0.1)]
        assert filled(ax.collections[0], 10) == pytest.approx(by_hand.interval(middle)[1:], abs=1e-3)


def test_metrics_are_means_over_seeds() -> None:
    def runs(algo: str, start: float) -> Runs:
        return runs_of(group(algo, 50, metrics={"grad_norm": [start + i for i in range(20)], "kl_mu": [0.0] * 20}))

    groups = {"topr": runs("topr", 1.0), "is": runs("is", 40.0)}
    ax = axes()
    draw.metric(ax, groups, "grad_norm")
    assert lines(ax)["TOPR"] == (list(range(1, 21)), pytest.approx([1 + i for i in range(20)]))
    assert lines(ax)["IS"][1] == pytest.approx([40 + i for i in range(20)])


def test_the_shares_of_figure_3_are_stacked_in_their_order() -> None:
    curve = {"step": [0, 10], "correct": [30, 60], "incorrect": [50, 35], "invalid": [20, 5]}
    ax = axes()
    training.shares(ax, runs_of(group("topr", 80, seeds=(0,), curve=curve)))
    found = {each.get_label(): filled(each, 10) for each in ax.collections}
    assert found == {"correct": pytest.approx((0, 60)), "incorrect": pytest.approx((60, 95)),
                     "invalid": pytest.approx((95, 100))}  # fmt: skip


def test_problems_by_their_number_of_correct_completions() -> None:
    ax = axes()
    training.histogram(ax, {"topr": runs_of(group("topr", 70, few=(15, 2), seeds=(0, 1)))})
    x, y = lines(ax)["TOPR"]
    assert x == list(range(9))
    assert y[2] == pytest.approx(15)
    assert sum(y) == pytest.approx(100)
    assert sum(i * share / 8 for i, share in enumerate(y)) == pytest.approx(70.5, abs=0.1)  # seeds at 70 and 71
    base = lines(ax)["base"][1]
    assert sum(i * share / 8 for i, share in enumerate(base)) == pytest.approx(30)


def test_iterations_are_drawn_in_turn() -> None:
    world = figure_8()[0]
    ax = axes()
    groups = iterations.compositions(Runs(world.records()))
    for i, (label, runs) in enumerate(groups.items()):
        iterations.over_iterations(ax, i, label, runs, "pass@1")
    found = {name.split(" (")[0]: y for name, (_, y) in lines(ax).items()}
    assert found == {"uniform": pytest.approx([30, 50, 70, 60], abs=0.1),
                     "TOPR on positives": pytest.approx([30, 45, 70, 50], abs=0.1),
                     "Anna Karenina": pytest.approx([30, 64, 64, 70], abs=0.1)}  # fmt: skip


def test_the_map_s_cells() -> None:
    levels = {1e-4: {0.1: 20, 0.5: 30}, 3e-4: {0.1: 40, 0.5: 50}}
    groups = [one for rate, each in levels.items() for one in sweep("topr", each, optim__lr=rate)]
    figure = proportions.draw_map(runs_of(*groups), {})
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["10 %", "50 %"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0.0001", "0.0003"]
    np.testing.assert_allclose(ax.images[0].get_array(), [[20, 30], [40, 50]], atol=0.1)
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {(0, 0): "20", (1, 0): "30", (0, 1): "40", (1, 1): "50"}


def test_pass_at_1_against_the_kl_goes_from_the_nearest_to_the_farthest() -> None:
    groups = [at("agro", 0.05, 60, 2.0), at("agro", 0.2, 70, 1.0), at("agro", 0.5, 45, 0.5)]
    extra: dict[str, Any] = {}
    for each in groups:
        extra |= {str_of(record): each.number(record["settings"]["seed"]) for record in each.records()}
    ax = axes()
    agro.efficiency(ax, {"agro": runs_of(*groups)}, extra)
    assert lines(ax)["AGRO"] == (pytest.approx([0.51, 1.02, 2.04]), pytest.approx([45, 70, 60], abs=0.1))


def str_of(record: dict[str, Any]) -> str:
    return json.dumps(record["settings"], sort_keys=True)


def test_variances_are_drawn_as_geometric_means() -> None:
    ax, found = axes(), variances({"sft": (1.0, 10.0, 0.1)})
    limits.noise(ax, ["sft", "topr"], [each for key, each in found.items() if key.startswith("tiny ")])
    bars = [each[0].get_height() for each in ax.containers]
    assert bars == pytest.approx([(2.0 * 0.1 * 70) ** (1 / 3)] * 2)  # 2, 1 and 7 in the seeds against 2, 0.1 and 70


def test_ratios_are_those_of_the_last_updates() -> None:
    names = ("log_ratio_q05_pos", "log_ratio_q50_pos", "log_ratio_q95_pos")
    metrics = {name: [9.0] * 19 + [float(np.log(value))] for name, value in zip(names, (0.5, 1.5, 4.0), strict=True)}
    metrics |= {name.replace("pos", "neg"): [9.0] * 19 + [0.0] for name in names}
    runs = runs_of(group("topr", 60, metrics=metrics))
    assert tabular.ratios(runs, "positive") == pytest.approx((0.5, 1.5, 4.0))
    assert tabular.ratios(runs, "negative") == pytest.approx((1, 1, 1))


# ---- whole figures: each panel shows the runs that its title names


def panels(figure: str, groups: list[Group], extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The axes by title."""
    noted = {str_of(record): each.number(record["settings"]["seed"])
             for each in groups if each.noted is not None for record in each.records()}  # fmt: skip
    drawn = named(figure).draw(runs_of(*groups), {**(extra or {}), **noted})
    found: dict[str, Any] = {}
    for ax in drawn.axes:
        found.setdefault(ax.get_title(), []).append(ax)
    return found


def last(ax: Any) -> dict[str, float]:
    """Where each line of the legend ends."""
    return {name: y[-1] for name, (_, y) in lines(ax).items()}


def heights(ax: Any) -> dict[str, float]:
    bars = [each[0].get_height() for each in ax.containers if type(each).__name__ == "BarContainer"]
    return dict(zip([text.get_text() for text in ax.get_xticklabels()], bars, strict=True))


def ending(level: float, invalid: float = 10) -> dict[str, list[float]]:
    return {"step": [0, 10], "pass@1": [30, level], "correct": [30, level], "invalid": [20, invalid],
            "incorrect": [50, 100 - level - invalid]}  # fmt: skip


def test_curves_stand_under_their_model_and_algorithm() -> None:
    levels = {("tiny", "topr"): 60, ("tiny", "ppo"): 40, ("tiny_noise", "topr"): 70, ("tiny_noise", "ppo"): 50}
    groups = [group(algo, 50, model__name=model, curve=ending(level, level / 10))
              for (model, algo), level in levels.items()]  # fmt: skip
    found = panels("fig1", groups)
    for model in ("tiny", "tiny_noise"):
        expected = {"TOPR": levels[model, "topr"], "PPO": levels[model, "ppo"]}
        assert last(found[model][0]) == pytest.approx(expected)
    others = [group(algo, 50, model__name=model, curve=ending(20)) for model in ("tiny", "tiny_noise")
              for algo in ("naive", "dpo")]  # fmt: skip
    found = panels("fig3", [*groups, *others])
    for (model, algo), level in levels.items():
        (ax,) = found[f"{draw.name_of(algo)}, {model}"]
        shares = {each.get_label(): filled(each, 10) for each in ax.collections}
        assert shares["correct"] == pytest.approx((0, level))
        assert shares["invalid"] == pytest.approx((100 - level / 10, 100))


def test_figure_4_s_panels() -> None:
    groups = [group(algo, level, data__name=data, maj=level + 20, curve=ending(level - 5))
              for algo, data, level in (("topr", "gsm8k", 60), ("sft", "gsm8k", 50), ("topr", "math", 40),
                                        ("sft", "math", 35))]  # fmt: skip
    figure = named("fig4").draw(runs_of(*groups), {})
    first, votes, counts, math = figure.axes
    assert last(first) == pytest.approx({"TOPR": 55, "positives only": 45})
    assert heights(votes) == pytest.approx({"base": 40, "TOPR": 80, "positives only": 70}, abs=0.1)
    assert heights(math) == pytest.approx({"base": 30, "TOPR": 40, "positives only": 35}, abs=0.1)
    means = {name: sum(i * share / 8 for i, share in enumerate(y)) for name, (_, y) in lines(counts).items()}
    assert means == pytest.approx({"base": 30, "TOPR": 60, "positives only": 50}, abs=0.1)


def test_figures_5_and_6_have_a_panel_for_each_model_and_data_set() -> None:
    groups = [one for p, level in ((0.1, 40), (0.5, 60)) for model, more in (("tiny", 0), ("tiny_noise", 5))
              for one in sweep("topr", {0.1: level + more}, compose__positive_share=p, model__name=model)]  # fmt: skip
    found = panels("fig5", groups)
    for model, more in (("tiny", 0), ("tiny_noise", 5)):
        assert last(found[model][0]) == pytest.approx({"p = 10 %": 40 + more, "p = 50 %": 60 + more}, abs=0.1)
    levels = {(model, data, algo): 20 + 7 * i for i, (model, data, algo) in enumerate(
        (model, data, algo) for model in ("tiny", "tiny_noise") for data in ("gsm8k", "math")
        for algo in ("topr", "tis"))}  # fmt: skip
    groups = [one for (model, data, algo), level in levels.items()
              for one in sweep(algo, {0.1: level}, model__name=model, data__name=data)]  # fmt: skip
    found = panels("fig6", groups)
    for model in ("tiny", "tiny_noise"):
        for data in ("gsm8k", "math"):
            (ax,) = found[f"{model}, {draw.name_of(data)}"]
            expected = {"TOPR": levels[model, data, "topr"], "TIS": levels[model, data, "tis"]}
            assert last(ax) == pytest.approx(expected, abs=0.1)


def test_questions_beyond_the_papers_have_a_panel_for_each_algorithm() -> None:
    groups = [group(algo, level, algo__ratio=ratio, optim__lr=1e-4)
              for algo, ratio, level in (("topr", "sequence", 60), ("topr", "token", 50), ("is", "sequence", 40),
                                         ("is", "token", 30))]  # fmt: skip
    found = panels("ratio", groups)
    assert last(found["tiny, TOPR"][0]) == pytest.approx({"sequence": 60, "token": 50}, abs=0.1)
    assert last(found["tiny, IS"][0]) == pytest.approx({"sequence": 40, "token": 30}, abs=0.1)
    groups = [group(algo, level, mu=mu, sampler__top_k=k)
              for algo, mu, k, level in (("topr", "scored", 0, 60), ("topr", "sampler", 2, 50), ("is", "scored", 2, 40),
                                         ("is", "sampler", 0, 30))]  # fmt: skip
    found = panels("mu", groups)
    assert heights(found["tiny, TOPR"][0]) == pytest.approx({"scored, no top-k": 60, "sampler, top-k 2": 50}, abs=0.1)
    assert heights(found["tiny, IS"][0]) == pytest.approx({"sampler, no top-k": 30, "scored, top-k 2": 40}, abs=0.1)
    groups = [group(algo, level, schedule__updates=updates)
              for algo, updates, level in (("topr", 1, 60), ("topr", 128, 50), ("ppo", 1, 40), ("ppo", 128, 30),
                                           ("asymre", 1, 20), ("asymre", 128, 25))]  # fmt: skip
    found = panels("staleness", groups)
    assert last(found["tiny, each response weighed"][0]) == pytest.approx({"TOPR": 50}, abs=0.1)
    assert last(found["tiny, clipped next to ratio 1"][0]) == pytest.approx({"PPO": 30}, abs=0.1)
    assert last(found["tiny, no ratio to μ"][0]) == pytest.approx({"AsymRE": 25}, abs=0.1)


def test_table_2_s_bars() -> None:
    noted = test_verifier.noted((60, 40, 30, 35, 45), (70, 80, 8, 60, 45))
    groups = [group("topr", 50, model__name="tiny_verifier", noted=noted)]
    accuracy, invalid, weighted = panels("table2", groups)["tiny_verifier"]
    assert heights(accuracy) == pytest.approx({"base": 45, "topr": 77.5}, abs=0.3)
    assert heights(invalid) == pytest.approx({"base": 30, "topr": 8}, abs=0.3)
    assert heights(weighted) == pytest.approx({"none": 45, "base": 35, "topr": 60, "oracle": 80}, abs=0.3)


def test_replay_s_panels() -> None:
    groups = [group("agro", level, schedule__replay=q, noted=kl, schedule__prompts=2,
                    metrics={"sampled_correct": [0.3 + q] * 20}) for q, level, kl in ((0.0, 60, 1.0), (0.5, 50, 2.0))
              ]  # fmt: skip
    figure = named("agro_replay").draw(runs_of(*groups), {str_of(record): each.noted for each in groups
                                                          for record in each.records()})  # fmt: skip
    sampled, final, apart = figure.axes
    assert last(sampled) == pytest.approx({"replay 0": 0.3, "replay 0.5": 0.8})
    assert heights(final) == pytest.approx({"base": 30, "replay 0": 60, "replay 0.5": 50}, abs=0.1)
    assert {name: x[0] for name, (x, _) in lines(apart).items()} == {"replay 0": 1.0, "replay 0.5": 2.0}
    assert {name: max(y) for name, (_, y) in lines(apart).items()} == pytest.approx({"replay 0": 61, "replay 0.5": 51})
