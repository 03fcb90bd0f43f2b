"""Completions that change after a run read them: it saves nothing more, at none of the places at which it saves."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import lines_of, read_json, refused, small_config
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run

CHANGED = r"rollouts/.*\.arrow changed while it was read; nothing made of it is kept"
CURVE, NO_CURVE = "evaluation.every=2", "evaluation.every=null"


def is_completions(path):
    return path.name == "completions.jsonl"


def is_evaluations(path):
    return path.name == "eval.jsonl"


def is_state_of_training(path):
    return path.name == "state.json" and read_json(path)["stage"] == "training"


def is_verdicts_of_run(path):
    """The verdicts on what a policy in training drew, which lie in the run's folder."""
    return path.suffix == ".arrow" and path.parents[1].name == "verdicts" and (path.parents[3] / "state.json").exists()


def count_evaluations(folder):
    return len(lines_of(folder / "eval.jsonl")) if (folder / "eval.jsonl").exists() else 0


def count_checkpoints(folder):
    return len([*folder.glob("checkpoints/1/step-*")])


def count_kept_weights(folder):
    return len([*folder.glob("iteration-1/update-*")])


def count_models(folder):
    return len([*folder.glob("model")])


class Moment(NamedTuple):
    """When completions change: after a file was put in its place so many times; then so much was saved and stays."""

    is_file: Callable[[Path], bool]
    times: int
    setting: str
    count_saved: Callable[[Path], int]
    saved: int


MOMENTS = {
    "the beginning of a curve": Moment(is_completions, 1, CURVE, count_evaluations, 0),
    "an evaluation": Moment(is_evaluations, 1, CURVE, count_evaluations, 1),
    "a point of a curve": Moment(is_verdicts_of_run, 1, CURVE, count_evaluations, 2),
    "a checkpoint": Moment(is_state_of_training, 1, NO_CURVE, count_checkpoints, 0),
    "weights of an update": Moment(is_state_of_training, 1, "checkpoint.weights_every=1", count_kept_weights, 0),
    "a model": Moment(is_completions, 2, NO_CURVE, count_models, 0),
}


@pytest.fixture
def change_at(tmp_path, monkeypatch):
    """Have all completions of the shared store change at a moment."""

    def change(moment):
        replace = os.replace
        count = 0

        def replace_and_change(source, target):
            nonlocal count
            replace(source, target)
            if moment.is_file(Path(target)):
                count += 1
                if count == moment.times:
                    for path in tmp_path.glob("store/rollouts/*/*.arrow"):
                        os.utime(path, ns=(0, 0))

        monkeypatch.setattr(os, "replace", replace_and_change)

    return change


@pytest.mark.parametrize("name", MOMENTS)
def test_a_run_saves_nothing_of_completions_that_changed(name, tmp_path, change_at):
    moment = MOMENTS[name]
    settings = ["checkpoint.every_seconds=0", "data.train_problems=8", "data.test_problems=4"]
    config = small_config(tmp_path, moment.setting, *settings)
    change_at(moment)

    with refused(CHANGED):
        run(config)

    assert moment.count_saved(config.folder) == moment.saved
    assert not (config.folder / "DONE").exists()


def test_an_evaluation_saves_nothing_of_completions_that_changed(tmp_path, change_at, capsys):
    words = ["model=tiny", f"output_dir={tmp_path}", "data.test_problems=4", "data.eval_n=2", "cluster.threads=1"]
    change_at(MOMENTS["the beginning of a curve"])

    assert evaluate(words) == 1

    assert "changed while it was read; nothing made of it is kept" in capsys.readouterr().err
    assert not list(tmp_path.rglob("eval.json"))
