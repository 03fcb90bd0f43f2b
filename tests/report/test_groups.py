"""Grouping by what differs."""

import csv
import functools
import json
import math
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import config_of
from tests.report.made_up import made_run
from tests.run_folders import make_run
from topr_exp import read_runs
from topr_exp.report.grouping import group_runs
from topr_exp.report.page import list_facts
from topr_exp.report.reader import Run, find_runs
from topr_exp.report.tables import as_csv, groups_frame, runs_frame
from topr_exp.schema import flatten, plain


def sizes(runs: list[Run]) -> dict[str, int]:
    return {label: len(members) for label, members in group_runs(runs).groups.items()}


def test_settings_that_follow_from_others_do_not_name_groups() -> None:
    """Seeds make repetitions, which stand in the order of the runs; memory and folders make no difference."""
    runs = [made_run(f"{name}{lr}{seed}", {}, {}, algo__name=name, algo__b_pos=b, lr=lr, seed=seed,
                     output_dir=str(seed), optim__micro_batch_size=seed)
            for seed in (2, 0, 1) for name, b in (("topr", 1.0), ("is", math.inf)) for lr in (1e-3, 1e-4)]  # fmt: skip
    comparison = group_runs(runs)
    assert comparison.keys == ["algo.name", "lr"]
    assert comparison.differing == ["algo.name", "algo.b_pos", "lr"]
    assert list(comparison.groups) == ["is, lr=0.0001", "is, lr=0.001", "topr, lr=0.0001", "topr, lr=0.001"]
    assert all([run.config["seed"] for run in members] == [2, 0, 1] for members in comparison.groups.values())
    assert sizes([made_run(f"r{i}", {}, {}, seed=i) for i in range(3)]) == {"topr": 3}
    unlike = [made_run("a", {}, {}), made_run("b", {}, {}), Run(Path("c"), "c")]
    assert sizes(unlike) == {"topr": 1, "c (settings unknown)": 1}
    assert sizes([Run(Path("c"), "c"), Run(Path("d"), "d")]) == {"c (settings unknown)": 1, "d (settings unknown)": 1}


def test_runs_are_repetitions_unless_they_differ_in_what_decides_their_result() -> None:
    """Every single setting of a run: seeds aside, and what is measured on the way, it makes another group just where
    it makes another run."""
    config = config_of("model=tiny")
    settings, decides = plain(config), dict(flatten(config.identity))
    told_apart, pooled = [], []
    for key, value in flatten(settings):
        changed_settings = json.loads(json.dumps(settings))
        *groups, last = key.split(".")
        functools.reduce(dict.__getitem__, groups, changed_settings)[last] = f"not {value}"
        runs = [Run(Path("a"), "a", config=settings), Run(Path("b"), "b", config=changed_settings)]
        is_another_group = len(group_runs(runs).groups) == 2
        (told_apart if is_another_group else pooled).append(key)
    assert {*pooled} & {*decides} - {"evaluation.every"} == {"seed", "sampler.seed", "data.seed"}
    assert {"algo.b_neg", "optim.lr", "sampler.temperature", "data.eval_n"} <= {*told_apart}
    assert {"cluster.jobs", "output_dir", "optim.micro_batch_size"} <= {*pooled}


def test_runs_of_different_settings_are_never_averaged(tmp_path: Path) -> None:
    """Runs of which no two are repetitions, each with another seed: as many groups, no two with one name."""
    lora = {"rank": 16, "alpha": 32}
    changes: list[dict[str, Any]] = [
        {}, {"model": {"lora": lora}}, {"model": {"lora": {**lora, "rank": 17}}}, {"model": {"lora": {"rank": None}}},
        {"data": {"options": {}}}, {"data": {"options": {"digits": 3}}}, {"data": {"options": {"digits": "3"}}},
        {"optim": {"lr": 0.12345678}}, {"optim": {"lr": 0.12345679}}, {"algo": {"_target_": "mine.Loss"}},
        {"effective_positive": 0.3}, {"new": 1}, {"data": {"template": "not set"}}, {"data": {"template": "a"}},
    ]  # fmt: skip
    for seed, change in enumerate(changes):
        _, path = make_run(tmp_path, f"seed={seed}", "data.template=null", rng=seed % 10)
        stored = json.loads((path / "config.json").read_text())
        for key, value in change.items():
            stored["resolved"][key] = {**stored["resolved"][key], **value} if isinstance(value, dict) else value
        (path / "config.json").write_text(json.dumps(stored))
    comparison = group_runs(find_runs([tmp_path]))
    rows = list(csv.DictReader(as_csv(groups_frame(comparison)).splitlines()))
    assert [row["runs"] for row in rows] == ["1"] * len(changes)
    assert len({row["group"] for row in rows}) == len(changes)
    for table in (groups_frame(comparison), runs_frame(comparison.runs), read_runs(tmp_path)):
        assert len(table.columns) == len({*table.columns}), "one column a name"


def test_the_same_run_twice_is_counted_once(tmp_path: Path) -> None:
    _, path = make_run(tmp_path / "a", "seed=0")
    make_run(tmp_path / "a", "seed=1", rng=1)
    shutil.copytree(path, tmp_path / "copy" / path.name)
    comparison = group_runs(find_runs([tmp_path]))
    (row,) = groups_frame(comparison).to_dict("records")
    assert (row["runs"], row["final_pass@1_interval_over"]) == (2, "2 seeds")
    assert len(list_facts(comparison)["counted once"].split(" and ")) == 2


def test_what_differs_with_the_groups_is_named() -> None:
    """An algorithm's own settings come with its name; any other may be why its runs end where they do."""
    runs = [made_run(name, {}, {}, algo__name=name, algo__b_pos=b, optim__lr=lr, seed=seed, model__name="tiny")
            for name, b, lr in (("topr", 1.0, 1e-4), ("tis", 0.0, 1e-3)) for seed in (0, 1)]  # fmt: skip
    for run in runs:
        run.environment = {"git_commit": "0123456789abcdef", "git_dirty": False}
        run.evaluations = [{"problems": 200, "samples": 8}]
    runs[0].environment["git_dirty"], runs[1].evaluations = True, [{"problems": 50, "samples": 8}]
    assert list_facts(group_runs(runs)) == {
        "also differs": "optim.lr (0.0001, 0.001)",
        "tested on": "200 problems, 8 completions each; 50 problems, 8 completions each",
        "commit": "0123456789, 0123456789 with uncommitted changes",
    }
