"""Means and 95 % intervals of the report against plain arithmetic; who ended best, and what of that is not sure."""

from typing import Any

import numpy as np
import pytest

from tests import by_hand
from tests.report.made_up import evaluation, made_run
from tests.reproduce.worlds import group
from topr_exp.evaluation.intervals import Interval, below_another, crossed_interval
from topr_exp.report import estimates, ranking
from topr_exp.report.estimates import best_first, difference_between, estimate, estimate_text, headlines
from topr_exp.report.grouping import group_runs
from topr_exp.report.ranking import rank_groups
from topr_exp.report.reader import Run
from topr_exp.report.repetitions import Repetitions, counts_as_text, difference, problem_shares
from topr_exp.types import TOPRError

BASE = evaluation(30, 40, 20, ends=(25, 36))


def runs_of(*finals: tuple[float, float, float]) -> list[Run]:
    return [made_run(f"r{i}", BASE, evaluation(*levels, ends=(levels[0] - 4, levels[0] + 5)), seed=i)
            for i, levels in enumerate(finals)]  # fmt: skip


def ends(interval: Interval | None) -> tuple[float, float, float]:
    assert interval is not None
    return interval.value, interval.low, interval.high


def test_a_single_run_has_the_interval_over_problems_that_was_measured() -> None:
    (run,) = runs_of((60, 70, 5))
    assert ends(estimate([run], "pass@1")) == pytest.approx((0.60, 0.56, 0.65))
    assert ends(estimate([run], "maj@8")) == pytest.approx((0.70, 0.59, 0.68))
    from_error = estimate([made_run("x", BASE, evaluation(60, 70, 5, se=2.0))], "pass@1")  # 1.96 standard errors
    assert ends(from_error) == pytest.approx((0.6, 0.6 - 0.0392, 0.6 + 0.0392))
    assert estimate([made_run("x", BASE, {})], "pass@1") is None


def test_nothing_invalid_has_the_interval_of_so_many_sources() -> None:
    """The rule of three: of n cases none, at most 1 − 0.025^(1/n); solutions to one problem are one case."""
    for sources, cases in (({}, 50), ({"sources": 10}, 10)):
        interval = estimate([made_run("x", BASE, evaluation(60, 70, 0) | sources)], "invalid")
        assert ends(interval) == pytest.approx((0.0, 0.0, 1 - 0.025 ** (1 / cases)))


def test_a_run_that_is_not_finished_has_no_final_figure() -> None:
    runs = runs_of((60, 70, 9), (50, 66, 7), (10, 20, 7))
    runs[2].status = "running"
    assert ends(estimate(runs, "pass@1"))[0] == pytest.approx(0.55)
    assert estimate(runs[2:], "pass@1") is None
    assert ends(estimate(runs[2:], "pass@1", "base"))[0] == 0.3


def test_votes_of_several_numbers_of_completions_are_not_compared() -> None:
    """Records hold maj@K of the most completions of each run."""
    eight, four = runs_of((60, 70, 5), (50, 60, 5))
    four.summary["final"]["maj@4"] = four.summary["final"].pop("maj@8")
    for runs, reference in (([eight], [four]), ([four], [eight])):
        assert difference_between(runs, reference, "maj@8") == "no maj@8 of both"


def test_a_mean_reward_is_no_share() -> None:
    """Its interval may lie beyond 1, and nothing of it is in percent."""
    runs, rewards = runs_of((60.0, 70.0, 9.0), (63.0, 66.0, 7.0)), [-0.5, 2.5]
    assert headlines(runs) == ["pass@1", "maj@8"]
    for run, reward in zip(runs, rewards, strict=True):
        run.summary["final"] |= {"mean_reward": reward, "mean_reward_se": 0.1}
    assert headlines(runs) == ["pass@1", "mean_reward", "maj@8"]
    bounds = ends(estimate(runs, "mean_reward"))
    assert bounds == pytest.approx(by_hand.interval(rewards), rel=0.005)
    assert bounds[2] > 1
    assert estimate_text(runs[1:], "mean_reward") == "2.5 [2.3, 2.7]"
    assert estimate_text(runs[1:], "pass@1") == "63.0 [59.0, 68.0]"
    votes = {"maj@2": 0.1, "maj@4": 0.3, "maj@k": {}}
    assert headlines([made_run("y", {}, votes)]) == ["pass@1", "maj@4"], "the vote of most completions"


# ---- records by seed and problem


def test_a_verifier_s_solutions_to_a_problem_are_averaged_and_no_others() -> None:
    """It is asked of all first solutions, then of all second ones: three problems, two solutions, four verdicts."""
    counts = {"correct": "4 0 1 2 0 3", "invalid": "0 4 1 0 2 1", "maj": "1000 0 500 0 250 1000"}
    results = {"n": 4, "solutions": 2, "of_problems": counts}
    assert problem_shares(results, "pass@1").tolist() == [(4 + 2) / 8, 0, (1 + 3) / 8]
    assert problem_shares(results, "invalid").tolist() == [0, (4 + 2) / 8, (1 + 1) / 8]
    assert problem_shares(results, "maj").tolist() == [0.5, 0.125, 0.75]


def test_seeds_are_paired_by_their_number_wherever_they_stand() -> None:
    """Seeds lie up to 40 points apart, the second algorithm 5 above the first in each: decided over the shared seeds,
    which stand at other places in the two lists."""
    levels = {0: 20, 1: 60, 2: 40, 3: 55, 4: 25}

    def runs(algo: str, seeds: tuple[int, ...], points: float) -> Repetitions:
        records = group(algo, tuple(float(levels[seed] + points) for seed in seeds), seeds=seeds).records()
        return Repetitions(records[::-1] if points else records)

    interval = difference(runs("a", (0, 1, 2, 3), 0), runs("b", (1, 2, 3, 4), 5))
    assert interval is not None
    assert (interval.seeds, interval.value) == (3, pytest.approx(0.05, abs=0.001))
    assert 0.03 < interval.low < interval.high < 0.07
    assert difference(runs("a", (0, 1), 0), runs("b", (2, 3), 5)) is None


# ---- who ended best

N, PROBLEMS = 8, 40
LEVELS = {"topr": 0.8, "tis": 0.78, "sft": 0.3}


LEVELS_OF_COLLAPSED: dict[str, np.ndarray] = {}


def counts(algo: str, seed: int, part: str) -> np.ndarray:
    if algo in LEVELS_OF_COLLAPSED:
        return (LEVELS_OF_COLLAPSED[algo][seed] * N).astype(int)
    chance = np.random.default_rng([*algo.encode(), seed])
    return chance.binomial(N, LEVELS[algo] if part == "final" else 0.1, PROBLEMS)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Three algorithms on three seeds, whose verdicts are made up."""

    def of_run(run: Run, part: str) -> dict[str, Any]:
        values = counts_as_text(counts(run.config["algo"]["name"], run.config["seed"], part))
        return {"n": N, "of_problems": {"correct": values, "invalid": values, "maj": values}}

    def read_repetitions(runs: list[Run], *stages: str) -> Repetitions:
        return Repetitions(
            [{"settings": {"seed": run.draw}, **{stage: of_run(run, stage) for stage in stages}} for run in runs]
        )

    for module in (estimates, ranking):
        monkeypatch.setattr(module, "gold_answers", lambda run: "all of one test")
        monkeypatch.setattr(module, "read_repetitions", read_repetitions)
    return [made_run(f"{algo}{seed}", *({"pass@1": float(counts(algo, seed, part).mean() / N)}
                     for part in ("base", "final")), algo__name=algo, seed=seed)
            for algo in LEVELS for seed in range(3)]  # fmt: skip


def ranked(runs: list[Run]) -> tuple[str, list[dict[str, str]]]:
    return rank_groups(best_first(group_runs(runs).groups))


def paired(first: str, second: str) -> str:
    values = [np.stack([counts(algo, seed, "final") / N for seed in range(3)]) for algo in (first, second)]
    return crossed_interval(values[0] - values[1]).percent(sign=True)


def test_the_best_is_named_with_what_is_not_told_apart_from_it(runs, monkeypatch):
    sentence, rows = ranked(runs)
    assert [(row["pass@1, %"], row["runs"]) for row in rows] == [("topr", "3"), ("tis", "3"), ("sft", "3")]
    assert [row["minus topr"] for row in rows] == ["", paired("tis", "topr"), paired("sft", "topr")]
    assert [row["paired over"] for row in rows] == ["", "3 seeds, problems", "3 seeds, problems"]
    best = f"topr has the highest mean of 3, {rows[0]['mean']} % pass@1 (3 runs). "
    verdict = "Below another, at 95 % for all comparisons together: sft. Not told apart from it: tis."
    assert sentence == best + verdict
    without_tis = [run for run in runs if run.config["algo"]["name"] != "tis"]
    assert ranked(without_tis)[0].endswith("It is above all others, at 95 % for all comparisons together.")
    few = [run for run in runs if run.config["seed"] < 2]
    assert ranked(few)[0].endswith("(2 runs). No winner: fewer than 3 seeds in common.")
    two = [run for run in runs if run.name != "sft0"]
    assert ranked(two)[0].endswith("(3 runs). Not told apart from it: tis. Not compared: sft.")
    with monkeypatch.context() as patch:  # by a seed that the others don't have the best, by those in common not
        topr_below_tis = np.array([[False, True, False], [False] * 3, [False] * 3])
        patch.setattr("topr_exp.report.ranking.below_another", lambda values: topr_below_tis)
        assert ranked(runs)[0].endswith("Below another, at 95 % for all comparisons together: topr.")
    with monkeypatch.context() as patch:
        patch.setitem(next(run.summary for run in runs if run.name == "topr1"), "base", {"pass@1": 1.9})
        assert "No winner: some of its seeds collapsed. Collapsed: topr (1 of 3 seeds)" in ranked(runs)[0]
    assert [row["paired over"] for row in ranked([run for run in runs if run.config["seed"] == 0])[1]] == [
        "",
        *["problems"] * 2,
    ]

    def gone(run: Run) -> Any:
        raise TOPRError("gone")

    for golds, why in ((gone, "gone"), (lambda run: run.config["algo"]["name"], "other test problems")):
        for module in (estimates, ranking):
            monkeypatch.setattr(module, "gold_answers", golds)
        sentence, rows = ranked(runs)
        assert sentence == f"{best}No winner: fewer than 3 seeds in common."
        assert [row["minus topr"] for row in rows] == ["", why, why]


def test_groups_of_one_mean_share_the_first_place(runs: list[Run]) -> None:
    """Here by equal counts of every problem: neither is above the other, and both are above what is below them."""
    twins = [made_run(f"twin of {run.name}", run.summary["base"], run.summary["final"], algo__name="topr", algo__n=2,
                      seed=run.config["seed"]) for run in runs if run.config["algo"]["name"] == "topr"]  # fmt: skip
    for run in runs:
        run.config["algo"]["n"] = 1
    topr, sft = ([run for run in runs if run.config["algo"]["name"] == name] for name in ("topr", "sft"))
    sentence, rows = ranked([*topr, *twins])
    assert sentence == f"n=1; n=2 share the highest mean of 2, {rows[0]['mean']} % pass@1 (3 runs)."
    sentence, _ = ranked([*topr, *twins, *sft])
    assert " share the highest mean of 3, " in sentence
    assert sentence.endswith("They are above all others, at 95 % for all comparisons together.")
    sentence, _ = ranked([*topr, *twins, *(run for run in runs if run.config["algo"]["name"] == "tis")])
    assert " share the highest mean of 3, " in sentence
    assert "Not told apart from them: tis" in sentence


def test_collapsed_groups_have_no_part_in_the_error_of_the_others(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their seeds lie far apart; with their spread in the common error sft would not be told apart from topr."""
    without_collapsed, _ = ranked(runs)
    values = np.stack([np.stack([counts(algo, seed, "final") / N for seed in range(3)]) for algo in LEVELS])
    apart = np.stack([np.full(PROBLEMS, level) for level in (0.0, 1.0, 0.05)])
    assert below_another(values)[2].any()
    assert not below_another(np.concatenate([values, apart[None]]))[2].any()
    fallen = [made_run(f"dpo{seed}", {"pass@1": 0.9}, {"pass@1": level}, algo__name="dpo", seed=seed)
              for seed, level in enumerate((0.0, 1.0, 0.05))]  # fmt: skip
    monkeypatch.setitem(LEVELS_OF_COLLAPSED, "dpo", apart)
    with_collapsed, _ = ranked([*runs, *fallen])
    assert "Below another, at 95 % for all comparisons together: sft. Not told apart from it: tis." in with_collapsed
    assert with_collapsed.endswith("Collapsed: dpo (2 of 3 seeds).")
    assert "Below another, at 95 % for all comparisons together: sft. Not told apart from it: tis." in without_collapsed


def test_a_single_group_is_compared_with_its_base_and_unfinished_runs_are_left_out(runs: list[Run]) -> None:
    mine = [run for run in runs if run.config["algo"]["name"] == "topr"]
    gained = np.stack([counts("topr", seed, "final") - counts("topr", seed, "base") for seed in range(3)]) / N
    gain = f"(3 runs), by {crossed_interval(gained).percent(sign=True)} points."
    base, final = (estimate_text(mine, "pass@1", stage) for stage in ("base", "final"))
    assert ranked(mine) == (f"topr went from {base} to {final} % pass@1 {gain}", [])
    for run in runs:
        run.status = "running"
    assert ranked(runs) == ("No run has finished yet.", [])
