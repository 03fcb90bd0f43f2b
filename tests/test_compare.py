"""Groups of runs beside one another: means, and differences paired by seed and problem."""

import csv
import itertools
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests import by_hand
from tests.run_folders import write_run
from topr_exp import compare_runs
from topr_exp.compare import main, references
from topr_exp.evaluation.statistics import summarise
from topr_exp.report.grouping import group_runs
from topr_exp.report.reader import find_runs
from topr_exp.report.tables import as_csv, groups_frame
from topr_exp.store import Store
from topr_exp.types import VERDICTS, ConfigError


def groups_of(*folders: Path) -> list[dict[str, str]]:
    """The rows of the report's table of groups."""
    return list(csv.DictReader(as_csv(groups_frame(group_runs(find_runs(folders)))).splitlines()))


def test_the_report_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One number, one interval: of two seeds in both commands, of a single run in its summary, too. Runs may move."""
    for algo, seed in itertools.product(("topr", "naive"), (0, 1)):
        made_run(tmp_path / "made", f"{algo}{seed}", counts_of(seed, 0.6), algo={"name": algo}, seed=seed)
    there = shutil.move(tmp_path / "made", tmp_path / "moved")
    for folders in ([there], *([path.parent] for path in there.rglob("DONE"))):
        found, rows, single = shown(capsys, *folders), groups_of(*folders), folders != [there]
        assert len(rows) == len(found) == (1 if single else 2)
        for row in rows:
            ends = [100 * float(row[f"final_pass@1{end}"]) for end in ("", "_low", "_high")]
            assert found[row["group"]][0] == pytest.approx(ends, abs=0.051)
            assert row["final_pass@1_interval_over"] == ("problems" if single else "2 seeds, problems")
            if single:
                point = json.loads((folders[0] / "summary.json").read_text())["final"]["pass@k"]["1"]
                assert ends == pytest.approx([100 * point[name] for name in ("value", "low", "high")])


def test_groups_of_other_test_problems_are_told_apart_and_not_compared(tmp_path, capsys):
    for seed in range(4):
        made_run(tmp_path, f"r{seed}", counts_of(seed, 0.3 + 0.1 * seed), first_gold=seed % 2, algo={"name": "topr"},
                 seed=seed)  # fmt: skip
    assert main([str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:3]
    assert (first.split()[:2], second.split()[:2]) == (["test=1", "2"], ["test=2", "2"])
    assert second.endswith("  other test problems")
    assert [(row["group"], row["runs"]) for row in groups_of(tmp_path)] == [("test=1", "2"), ("test=2", "2")]


def test_what_else_differs_and_what_is_counted_once_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lr in (("topr", 1e-4), ("tis", 1e-3)):
        made_run(tmp_path, name, counts_of(0, 0.5), algo={"name": name}, optim={"lr": lr}, seed=0)
    shutil.copytree(tmp_path / "tis", tmp_path / "tis_again")
    assert main([str(tmp_path), "--against", "topr"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "also differs: optim.lr (0.0001, 0.001)"
    assert [line.split()[1] for line in out.splitlines()[1:3]] == ["1", "1"]
    assert err == "warning: tis_again has the settings and seeds of tis: counted once\n"


def test_a_line_says_what_it_rests_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = {"a": (0, 1, 2), "b": (1, 2, 3), "c": (1,), "d": (9,)}
    for place, (name, each) in enumerate(seeds.items()):
        for seed in each:
            made_run(tmp_path, f"{name}{seed}", counts_of(seed, 0.2 + 0.1 * place), algo={"name": name}, seed=seed)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("  3 seeds, problems")
    assert lines[2].count("seeds, problems") == 2
    assert lines[2].endswith("  2 seeds, problems"), "those that both have"
    assert lines[3].count("  problems") == 2
    assert lines[4].endswith("no seed in common")
    shutil.rmtree(tmp_path / "a0" / "store")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("a0: the verdicts of its evaluation are gone") == 3


def test_each_group_is_compared_at_its_own_level_of_the_other_setting() -> None:
    """As after a sweep over algorithm and p̃, with --against topr."""
    pairs = [(algo, p) for p in ("p̃=0.1", "p̃=0.5") for algo in ("tis", "topr")] + [("sft", "p̃=not set")]
    groups = {", ".join(pair): pair for pair in pairs}
    assert references(groups, "topr") == {
        "tis, p̃=0.1": "topr, p̃=0.1", "topr, p̃=0.1": "topr, p̃=0.1",
        "tis, p̃=0.5": "topr, p̃=0.5", "topr, p̃=0.5": "topr, p̃=0.5", "sft, p̃=not set": None,
    }  # fmt: skip
    assert {*references(groups, "p̃=0.1").values()} == {"tis, p̃=0.1", "topr, p̃=0.1", None}
    assert {*references(groups, "tis, p̃=0.5").values()} == {"tis, p̃=0.5"}
    assert {*references(groups, None).values()} == {"tis, p̃=0.1"}
    with pytest.raises(ConfigError, match=r"--against ppo: no such group; allowed: tis, p̃=0\.1; .*; topr; "):
        references(groups, "ppo")


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("topr", "naive"):
        made_run(tmp_path / "runs", name, counts_of(0, 0.5), algo={"name": name})
    folder = tmp_path / "runs"
    assert main([str(folder), "--against", "p~=1"]) == 2
    assert capsys.readouterr().err == "error: --against p̃=1: no such group; allowed: naive; topr\n"
    assert main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'}: no such folder\n"
    path = folder / "topr" / "summary.json"  # as an own grader that gives no answers leaves it
    assert main([str(folder / "topr"), "--figure", "maj"]) == 0
    path.write_text(json.dumps({part: {"pass@1": 0.5} for part in ("base", "final")}))
    assert main([str(folder / "topr"), "--figure", "maj"]) == 1
    assert "error: no finished run there has maj (1 run)\n" in capsys.readouterr().err
    (folder / "topr" / "DONE").unlink()
    assert main([str(folder / "topr")]) == 1
    error = "warning: 1 unfinished run left out\nerror: no finished run there has pass@1 (1 run)\n"
    assert capsys.readouterr().err == error


# ---- made-up runs, against plain arithmetic

PROBLEMS, N = 30, 8
Counts = Sequence[tuple[int, int]]  # of each problem, how many of the N completions are correct, and invalid


def made_run(folder: Path, name: str, counts: Counts, first_gold: int = 0, **settings: Any) -> None:
    """A finished run whose last evaluation has these verdicts; the one before has others. Of the incorrect completions
    all but one agree on an answer."""
    place = folder / name
    store, evaluations = Store(place / "store"), []
    golds = [str(first_gold + i) for i in range(len(counts))]
    for step, each in enumerate(([(1, 0)] * len(counts), counts)):
        said = [
            pair
            for correct, invalid in each
            for pair in [("correct", 0)] * correct + [("invalid", -1)] * invalid
            + [("incorrect", answer) for answer in ([2] + [1] * N)[: N - correct - invalid]]
        ]  # fmt: skip
        made = store.table("verdicts", {"golds": golds, "of": name, "step": step}, 1)
        words, classes = zip(*said, strict=True)
        columns = pa.table({"verdict": words, "class": pa.array(classes, pa.int32())})
        made.fill(lambda _, columns=columns: columns)
        codes = np.array([VERDICTS.index(word) for word in words]).reshape(-1, N)
        figures = summarise(codes, np.reshape(classes, (-1, N)), resamples=200)
        evaluations.append({"iteration": step, **figures, "verdicts": str(made.folder)})
    config: dict[str, Any] = {"data": {"eval_n": N}, "sampler": {"seed": settings.get("seed", 0)}, **settings}
    write_run(place, config, [], evaluations, {})


def counts_of(seed: int, level: float) -> Counts:
    """Problems differ, and so do seeds."""
    difficulty = np.random.default_rng(0).uniform(-0.25, 0.25, PROBLEMS)
    rng = np.random.default_rng([1, seed, int(100 * level)])
    shares = np.clip(level + 0.04 * seed + difficulty + 0.05 * rng.normal(size=PROBLEMS), 0.0, 0.95)
    return [(int(correct), int(rng.integers(0, N - correct + 1) // 2)) for correct in rng.binomial(N, shares)]


def vote(correct: int, invalid: int) -> float:
    """Whether the most frequent answer is right: the correct one against that of all wrong ones but one."""
    wrong = N - correct - invalid
    most = max(wrong - 1, min(wrong, 1))
    tied = 1 + (most == correct) * (2 if wrong == 2 else 1)
    return 0.0 if correct == 0 or correct < most else 1 / tied


FIGURES = {"pass@1": lambda correct, invalid: correct / N, "invalid": lambda correct, invalid: invalid / N, "maj": vote}


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, list[list[float]]]:
    """Of each line: the mean with its ends and, where there is one, the difference with its ends, in percent."""
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 0
    number = r"([-+]?\d+\.\d)"
    found = {}
    table, _, said = capsys.readouterr().out.partition("[ ]: 95 % each; ")
    assert (" the highest mean of " in said) == (table.count("\n") > 2 and "invalid, %" not in table)
    for line in table.splitlines():
        values = re.findall(rf"{number} \[{number}, {number}\]", line)
        if values:
            found[line.split("  ")[0]] = [[float(value) for value in each] for each in values]
    return found


@pytest.mark.parametrize("figure", FIGURES)
def test_means_and_differences_are_those_of_plain_arithmetic(figure, tmp_path, capsys):
    """The folders' names are in another order than the seeds, and in another one for each algorithm."""
    levels, counts = {"topr": 0.6, "is": 0.4}, {}
    for algo, order in (("topr", (2, 0, 1)), ("is", (1, 2, 0))):
        for place, seed in enumerate(order):
            counts[algo, seed] = counts_of(seed, levels[algo])
            made_run(tmp_path, f"{place}_{algo}", counts[algo, seed], algo={"name": algo}, seed=seed)
    found = shown(capsys, tmp_path, "--figure", figure, "--against", "topr")
    table = {algo: [[100 * FIGURES[figure](*each) for each in counts[algo, seed]] for seed in (0, 1, 2)]
             for algo in levels}  # fmt: skip
    for algo, rows in table.items():
        assert found[algo][0] == pytest.approx(by_hand.crossed_interval_of_shares(rows), abs=0.12), algo
    less = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(table["topr"], table["is"], strict=True)]
    assert found["is"][1] == pytest.approx(by_hand.crossed_interval(less), abs=0.12)
    assert len(found["topr"]) == 1
    frame = compare_runs(tmp_path, against="topr", figure=figure)
    name = frame.columns[1]
    for algo in levels:
        columns = [name] if algo == "topr" else [name, "difference"]
        ours = [[frame.loc[algo, f"{column}{end}"] for end in ("", "_low", "_high")] for column in columns]
        assert found[algo] == [[round(100 * number, 1) for number in each] for each in ours]
    assert frame["against"].dropna().to_dict() == {"is": "topr"}
    assert frame["not_compared"].isna().all()
    said = ("topr has the highest mean of 2", "")[figure == "invalid"]
    assert "\n".join(frame.attrs["remarks"]).startswith(said)
