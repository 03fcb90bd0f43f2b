"""Attempts at a run: what it printed is kept, nothing is thrown away, damaged files are made again or told."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import topr_exp
from tests.conftest import ROOT, config_of, overrides, refused
from tests.sweep_tools import command
from topr_exp.__main__ import start
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.settings import Config
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run
from topr_exp.report.reader import find_runs
from topr_exp.runs import overwrite, run_lock
from topr_exp.store.__main__ import main as store
from topr_exp.sweeps.launch import move_run_folders
from topr_exp.sweeps.sweep import Run
from topr_exp.types import ConfigError, TOPRError


def test_a_run_keeps_what_it_printed_and_says_what_is_next_and_overwrite_starts_it_anew(tmp_path: Path) -> None:
    words = overrides(tmp_path, "optim.lr=1e30")
    folder = config_of(*words).folder
    failed = command("topr_exp", *words)
    assert failed.returncode == 1
    log = (folder / "log.txt").read_text()
    assert log.startswith("==== ")
    assert failed.stderr.splitlines()[-1] in log.splitlines()
    assert "trained on" in log
    done = command("topr_exp", *overrides(tmp_path, "cluster.processes=2"))
    assert done.returncode == 0, done.stderr
    folder = config_of(*overrides(tmp_path)).folder
    log = (folder / "log.txt").read_text()
    assert log.count("next: python -m topr_exp.report") == done.stdout.count("next: python -m topr_exp.report") == 1
    assert f"python -m topr_exp.evaluate model={folder} data.eval_n=64" in done.stdout
    again = command("topr_exp", *overrides(tmp_path))
    assert "finished before" in again.stdout
    assert (folder / "log.txt").read_text() == log
    anew = topr_exp.run(topr_exp.compose(overrides(tmp_path, "overwrite=true")))
    old = folder.parent / "replaced" / f"{folder.name}-1"
    assert (old / "DONE").exists()
    assert not (old / run_lock.CLAIM).exists()
    assert json.loads((old / "summary.json").read_text())["final"]["pass@1"] == pytest.approx(anew["final"]["pass@1"])
    assert json.loads((folder / "config.json").read_text())["resolved"]["overwrite"] is False
    assert sorted(run.path for run in find_runs([tmp_path])) == sorted([folder, config_of(*words).folder])


def test_a_folder_at_work_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="overwrite=true: under torchrun each process would move"):
        start(parse_arguments(overrides(tmp_path, "overwrite=true")))
    monkeypatch.delenv("WORLD_SIZE")
    config = config_of(*overrides(tmp_path, "overwrite=true"))
    assert overwrite.move_overwritten_folder(config).overwrite is False  # no folder: nothing to move
    config.folder.mkdir(parents=True)
    child = "import sys; from pathlib import Path; from topr_exp.runs.run_lock import lock_run_folder\n"
    child += "with lock_run_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n"
    run = Run(config.folder, 3, [], {"overwrite": True}, "", [], 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", child, str(config.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with refused("is being run by process"):
            overwrite.move_overwritten_folder(config)
        with refused("overwrite=true: run 3 is running; cancel it first"):
            move_run_folders([run])
        holder.communicate()
    (config.folder / "mine").touch()
    move_run_folders([run])
    assert run.settings == {"overwrite": False}, "or a job that is queued again would move its own folder"
    overwrite.move_aside(config.folder)  # there is none
    assert (config.folder.parent / "replaced" / f"{config.folder.name}-1" / "mine").exists()


def test_no_folder_is_moved_while_slurm_does_not_say_whether_the_run_waits(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with refused("overwrite=true: Slurm does not answer"):
        move_run_folders([Run(tmp_path, 1, [], {}, "", [], 0.0, job="topr-x_0")])
    assert tmp_path.exists()


# ---- damaged files: what can be made again is, with a warning; what can't is an error in one line


SMALL = ["config.json", "environment.json", "inputs.json", "state.json", "summary.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a finished run of two iterations."""
    outputs = tmp_path_factory.mktemp("finished")
    run(config_of(*overrides(outputs, "iterations=2")))
    return outputs


@pytest.fixture
def config(finished: Path, tmp_path: Path) -> Config:
    """A copy of it."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    found: Config = config_of(*overrides(tmp_path, "iterations=2"))
    return found


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda model: flip(model / "model.safetensors"), "model is damaged: model.safetensors has another checksum; "),
        (lambda model: cut(model / "model.safetensors"), "model is damaged: model.safetensors has another checksum; "),
        (lambda model: (model / "generation_config.json").unlink(), "model is damaged: generation_config.json: No"),
        (lambda model: (model / "model.safetensors").unlink(), "model: the folder has no weights"),
        (shutil.rmtree, "model: the folder has no config.json"),
    ],
)
def test_a_damaged_model_of_a_finished_run_is_told(config, damage, said, capsys):
    model = config.folder / "model"
    assert store(["verify", str(config.folder)]) == 0
    assert f"sound    {model}: all checksums right" in capsys.readouterr().out
    damage(model)
    with pytest.raises(TOPRError, match=said):
        run(config)
    assert store(["verify", str(config.folder)]) == 1
    assert f"DAMAGED  {model}: " in capsys.readouterr().out
    if model.exists():
        assert evaluate([f"model={model}", f"output_dir={config.output_dir}", "cluster.threads=1"]) != 0
        assert "Traceback" not in capsys.readouterr().err


def test_no_iteration_starts_from_a_damaged_model_and_it_is_trained_again_once_removed(config: Config) -> None:
    weights = (config.folder / "model" / "model.safetensors").read_bytes()
    before = config.folder / "iteration-1" / "model"
    shutil.rmtree(config.folder / "model")
    (config.folder / "DONE").unlink()
    (before / "checksums.json").rename(before.parent / "checksums.json")
    flip(before / "model.safetensors")
    with pytest.raises(TOPRError, match=r"iteration-1/model is damaged: checksums.json is gone; remove it"):
        run(config)
    (before.parent / "checksums.json").rename(before / "checksums.json")
    with pytest.raises(TOPRError, match=r"iteration-1/model is damaged: model.safetensors has another checksum; "):
        run(config)
    shutil.rmtree(before)
    run(config)
    assert (config.folder / "model" / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize("content", ["{", "null"])
def test_damaged_small_files_are_made_again(finished, config, content, capsys):
    before = json.loads((config.folder / "summary.json").read_text().replace(str(finished), config.output_dir))
    for name in SMALL:
        (config.folder / name).write_text(content)
    lines = (config.folder / "eval.jsonl").read_text().splitlines(keepends=True)
    (config.folder / "eval.jsonl").write_text("".join(line for line in lines if '"iteration": 1' not in line))
    for name in ("eval.jsonl", "completions.jsonl"):
        with (config.folder / name).open("a") as file:
            file.write(content + "\n")
    lines = (config.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (config.folder / "metrics.jsonl").write_text("".join([*lines[:1], *lines[2:]]))
    after = run(config)
    warned = capsys.readouterr().err
    assert "summary.json is missing or damaged and is made again" in warned
    assert "eval.jsonl: 1 damaged" in warned
    for name in SMALL[:4]:
        assert f"{name} is damaged" in warned
    lost = "metrics.jsonl lacks update 1/2", "eval.jsonl lacks 1 evaluation"
    assert after.pop("note") == "; ".join(lost)
    same = [name for name in after if name not in ("seconds", "tokens")]
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert store(["verify", str(config.folder)]) == 0
    assert run(config)["final"] == before["final"]
    told = capsys.readouterr()
    assert "finished before, nothing to do" in told.out
    assert all(text in told.err for text in lost)
    (config.folder / "summary.json").unlink()
    (config.folder / "iteration-2" / "training_set.json").write_text('{"n_train": 3}')
    with pytest.raises(TOPRError, match=r"training_set.json is missing or damaged; remove model/ to train it again"):
        run(config)


def test_a_finished_run_is_shown_and_nothing_is_written(config: Config) -> None:
    seen = {path: path.stat() for path in [config.folder, *config.folder.rglob("*")]}
    run(config)
    assert {path: path.stat().st_mtime_ns for path in seen} == {path: at.st_mtime_ns for path, at in seen.items()}
