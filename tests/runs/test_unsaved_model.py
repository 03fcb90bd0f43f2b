"""checkpoint.save_model=false: what a finished run without weights says of itself, and how much room models take."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides, refused
from tests.run_folders import make_sweep_of_two
from topr_exp import evaluate
from topr_exp.pipeline import run
from topr_exp.runs.finished import bytes_of_models
from topr_exp.runs.folder import RunFolder
from topr_exp.runtime.terminal import readable_size
from topr_exp.store import __main__ as store
from topr_exp.sweeps import sweep
from topr_exp.sweeps.registry import read_statuses
from topr_exp.sweeps.status_table import status_table
from topr_exp.types import ConfigError

UNSAVED = "checkpoint.save_model=false"
LINE = f"its model was not saved ({UNSAVED})"


@pytest.fixture(scope="module")
def unsaved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The settings of a finished run of two iterations that kept no model."""
    config = config_of(*overrides(tmp_path_factory.mktemp("unsaved"), UNSAVED, "iterations=2"))
    run(config)
    return config


def test_no_weights_stay_and_the_figures_are_those_of_a_run_that_keeps_them(unsaved, tmp_path):
    kept = config_of(*overrides(tmp_path, "iterations=2"))
    run(kept)
    names = {path.name for path in unsaved.folder.rglob("*.safetensors")}
    assert not names
    assert not list(unsaved.folder.rglob("model"))
    ours, theirs = (json.loads((each.folder / "summary.json").read_text()) for each in (unsaved, kept))
    assert (ours["model_saved"], theirs.get("model_saved")) == (False, None)
    for part in ("base", "final"):
        assert ours[part]["pass@k"] == theirs[part]["pass@k"]


def test_the_same_command_does_nothing_and_one_that_wants_a_model_says_the_way(unsaved, capsys):
    folder = str(unsaved.folder)
    outputs = unsaved.folder.parents[1]
    run(unsaved)
    shown = capsys.readouterr()
    assert "finished before, nothing to do" in shown.out
    assert f"no model: {UNSAVED}" in shown.out
    assert "topr_exp.evaluate" not in shown.out
    assert shown.err == ""
    run(config_of(*overrides(outputs, "iterations=2")))
    assert capsys.readouterr().err == f"warning: {folder}: {LINE}; overwrite=true trains it again\n"


def test_what_needs_the_model_of_such_a_run_is_one_line(unsaved, tmp_path, capsys):
    folder = unsaved.folder
    assert evaluate.main([f"model={folder}", f"output_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"error: model={folder}: {LINE}\n"
    with refused(rf"model={folder}: its model was not saved", ConfigError):
        config_of(f"model={folder}")


def test_verify_finds_nothing_damaged(unsaved, capsys):
    assert store.main(["verify", str(unsaved.folder)]) == 0
    shown = capsys.readouterr().out
    assert f"no model {unsaved.folder}: {LINE}\n" in shown
    assert "0 folders of weights" in shown


def test_weights_that_a_kill_at_the_end_left_are_removed_by_the_same_command(unsaved):
    (unsaved.folder / "model").mkdir()
    (unsaved.folder / "model" / "model.safetensors").touch()
    run(unsaved)
    assert not (unsaved.folder / "model").exists()


def test_settings_that_need_the_weights_are_refused() -> None:
    with refused(r"checkpoint.keep_iterations must be null or \[\] where save_model is", ConfigError):
        config_of(UNSAVED, "checkpoint.keep_iterations=[1]")


def test_a_run_that_is_not_finished_keeps_its_weights(tmp_path: Path) -> None:
    with RunFolder(config_of(*overrides(tmp_path, UNSAVED))) as folder:
        (folder.path / "model").mkdir()
        folder.remove_unwanted_models()
        assert (folder.path / "model").is_dir()


def weigh(folder: Path, count: int) -> None:
    """Put a model of so many bytes into a run's folder."""
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "model" / "model.safetensors").write_bytes(bytes(count))


def test_status_and_the_list_of_a_store_say_how_much_the_models_of_a_sweep_take(tmp_path, capsys):
    folder = make_sweep_of_two(tmp_path / "three")
    statuses, _ = read_statuses(sweep.read_runs(folder))
    assert "models of" not in status_table(statuses)
    for each, count in zip(statuses, (1_500_000, 700_000), strict=True):
        weigh(each.run.folder, count)
        (each.run.folder / "state.json").write_text("{}")
    weigh(statuses[0].run.folder / "iteration-1", 100_000)
    assert bytes_of_models(statuses[0].run.folder) == 1_600_000
    line = f"models of 2 runs: 2.3 MB; {UNSAVED} keeps none"
    assert status_table(statuses).splitlines()[-2] == line
    (tmp_path / "store").mkdir()
    assert store.main(["--root", str(tmp_path / "store"), "list"]) == 0
    assert f"models of 2 runs, 2.3 MB in {folder}; {UNSAVED} keeps none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0.0 MB"), (2_700_000, "2.7 MB"), (32_100_000_000, "32.1 GB"), (1e9, "1.0 GB")]
)
def test_a_size_has_a_unit_that_fits(count: int, text: str) -> None:
    assert readable_size(int(count)) == text
