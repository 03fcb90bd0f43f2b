"""What an earlier version left is found and continued: tests/recorded holds a small sweep and its store.

Made at commit d154410 by the commands below, the second run stopped by SIGTERM as its training began. Host and
platform are replaced, the finished run's model is left out. What has to be made anew for these tests to pass is a
change that users' folders do not survive. (Only with other weights of the shipped model the store must be made anew.)
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, config_of
from topr_exp.config.settings import Config
from topr_exp.models.loading import SHIPPED
from topr_exp.pipeline import run
from topr_exp.runs.attempt import CLAIM
from topr_exp.sweeps.status import DONE, STOPPED, read_statuses
from topr_exp.sweeps.sweep import Sweep

COMMAND = ["experiment=smoke", "name=recorded", "output_dir=outputs", "data.train_problems=8", "data.test_problems=4",
           "cluster.threads=1"]  # fmt: skip
LENGTHS = {"/length", "/length_correct", "/length_incorrect", "/length_invalid"}  # of completions, by verdict
FINISHED, INTERRUPTED = "algo=topr", "algo=tis"
STORE = Path("outputs/store")


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recorded sweep, where its commands were given: in the working folder."""
    shutil.copytree(ROOT / "tests/recorded/runs", tmp_path / "outputs/recorded")
    shutil.copytree(ROOT / "tests/recorded/store", tmp_path / STORE)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SHIPPED / "tiny", settings(FINISHED).folder / "model")  # without checksums, as of that time
    return tmp_path / "outputs/recorded"


def settings(algo: str) -> Config:
    config: Config = config_of(*COMMAND, algo)
    return config


def read(config: Config, name: str) -> Any:
    return json.loads((config.folder / name).read_text())


def lines(config: Config, name: str) -> list[Any]:
    return [json.loads(line) for line in (config.folder / name).read_text().splitlines()]


def stored_shards() -> dict[Path, tuple[int, bytes]]:
    """Every shard of the store that runs share: when it was written, and its bytes."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in STORE.rglob("shard-*")}


def test_the_finished_run_is_answered_from_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    config = settings(FINISHED)
    assert (config.folder / "DONE").exists(), "its folder has another name now"
    assert run(config) == read(config, "summary.json")
    assert f"finished before, nothing to do: {config.folder}" in capsys.readouterr().out


def test_the_interrupted_run_goes_on_and_makes_nothing_anew_that_the_store_has() -> None:
    config = settings(INTERRUPTED)
    before, shards = read(config, "state.json"), stored_shards()
    (base,) = lines(config, "eval.jsonl")
    (config.folder / CLAIM).write_text("far:1")  # of an attempt on another machine, killed later

    summary = run(config)

    # All but the verdicts, which a later version of the grader gives anew.
    left = {path: shard for path, shard in stored_shards().items() if "verdicts" not in path.parts or path in shards}
    assert left == shards
    for name in ("tokens_sampled", "tokens_scored"):
        assert summary["tokens"][name] == before["counts"][name], name
    assert read(config, "state.json")["attempt"]["number"] == before["attempt"]["number"] + 1
    again = lines(config, "eval.jsonl")[0]
    kept = {name: again[name] for name in base}
    assert {**kept, "verdicts": ""} == {**base, "verdicts": ""}
    # What a run of that version wrote, this one writes too, and nothing under another name; what is new is listed.
    finished = settings(FINISHED)
    added = {f"{part}{name}" for part in ("/base", "/final") for name in (*LENGTHS, "/cut_off")}
    added |= {"/cut_off", "/trained_on"}
    assert keys(summary) - {"/note"} - added == keys(read(finished, "summary.json"))
    new_keys = {
        "environment.json": {"/threads"},
        "metrics.jsonl": {"/ess", "/spent_share_neg"},
        "eval.jsonl": LENGTHS | {"/cut_off"},
    }
    for name in ("config.json", "environment.json", "inputs.json", "state.json"):
        found = {key for key in keys(read(config, name)) if not key.startswith("/looks")}
        assert found - new_keys.get(name, set()) == keys(read(finished, name)), name
    for name in ("metrics.jsonl", "eval.jsonl", "completions.jsonl"):
        found = set().union(*map(keys, lines(config, name)))
        assert found - new_keys.get(name, set()) == set().union(*map(keys, lines(finished, name))), name
    files = {path.name for path in config.folder.iterdir()}
    assert files - {"prompt.txt"} == {path.name for path in finished.folder.iterdir()}


def keys(value: Any, prefix: str = "") -> set[str]:
    """The names in a record, by path."""
    if not isinstance(value, dict):
        return {prefix}
    return {name for key, item in value.items() for name in keys(item, f"{prefix}/{key}")}


def test_the_sweep_is_read_and_its_runs_are_known(recorded: Path) -> None:
    sweep = Sweep.read(recorded)
    statuses, _ = read_statuses(sweep, sweep.runs)
    assert [(each.state, each.base) for each in statuses] == [(DONE, 0.25), (STOPPED, 0.25)]
    assert [each.error for each in statuses] == ["", "stopped by a signal"]
    for each, algo in zip(sweep.runs, (FINISHED, INTERRUPTED), strict=True):
        each.cwd = os.getcwd()
        assert each.enter().folder == settings(algo).folder
