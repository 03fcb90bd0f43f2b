"""checkpoint.weights=none: what a finished run without weights says of itself, and how much room models take."""

import json

import pytest

from tests.conftest import read_json, small_config, values_of, write_file
from topr_exp import evaluate
from topr_exp.pipeline import run
from topr_exp.runs.finished import bytes_of_models
from topr_exp.runs.folder import RunFolder
from topr_exp.store import __main__ as store
from topr_exp.sweeps.registry import read_statuses
from topr_exp.sweeps.status_table import status_table
from topr_exp.sweeps.sweep import read_runs

UNSAVED = "checkpoint.weights=none"
LINE = f"its model was not saved ({UNSAVED})"


@pytest.fixture(scope="module")
def unsaved(tmp_path_factory):
    """The settings of a finished run that kept no model."""
    config = small_config(tmp_path_factory.mktemp("unsaved"), UNSAVED)
    run(config)
    return config


def test_no_weights_stay_and_the_figures_are_those_of_a_run_that_keeps_them(unsaved, smoke):
    _, summary_of_smoke = smoke
    summary = read_json(unsaved.folder / "summary.json")

    assert not list(unsaved.folder.rglob("*.safetensors"))
    assert not list(unsaved.folder.rglob("model"))
    assert summary["model_saved"] is False
    assert "model_saved" not in summary_of_smoke
    for evaluation in ("base", "final"):
        assert summary[evaluation]["pass@k"] == json.loads(json.dumps(summary_of_smoke[evaluation]["pass@k"]))


def test_the_same_command_does_nothing_and_one_that_wants_a_model_says_the_way(unsaved, capsys):
    run(unsaved)
    out, err = capsys.readouterr()
    assert "finished before, nothing to do" in out
    assert f"no model: {UNSAVED}" in out
    assert "topr_exp.evaluate" not in out
    assert err == ""

    run(small_config(unsaved.folder.parents[1]))
    assert capsys.readouterr().err == f"warning: {unsaved.folder}: {LINE}; overwrite=true trains it again\n"


def test_what_needs_the_model_of_such_a_run_is_one_line(unsaved, tmp_path, capsys):
    assert evaluate.main([f"model={unsaved.folder}", f"output_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"error: model={unsaved.folder}: {LINE}\n"

    assert store.main(["verify", str(unsaved.folder)]) == 0
    assert f"no model {unsaved.folder}: {LINE}\n" in capsys.readouterr().out


def test_weights_that_a_kill_at_the_end_left_are_removed_by_the_same_command(unsaved):
    write_file(unsaved.folder / "model/model.safetensors")

    run(unsaved)

    assert not (unsaved.folder / "model").exists()


def test_weights_of_updates_that_a_finished_run_did_not_keep_are_told(copied_smoke, tmp_path, capsys):
    run(small_config(tmp_path, "checkpoint.weights_every=2"))

    line = "no weights of 1 update that checkpoint.weights_every asks for; overwrite=true trains it again"
    assert capsys.readouterr().err == f"warning: {copied_smoke.folder}: {line}\n"


def test_a_run_that_is_not_finished_keeps_its_weights(tmp_path):
    with RunFolder(small_config(tmp_path, UNSAVED)) as folder:
        (folder.path / "model").mkdir()
        folder.remove_unwanted_models()
        assert (folder.path / "model").is_dir()


def test_status_says_how_much_the_models_of_a_sweep_take(sweep_of_two):
    runs = read_runs(sweep_of_two)
    statuses, _ = read_statuses(runs)
    assert "models of" not in status_table(statuses)

    first, second = values_of(runs, "folder")
    for folder, size in (("model", 1_500_000), ("iteration-1/model", 60_000), ("iteration-1/update-2", 40_000)):
        write_file(first / folder / "model.safetensors", size * "x")
    write_file(second / "model/model.safetensors", 700_000 * "x")

    assert bytes_of_models(first) == 1_600_000
    assert status_table(statuses).splitlines()[-2] == f"models of 2 runs: 2.3 MB; {UNSAVED} keeps none"
