"""Grouping by what differs."""

from __future__ import annotations

import csv
import functools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of
from tests.run_folders import make_run, make_sweep
from topr_exp.config.schema import plain
from topr_exp.report.groups import axes, different_bases, flatten, group_runs
from topr_exp.report.page import facts
from topr_exp.report.runs import Run, find_runs
from topr_exp.report.write import write_report


def run_with(name: str, **settings: Any) -> Run:
    config: dict[str, Any] = {
        "algo": {"name": "topr", "b_pos": 1.0},
        "seed": 0,
        "output_dir": "x",
        "cluster": {"jobs": 1},
    }
    for key, value in settings.items():
        config[key] = {**config[key], **value} if isinstance(config.get(key), dict) else value
    return Run(Path(name), name, config=config)


def test_runs_that_differ_in_their_seeds_are_repetitions() -> None:
    found = group_runs([run_with(f"r{i}", seed=i, output_dir=str(i)) for i in range(3)])
    assert found.keys == found.differing == []
    assert found.groups == {"topr": [0, 1, 2]}


def test_settings_that_follow_from_others_do_not_name_groups() -> None:
    runs = [run_with(f"{name}{lr}{seed}", algo={"name": name, "b_pos": b}, lr=lr, seed=seed)
            for name, b in (("topr", 1.0), ("is", math.inf)) for lr in (1e-4, 1e-3) for seed in (0, 1)]  # fmt: skip
    found = group_runs(runs)
    assert found.keys == ["algo.name", "lr"]
    assert found.differing == ["algo.name", "algo.b_pos", "lr"]
    assert {label: len(members) for label, members in found.groups.items()} == {
        "topr, lr=0.0001": 2, "topr, lr=0.001": 2, "is, lr=0.0001": 2, "is, lr=0.001": 2
    }  # fmt: skip


def test_other_weights_are_no_repetition_and_other_memory_is() -> None:
    paths = [run_with(name, model={"path": name}, seed=seed) for seed, name in enumerate(("one", "two"))]
    assert group_runs(paths).keys == ["model.path"]
    assert len(group_runs(paths).groups) == 2
    sizes = [run_with(f"r{n}", seed=n, optim={"micro_batch_size": n}) for n in (1, 2)]
    assert group_runs(sizes).keys == []


def test_runs_are_repetitions_unless_they_differ_in_what_decides_their_result() -> None:
    """Every single setting of a run: seeds aside, and what is measured on the way, it makes another group just where
    it makes another run."""
    config = config_of("model=tiny")
    settings, decides = plain(config), dict(flatten(config.identity))
    told_apart, pooled = [], []
    for key, value in flatten(settings):
        other = json.loads(json.dumps(settings))
        *groups, last = key.split(".")
        functools.reduce(dict.__getitem__, groups, other)[last] = f"not {value}"
        found = group_runs([Run(Path(name), name, config=each) for name, each in (("a", settings), ("b", other))])
        (told_apart if len(found.groups) == 2 else pooled).append(key)
    on_the_way = {"evaluation.every", "evaluation.problems"}
    assert {*pooled} & {*decides} - on_the_way == {"seed", "sampler.seed", "data.seed"}
    assert {"algo.b_neg", "optim.lr", "sampler.temperature", "evaluation.seed", "data.eval_n"} <= {*told_apart}
    assert {"cluster.jobs", "output_dir", "optim.micro_batch_size"} <= {*pooled}


def test_members_of_a_group_stand_in_the_order_of_the_runs() -> None:
    runs = [run_with(f"{name}{seed}", algo={"name": name}, seed=seed) for seed in (2, 0, 1) for name in ("topr", "is")]
    assert group_runs(runs).groups == {"is": [1, 3, 5], "topr": [0, 2, 4]}


@pytest.fixture(scope="module")
def of_different_settings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The report's tables of runs of which no two are repetitions, each with another seed, and how many they are."""
    folder = tmp_path_factory.mktemp("settings")
    lora = {"rank": 16, "alpha": 32}
    changes: list[dict[str, Any]] = [
        {}, {"model": {"lora": lora}}, {"model": {"lora": {**lora, "rank": 17}}}, {"model": {"lora": {"rank": None}}},
        {"data": {"options": {}}}, {"data": {"options": {"digits": 3}}}, {"data": {"options": {"digits": "3"}}},
        {"optim": {"lr": 0.12345678}}, {"optim": {"lr": 0.12345679}}, {"algo": {"_target_": "mine.Loss"}},
        {"effective_positive": 0.3}, {"new": 1}, {"data": {"template": "–"}}, {"data": {"template": "a"}},
    ]  # fmt: skip
    for seed, change in enumerate(changes):
        _, path = make_run(folder, f"seed={seed}", "data.template=null", rng=seed % 10)
        stored = json.loads((path / "config.json").read_text())
        for key, value in change.items():
            stored["resolved"][key] = {**stored["resolved"][key], **value} if isinstance(value, dict) else value
        (path / "config.json").write_text(json.dumps(stored))
    return write_report([folder]).parent / "tables", len(changes)


def test_runs_of_different_settings_are_never_averaged(of_different_settings: tuple[Path, int]) -> None:
    tables, count = of_different_settings
    rows = list(csv.DictReader((tables / "groups.csv").open(encoding="utf-8")))
    assert [row["runs"] for row in rows] == ["1"] * count
    assert len({row["group"] for row in rows}) == count, "no two have one name"


@pytest.mark.parametrize("name", ["runs.csv", "groups.csv"])
def test_a_table_has_one_column_a_name(of_different_settings: tuple[Path, int], name: str) -> None:
    heads = next(csv.reader((of_different_settings[0] / name).open(encoding="utf-8")))
    assert len(heads) == len({*heads})


def test_the_same_run_twice_is_counted_once(tmp_path: Path) -> None:
    _, path = make_run(tmp_path / "a", "seed=0")
    make_run(tmp_path / "a", "seed=1", rng=1)
    shutil.copytree(path, tmp_path / "copy" / path.name)
    tables = write_report([tmp_path]).parent / "tables"
    (row,) = csv.DictReader((tables / "groups.csv").open(encoding="utf-8"))
    assert (row["runs"], row["final_pass@1_interval_over"]) == ("2", "2 seeds")
    runs = find_runs([tmp_path])
    assert len(facts(runs, group_runs(runs))["counted once"].split(" and ")) == 2


def test_settings_that_differ_with_the_groups_are_named() -> None:
    """An algorithm's own come with its name; any other may be why its runs end where they do."""
    runs = [run_with(name, algo={"name": name, "b_pos": b}, optim={"lr": lr}, seed=seed)
            for name, b, lr in (("topr", 1.0, 1e-4), ("tis", 0.0, 1e-3)) for seed in (0, 1)]  # fmt: skip
    found = group_runs(runs)
    assert found.keys == ["algo.name"]
    assert facts(runs, found)["also differs"] == "optim.lr (0.0001, 0.001)"


def test_a_run_without_settings_stands_alone() -> None:
    found = group_runs([run_with("a"), run_with("b"), Run(Path("c"), "c")])
    assert list(found.groups) == ["topr", "c (settings unknown)"]


def test_runs_that_began_from_different_bases_are_told() -> None:
    def run(name: str, accuracy: float, **settings: Any) -> Run:
        made = run_with(name, model={"path": "tiny"}, **settings)
        made.summary = {"base": {"pass@1": accuracy}}
        return made

    same = [run("a", 0.2), run("b", 0.2, lr=3)]
    assert different_bases(same, group_runs(same)) == []
    other = [*same, run("c", 0.25)]
    (note,) = different_bases(other, group_runs(other))
    assert "20.0, 25.0 %" in note
    asked = [*same, run("d", 0.25, data={"n": 4})]
    assert different_bases(asked, group_runs(asked)) == []


def test_axes_are_numbers_that_differ(tmp_path: Path) -> None:
    runs = find_runs([make_sweep(tmp_path, 20)])
    found = axes(runs, group_runs(runs))
    assert list(found) == ["effective_positive", "algo.a_pos"]
    assert sorted(set(found["effective_positive"])) == [0.05, 0.2, 0.5, 0.8, 1.0]
