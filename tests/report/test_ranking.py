"""Which group ended best, and what of that is not sure."""

import shutil

import numpy as np
import pytest

from tests.conftest import column
from tests.report.made_up import N, write_graded_run
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.estimates import best_first, estimate_text
from topr_exp.report.grouping import group_runs
from topr_exp.report.ranking import compare_with_best, rank_groups
from topr_exp.report.reader import find_runs

CONFIDENCE = "at 95 % for all comparisons together"
TOO_FEW = "No winner: fewer than 3 seeds in common."
NO_RIVAL = "No winner: no other group can be compared."
RNG = np.random.default_rng(1)
SIZE = (3, 40)  # seeds, problems
COLLAPSED = np.zeros(SIZE, int)
COUNTS = {"topr": RNG.binomial(N, 0.8, SIZE), "tis": RNG.binomial(N, 0.77, SIZE), "sft": RNG.binomial(N, 0.3, SIZE)}


def write_runs(folder, algo, counts, **options):
    """Runs of an algorithm, one a seed; counts: [seeds, problems] correct completions of N."""
    for seed, correct in enumerate(counts):
        write_graded_run(folder / algo / str(seed), correct, algo={"name": algo}, seed=seed, **options)
    return find_runs([folder / algo])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for algo, counts in COUNTS.items():
        write_runs(folder, algo, counts)
    return folder


@pytest.fixture
def topr(folder):
    """Its runs of the best algorithm."""
    return find_runs([folder / "topr"])


def rank(*runs):
    return rank_groups(best_first(group_runs(runs).groups))


def verdict_on(*runs):
    """The sentences after that on the highest mean."""
    return rank(*runs)[0].partition("). ")[2]


def test_the_best_is_named_with_what_is_below_and_what_is_not_told_apart_from_it(folder, topr):
    runs = find_runs([folder])

    sentence, rows = rank(*runs)

    mean = estimate_text(topr, "pass@1")
    assert sentence.startswith(f"topr has the highest mean of 3, {mean} % pass@1 (3 runs). ")
    assert sentence.endswith(f"Below another, {CONFIDENCE}: sft. Not told apart from it: tis.")
    assert column(rows, "pass@1, %") == ["topr", "tis", "sft"]
    for row, algo in zip(rows[1:], ("tis", "sft"), strict=True):
        difference = crossed_interval((COUNTS[algo] - COUNTS["topr"]) / N)
        assert row["minus topr"] == difference.percent(sign=True)
        assert row["paired over"] == "3 seeds, problems"


def test_unfinished_runs_have_no_rank(folder):
    runs = find_runs([folder])
    for run in runs:
        run.status = "running"

    assert rank(*runs) == ("No run has finished yet.", [])


def test_a_winner_is_above_all_others_by_three_seeds_at_least(folder):
    topr, tis, sft = (find_runs([folder / algo]) for algo in COUNTS)

    assert verdict_on(*topr, *sft) == f"It is above all others, {CONFIDENCE}."
    assert verdict_on(*topr[:2], *sft[:2]) == TOO_FEW
    assert verdict_on(*topr, *tis, *sft[1:]) == "Not told apart from it: tis. Not compared: sft."


def test_a_group_with_a_failed_run_wins_by_no_mean_of_the_others(folder, topr):
    *other_runs, failed_run = find_runs([folder / "sft"])
    failed_run.status = "failed"
    assert verdict_on(*topr, *other_runs, failed_run) == TOO_FEW

    failed_run.config = {**topr[0].config, "seed": 3}
    assert verdict_on(*topr, *other_runs, failed_run) == "No winner: 1 more run failed."


def test_a_winner_is_above_those_alone_that_it_was_compared_with(folder, topr, tmp_path):
    sft = find_runs([folder / "sft"])
    two_seeds = write_runs(tmp_path, "dpo", COUNTS["tis"][:2])
    collapsed = write_runs(tmp_path, "ppo", COLLAPSED, base=4)

    above = f"It is above all others compared, {CONFIDENCE}."
    assert verdict_on(*topr, *sft, *two_seeds) == f"{above} Not compared: dpo."
    assert verdict_on(*topr, *sft, *collapsed) == f"{above} Collapsed: ppo (3 of 3 seeds)."


def test_runs_on_other_problems_or_without_verdicts_are_not_compared(topr, tmp_path):
    on_other_problems = write_runs(tmp_path, "others", COUNTS["sft"], first_gold=1)
    without_verdicts = write_runs(tmp_path, "gone", COUNTS["sft"])
    for run in without_verdicts:
        shutil.rmtree(run.path / "store")

    for runs, reason in ((on_other_problems, "other test problems"), (without_verdicts, "evaluation are gone")):
        sentence, rows = rank(*topr, *runs)
        assert sentence.endswith(NO_RIVAL)
        assert any(value.endswith(reason) for value in rows[1].values())


def test_groups_with_collapsed_seeds_are_counted_and_have_no_part_in_the_error_of_the_others(folder, tmp_path):
    counts = np.full((3, 40), [[0], [N], [1]])  # with their spread sft would not be told apart from topr
    runs = find_runs([folder])

    verdict = verdict_on(*runs, *write_runs(tmp_path, "dpo", counts, base=4))

    assert verdict.startswith(f"Below another, {CONFIDENCE}: sft. ")
    assert verdict.endswith(" Collapsed: dpo (2 of 3 seeds).")
    next(run for run in runs if run.config["algo"]["name"] == "topr").summary["base"] = {"pass@1": 1.9}
    assert verdict_on(*runs).startswith("No winner: some of its seeds collapsed. ")


def test_a_rival_that_collapsed_is_the_reason_for_no_winner(topr, tmp_path):
    collapsed = write_runs(tmp_path, "dpo", COLLAPSED, base=4)

    assert verdict_on(*topr, *collapsed) == f"{NO_RIVAL} Collapsed: dpo (3 of 3 seeds)."
    assert verdict_on(*topr[:2], *collapsed) == f"{NO_RIVAL} Collapsed: dpo (3 of 3 seeds)."


def test_the_highest_mean_by_seeds_that_others_lack_is_no_winner():
    values = {"topr": COUNTS["sft"] / N, "tis": COUNTS["tis"] / N}
    assert compare_with_best(values, "topr", [], rival_text="") == [f"Below another, {CONFIDENCE}: topr."]


def test_groups_of_one_mean_share_the_first_place(folder, topr, tmp_path):
    twins = [*topr, *write_runs(tmp_path, "twin", COUNTS["topr"])]
    sft, tis = (find_runs([folder / algo]) for algo in ("sft", "tis"))

    assert rank(*twins)[0].startswith("topr; twin share the highest mean of 2, ")
    assert verdict_on(*twins, *sft) == f"They are above all others, {CONFIDENCE}."
    assert verdict_on(*twins, *tis) == "Not told apart from them: tis."


def test_a_single_group_is_compared_with_its_base(topr):
    gain = crossed_interval((COUNTS["topr"] - 1) / N).percent(sign=True)
    base, final = (estimate_text(topr, "pass@1", stage) for stage in ("base", "final"))

    assert rank(*topr) == (f"topr went from {base} to {final} % pass@1 (3 runs), by {gain} points.", [])
