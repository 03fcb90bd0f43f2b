"""Attempts at a run: what it printed is kept, nothing is thrown away, damaged files are made again or told."""

import os
import shutil
import socket
from pathlib import Path

import pytest

import topr_exp
from tests.conftest import (
    append_text,
    each_row,
    flip_bit,
    overrides,
    read_json,
    refused,
    small_config,
    values_of,
    write_file,
)
from tests.sweep_tools import command
from topr_exp.__main__ import start
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run
from topr_exp.report.reader import find_runs
from topr_exp.runs import overwrite, run_lock
from topr_exp.store.__main__ import main as store
from topr_exp.sweeps.launch import move_run_folders
from topr_exp.sweeps.sweep import Run
from topr_exp.types import ConfigError


def test_a_run_keeps_what_it_printed_and_says_what_is_next(tmp_path):
    failed = command("topr_exp", *overrides(tmp_path, "optim.lr=1e30"))
    finished = command("topr_exp", *overrides(tmp_path, "cluster.processes=2"))

    log = (small_config(tmp_path, "optim.lr=1e30").folder / "log.txt").read_text()
    assert failed.returncode == 1
    assert log.startswith("==== ")
    assert "trained on" in log
    assert failed.stderr.splitlines()[-1] in log.splitlines()
    folder = small_config(tmp_path).folder
    log = (folder / "log.txt").read_text()
    assert finished.returncode == 0, finished.stderr
    for text in (log, finished.stdout):
        assert text.count("next: python -m topr_exp.report") == 1
    assert f"python -m topr_exp.evaluate model={folder} data.eval_n=64" in finished.stdout
    repeated = command("topr_exp", *overrides(tmp_path))
    assert "finished before" in repeated.stdout
    assert (folder / "log.txt").read_text() == log


# ---- overwrite=true


def test_overwrite_starts_a_run_anew_and_keeps_the_old_one_beside_it(smoke, copied_smoke, tmp_path, capsys):
    _, summary = smoke

    second_summary = topr_exp.run(topr_exp.compose(overrides(tmp_path, "overwrite=true")))

    folder = copied_smoke.folder
    replaced = folder.parent / f"replaced/{folder.name}-1"
    assert f"overwrite=true: what was in {folder} is now in {replaced}; " in capsys.readouterr().out
    for made_summary in (second_summary, read_json(replaced / "summary.json")):
        assert made_summary["final"]["pass@1"] == summary["final"]["pass@1"]
    assert (replaced / "DONE").exists()
    assert not (replaced / run_lock.CLAIM).exists()
    assert read_json(folder / "config.json")["resolved"]["overwrite"] is False
    assert values_of(find_runs([tmp_path]), "path") == [folder]


def test_a_folder_at_work_is_not_moved(tmp_path):
    config = small_config(tmp_path, "overwrite=true")
    sweep_run = Run(config.folder, 3, [], {"overwrite": True}, "", [], 0.0)
    assert overwrite.move_overwritten_folder(config).overwrite is False  # no folder: nothing to move
    write_file(config.folder / "mine")

    with run_lock.lock_run_folder(config.folder):
        with refused(f"is being run by process {socket.gethostname()}:{os.getpid()}"):
            overwrite.move_overwritten_folder(config)
        with refused("overwrite=true: run 3 is running; cancel it first"):
            move_run_folders([sweep_run])
    move_run_folders([sweep_run])

    assert sweep_run.settings == {"overwrite": False}, "or a job that is queued again would move its own folder"
    assert (config.folder.parent / f"replaced/{config.folder.name}-1/mine").exists()


def test_overwrite_is_refused_where_it_could_move_a_folder_at_work(tmp_path, variables):
    variables["WORLD_SIZE"] = "2"
    with refused("overwrite=true: under torchrun each process would move", ConfigError):
        start(parse_arguments(overrides(tmp_path, "overwrite=true")))

    variables["PATH"] = ""
    with refused("overwrite=true: Slurm does not answer"):
        move_run_folders([Run(tmp_path, 1, [], {}, "", [], 0.0, job="topr-x_0")])
    assert tmp_path.exists()


# ---- damaged files: what can be made again is, with a warning; what can't is an error in one line


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The outputs of a finished run of two iterations."""
    outputs = tmp_path_factory.mktemp("finished")
    run(small_config(outputs, "iterations=2"))
    return outputs


@pytest.fixture
def config(finished, tmp_path):
    """The settings of a copy of it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return small_config(tmp_path, "iterations=2")


DAMAGE = {"flipped": flip_bit, "removed": Path.unlink, "removed folder": shutil.rmtree}
DAMAGED_MODELS = """
flipped | model.safetensors | model is damaged: model.safetensors has another checksum
removed | generation_config.json | model is damaged: generation_config.json: No
removed | model.safetensors | model: the folder has no weights
removed folder | . | model: the folder has no config.json
"""


@each_row("kind file message", DAMAGED_MODELS)
def test_a_damaged_model_of_a_finished_run_is_told(kind, file, message, config, capsys):
    model = config.folder / "model"
    assert store(["verify", str(config.folder)]) == 0
    assert f"sound    {model}: all checksums right" in capsys.readouterr().out

    DAMAGE[kind](model / file)

    with refused(message):
        run(config)
    assert store(["verify", str(config.folder)]) == 1
    assert f"DAMAGED  {model}: " in capsys.readouterr().out
    if model.exists():
        assert evaluate([f"model={model}", f"output_dir={config.output_dir}", "cluster.threads=1"]) != 0


def test_no_iteration_starts_from_a_damaged_model_and_it_is_trained_again_once_removed(config):
    weights = (config.folder / "model/model.safetensors").read_bytes()
    first_model = config.folder / "iteration-1/model"
    checksums = (first_model / "checksums.json").read_text()
    shutil.rmtree(config.folder / "model")
    (config.folder / "DONE").unlink()
    flip_bit(first_model / "model.safetensors")

    with refused(r"iteration-1/model is damaged: model.safetensors has another checksum; "):
        run(config)
    (first_model / "checksums.json").unlink()
    with refused(r"iteration-1/model is damaged: checksums.json is gone; remove it"):
        run(config)
    (first_model / "checksums.json").write_text(checksums)
    shutil.rmtree(first_model)
    run(config)

    assert (config.folder / "model/model.safetensors").read_bytes() == weights


SMALL_FILES = ["config.json", "environment.json", "inputs.json", "state.json", "summary.json"]


def drop_line(path, index):
    lines = path.read_text().splitlines(keepends=True)
    del lines[index]
    path.write_text("".join(lines))


@pytest.mark.parametrize("content", ["{", "null"])
def test_damaged_small_files_are_made_again_and_lost_lines_are_noted(content, config, capsys):
    folder = config.folder
    summary = read_json(folder / "summary.json")
    for name in SMALL_FILES:
        (folder / name).write_text(content)
    drop_line(folder / "metrics.jsonl", 1)
    drop_line(folder / "eval.jsonl", 1)
    append_text(folder / "eval.jsonl", f"{content}\n")

    summary_made_again = run(config)

    err = capsys.readouterr().err
    for fault in ("summary.json is missing or damaged and is made again", "eval.jsonl: 1 damaged"):
        assert fault in err
    for name in SMALL_FILES[:4]:
        assert f"{name} is damaged" in err
    losses = "metrics.jsonl lacks update 1/2; eval.jsonl lacks 1 evaluation"
    assert summary_made_again["note"] == losses
    for evaluation in ("base", "final"):
        assert summary_made_again[evaluation]["pass@k"] == summary[evaluation]["pass@k"]
    assert summary_made_again["n_train"] == summary["n_train"]
    assert store(["verify", str(folder)]) == 0
    run(config)
    out, err = capsys.readouterr()
    assert "finished before, nothing to do" in out
    assert losses.partition(";")[0] in err
    (folder / "summary.json").unlink()
    (folder / "iteration-2/training_set.json").write_text('{"n_train": 3}')
    with refused(r"training_set.json is missing or damaged; remove model/ to train it again"):
        run(config)


def test_a_finished_run_is_shown_and_nothing_is_written(config):
    paths = [config.folder, *config.folder.rglob("*")]
    times = [path.stat().st_mtime_ns for path in paths]

    run(config)

    assert [path.stat().st_mtime_ns for path in paths] == times
