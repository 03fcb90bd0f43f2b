"""Groups of runs beside one another: means, and differences paired by seed and problem."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests import by_hand
from tests.conftest import each_row, read_json, refused
from tests.report.made_up import N, bounds_of, ends_of, write_graded_run
from tests.sweep_tools import answer
from topr_exp import compare_runs
from topr_exp.compare import choose_references, group_settings
from topr_exp.report import difference, read_groups
from topr_exp.report.grouping import group_runs
from topr_exp.report.reader import find_runs
from topr_exp.report.tables import groups_frame
from topr_exp.types import CORRECT, INCORRECT, ConfigError

CONFIDENCE = "at 95 % for all comparisons together."


def write_run(folder, algo, seed=0, level=0.5, **settings):
    """Write a run of these; returns the correct and invalid completions of each problem, [2, problems].

    Problems differ, and so do seeds.
    """
    difficulty = np.random.default_rng(0).uniform(-0.25, 0.25, 30)
    rng = np.random.default_rng([1, seed, int(100 * level)])
    noise = 0.05 * rng.normal(size=30)
    shares = level + 0.04 * seed + difficulty + noise
    correct = rng.binomial(N, shares.clip(0.0, 0.95))
    invalid = rng.integers(0, N - correct + 1) // 2
    write_graded_run(folder, correct, invalid, algo={"name": algo}, seed=seed, **settings)
    return np.stack([correct, invalid])


def write_runs(folder, seeds_of_algo):
    """A run of each algorithm and seed, in a folder of this name."""
    for algo, seeds in seeds_of_algo.items():
        for seed in seeds:
            write_run(folder / f"{algo}{seed}", algo, seed)


def printed(*words):
    """The lines of a comparison."""
    outcome = answer("topr_exp.compare", *words)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.splitlines()


def numbers(text):
    return list(map(float, re.findall(r"[-+]?\d+\.\d", text)))


def vote(correct, invalid):
    """Whether the most frequent answer is right: the correct one against that of all wrong ones but one."""
    wrong = N - correct - invalid
    votes = [(CORRECT, "right")] * correct
    if wrong:
        votes += [(INCORRECT, "wrong")] * (wrong - 1) + [(INCORRECT, "also wrong")]
    return by_hand.majority(votes)


FIGURES = {"pass@1": lambda correct, invalid: correct / N, "invalid": lambda correct, invalid: invalid / N, "maj": vote}


@pytest.mark.parametrize("figure", FIGURES)
def test_means_and_differences_are_those_of_plain_arithmetic(figure, tmp_path):
    """The folders' names are in another order than the seeds, and in another one for each algorithm."""
    table = {"topr": [], "is": []}
    for algo, level, folders in (("topr", 0.6, "cab"), ("is", 0.4, "bca")):
        for seed, name in enumerate(folders):
            counts = write_run(tmp_path / f"{name}_{algo}", algo, seed, level)
            shares = map(FIGURES[figure], *counts.tolist())
            table[algo].append(list(shares))

    frame = compare_runs(tmp_path, against="topr", figure=figure)
    lines = printed(tmp_path, "--figure", figure, "--against", "topr")

    mean = frame.columns[1]
    for algo, shares in table.items():
        expected_mean = by_hand.crossed_interval_of_shares(shares)
        assert ends_of(frame, algo, mean) == pytest.approx(expected_mean, abs=1e-3)
    differences = np.subtract(table["is"], table["topr"])
    expected_difference = by_hand.crossed_interval(differences.tolist())
    assert ends_of(frame, "is", "difference") == pytest.approx(expected_difference, abs=1e-3)
    assert frame["against"].dropna().to_dict() == {"is": "topr"}
    assert frame["not_compared"].isna().all()
    remarks = "".join(frame.attrs["remarks"])
    assert ("topr has the highest mean" in remarks) == (figure != "invalid")
    (line,) = [line for line in lines if line.startswith("is ")]
    shares_of_line = [number / 100 for number in numbers(line)]
    expected_shares = ends_of(frame, "is", mean) + ends_of(frame, "is", "difference")
    assert shares_of_line == pytest.approx(expected_shares, abs=0.00051)


def test_the_report_has_the_same_numbers_and_so_has_the_summary_of_a_single_run(tmp_path):
    write_runs(tmp_path / "before", {"topr": (0, 1), "naive": (0, 1)})
    folder = shutil.move(tmp_path / "before", tmp_path / "moved")

    frame = compare_runs(folder)
    table = groups_frame(group_runs(find_runs([folder])))
    single = compare_runs(folder / "topr0")

    columns = bounds_of("final_pass@1")
    assert frame[columns].equals(table.loc[frame.index, columns])
    assert set(table["final_pass@1_interval_over"]) == {"2 seeds, problems"}
    point = read_json(folder / "topr0/summary.json")["final"]["pass@k"]["1"]
    assert ends_of(single, "topr", "final_pass@1") == list(point.values())
    title, _, caption = printed(folder / "topr0")
    assert title.split() == ["pass@1,", "%", "runs", "mean", "over"], "no column for a difference"
    assert caption == "[ ]: 95 %"


def test_groups_of_other_test_problems_are_told_apart_and_not_compared(tmp_path):
    for seed in range(4):
        write_run(tmp_path / f"r{seed}", "topr", seed, first_gold=seed % 2)

    frame = compare_runs(tmp_path)

    assert frame["runs"].to_dict() == {"test=1": 2, "test=2": 2}
    assert frame["not_compared"].dropna().to_dict() == {"test=2": "other test problems"}
    assert frame["difference_low"].dtype == float, "without any difference, too"
    groups = read_groups(tmp_path)
    with refused("other test problems: these groups can't be paired by problem"):
        difference(groups["test=1"], groups["test=2"])


def test_what_else_differs_and_what_is_counted_once_is_reported(tmp_path):
    for algo, lr in (("topr", 1e-4), ("tis", 1e-3)):
        write_run(tmp_path / algo, algo, optim={"lr": lr})
    shutil.copytree(tmp_path / "tis", tmp_path / "tis_again")

    outcome = answer("topr_exp.compare", tmp_path, "--against", "topr")

    assert outcome.returncode == 0
    _, first_line, second_line, *_, last_line = outcome.stdout.splitlines()
    assert first_line.split()[1] == second_line.split()[1] == "1"
    assert last_line == "also differs: optim.lr (0.0001, 0.001)"
    assert outcome.stderr == "warning: tis_again has the settings and seeds of tis: counted once\n"


def test_a_group_of_which_a_run_failed_wins_once_that_run_ends(tmp_path):
    for seed in range(4):
        write_run(tmp_path / f"topr{seed}", "topr", seed, level=0.7)
        write_run(tmp_path / f"sft{seed}", "sft", seed, level=0.3)
    shutil.copytree(tmp_path / "topr3", tmp_path / "again/topr3")
    (tmp_path / "topr3/DONE").unlink()
    (tmp_path / "topr3/state.json").write_text('{"status": "failed"}')

    assert compare_runs(tmp_path).attrs["remarks"][0].endswith(" It is above all others, " + CONFIDENCE)
    shutil.rmtree(tmp_path / "again")
    assert compare_runs(tmp_path).attrs["remarks"][0].endswith("(3 runs). No winner: 1 more run failed.")


def test_a_line_ends_with_what_it_rests_on(tmp_path):
    write_runs(tmp_path, {"a": (0, 1, 2), "b": (1, 2, 3), "c": (1,), "d": (9,)})

    endings = [line.rpartition("  ")[2] for line in printed(tmp_path)[1:5]]

    assert endings == ["3 seeds, problems", "2 seeds, problems", "problems", "no seed in common"]
    shutil.rmtree(tmp_path / "a0/store")
    reasons = compare_runs(tmp_path)["not_compared"].dropna()
    assert reasons.tolist() == ["a0: the verdicts of its evaluation are gone"] * 3


def test_groups_of_a_notebook_are_paired_by_seed_as_those_of_the_comparison(tmp_path):
    write_runs(tmp_path, {"is": (1, 2, 3), "topr": (0, 1, 2)})

    groups = read_groups(tmp_path)
    interval = difference(groups["topr"], groups["is"])

    assert {name: group.seeds for name, group in groups.items()} == {"is": [1, 2, 3], "topr": [0, 1, 2]}
    frame = compare_runs(tmp_path, against="topr")
    assert [interval.value, interval.low, interval.high] == ends_of(frame, "is", "difference")
    assert interval.over == frame.loc["is", "difference_interval_over"] == "2 seeds, problems"
    for mark in tmp_path.glob("*/DONE"):
        mark.unlink()
    with refused("none of 6 runs there is finished"):
        read_groups(tmp_path)


SWEEP = """
sft, p̃=not set
tis, p̃=0.1
tis, p̃=0.5
topr, p̃=0.1
topr, p̃=0.5
"""
SWEEP_WITH_CAP = """
tis, p̃=0.5, cap=not set
topr, p̃=0.1, cap=not set
topr, p̃=0.5, cap=not set
mine, p̃=0.1, cap=2
mine, p̃=0.1, cap=not set
mine, p̃=0.5, cap=2
mine, p̃=0.5, cap=not set
mine, p̃=0.9, cap=2
mine, p̃=0.9, cap=not set
"""  # which is a setting of the loss "mine" alone
# --against | a group | what it is compared with
REFERENCES = """
topr | sft, p̃=not set | none
topr | tis, p̃=0.1 | topr, p̃=0.1
topr | tis, p̃=0.5 | topr, p̃=0.5
topr | topr, p̃=0.1 | topr, p̃=0.1
topr | topr, p̃=0.5 | topr, p̃=0.5
p̃=0.1 | sft, p̃=not set | none
p̃=0.1 | tis, p̃=0.1 | tis, p̃=0.1
p̃=0.1 | tis, p̃=0.5 | tis, p̃=0.1
p̃=0.1 | topr, p̃=0.1 | topr, p̃=0.1
p̃=0.1 | topr, p̃=0.5 | topr, p̃=0.1
tis, p̃=0.5 | sft, p̃=not set | tis, p̃=0.5
tis, p̃=0.5 | tis, p̃=0.1 | tis, p̃=0.5
tis, p̃=0.5 | tis, p̃=0.5 | tis, p̃=0.5
tis, p̃=0.5 | topr, p̃=0.1 | tis, p̃=0.5
tis, p̃=0.5 | topr, p̃=0.5 | tis, p̃=0.5
topr | tis, p̃=0.5, cap=not set | topr, p̃=0.5, cap=not set
topr | mine, p̃=0.1, cap=2 | topr, p̃=0.1, cap=not set
topr | mine, p̃=0.1, cap=not set | topr, p̃=0.1, cap=not set
topr | mine, p̃=0.5, cap=2 | topr, p̃=0.5, cap=not set
topr | mine, p̃=0.5, cap=not set | topr, p̃=0.5, cap=not set
topr | mine, p̃=0.9, cap=2 | none
topr | mine, p̃=0.9, cap=not set | none
mine | topr, p̃=0.5, cap=not set | mine, p̃=0.5, cap=not set
cap=2 | topr, p̃=0.5, cap=not set | none
"""


def references_in(sweep, against):
    """What each group of a sweep is compared with; its label lists its values."""
    keys = ["algo.name", "effective_positive", "algo.cap"]
    settings_by_label = {}
    for label in sweep.strip().splitlines():
        algo, *parts = label.split(", ")
        settings = {"algo.name": algo}
        for key, part in zip(keys[1:], parts, strict=False):
            value = part.rpartition("=")[2]
            if key != "algo.cap" or algo == "mine":
                settings[key] = None if value == "not set" else float(value)
        run = SimpleNamespace(settings=settings)
        settings_by_label[label] = group_settings(keys[: 1 + len(parts)], [run])
    return choose_references(settings_by_label, against)


@each_row("against group reference", REFERENCES)
def test_each_group_is_compared_at_its_own_level_of_the_other_setting(against, group, reference):
    sweep = SWEEP_WITH_CAP if "cap=" in group else SWEEP

    assert (references_in(sweep, against)[group] or "none") == reference


def test_without_a_reference_it_is_the_first_group_and_one_that_is_not_there_is_refused():
    assert set(references_in(SWEEP, None).values()) == {"sft, p̃=not set"}
    with refused("against ppo: no such group; allowed: sft, .*; sft; p̃=not set; tis; ", ConfigError):
        references_in(SWEEP, "ppo")


def test_mistakes_are_one_line(tmp_path):
    write_runs(tmp_path / "runs", {"topr": (0,), "naive": (0,)})
    topr = tmp_path / "runs/topr0"

    def error_of(status, *words):
        outcome = answer("topr_exp.compare", *words)
        assert outcome.returncode == status
        return outcome.stderr

    assert "error: against p̃=1: no such group; allowed: naive; topr" in error_of(2, topr.parent, "--against", "p~=1")
    assert error_of(1, tmp_path / "nowhere") == f"error: {tmp_path / 'nowhere'}: no such folder\n"
    figures = {"base": {"pass@1": 0.5}, "final": {"pass@1": 0.5}}  # as an own grader without answers leaves it
    (topr / "summary.json").write_text(json.dumps(figures))
    assert "error: no finished run there has maj (1 run)\n" in error_of(1, topr, "--figure", "maj")
    (topr / "DONE").unlink()
    message = "warning: 1 unfinished run left out\nerror: no finished run there has pass@1 (1 run)\n"
    assert error_of(1, topr) == message
