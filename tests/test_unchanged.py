"""Completions that change after a run read them: it saves nothing more, at none of the places at which it saves."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import config_of, lines_of, overrides, refused
from topr_exp.evaluate import main as evaluate
from topr_exp.pipeline import run

CHANGED = r"rollouts/.*\.arrow changed while it was read; nothing made of it is kept"
CURVE, NO_CURVE = "evaluation.every=2", "evaluation.every=null"


class Place(NamedTuple):
    """A place at which a run saves: right before it, a file is put in its place for the last time."""

    before: Callable[[Path], bool]
    times: int
    setting: str
    saved: Callable[[Path], Any]  # what the run's folder then has
    expected: Any


def named(name: str) -> Callable[[Path], bool]:
    return lambda path: path.name == name


def of_training(path: Path) -> bool:
    return path.name == "state.json" and json.loads(path.read_text())["stage"] == "training"


def own_verdicts(path: Path) -> bool:
    """The verdicts on what a policy in training drew, which lie in the run's folder."""
    return path.suffix == ".arrow" and path.parents[1].name == "verdicts" and (path.parents[3] / "state.json").exists()


def evaluations(folder: Path) -> list[tuple[int, int | None, bool]]:
    path = folder / "eval.jsonl"
    records = lines_of(path) if path.exists() else []
    return [(record["iteration"], record.get("step"), "subset" in record) for record in records]


def checkpoints(folder: Path) -> list[Path]:
    return [*folder.glob("checkpoints/1/step-*")]


PLACES = {
    "the beginning of a curve": Place(named("completions.jsonl"), 1, CURVE, evaluations, []),
    "an evaluation": Place(named("eval.jsonl"), 1, CURVE, evaluations, [(0, None, True)]),
    "a point of a curve": Place(own_verdicts, 1, CURVE, evaluations, [(0, None, True), (0, None, False)]),
    "a checkpoint": Place(of_training, 1, NO_CURVE, checkpoints, []),
    "a model": Place(named("completions.jsonl"), 2, NO_CURVE, lambda folder: (folder / "model").exists(), False),
}


def change_after(place: Place, store: Path, patch: pytest.MonkeyPatch) -> None:
    """Have all completions of a store change once a file was put into its place for the last time."""
    real, seen = os.replace, 0

    def replace(source: Any, target: Any) -> None:
        nonlocal seen
        real(source, target)
        seen += place.before(Path(target))
        if seen == place.times:
            seen += 1
            for path in store.glob("rollouts/*/*.arrow"):
                os.utime(path, ns=(0, 0))

    patch.setattr(os, "replace", replace)


@pytest.mark.parametrize("name", PLACES)
def test_a_run_saves_nothing_of_completions_that_changed(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    place = PLACES[name]
    config = config_of(*overrides(tmp_path, place.setting, "checkpoint.every_seconds=0"))
    with monkeypatch.context() as patch:
        change_after(place, config.store, patch)
        with refused(CHANGED):
            run(config)
    assert place.saved(config.folder) == place.expected
    assert not (config.folder / "DONE").exists()


def test_an_evaluation_saves_nothing_of_completions_that_changed(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    place = PLACES["the beginning of a curve"]
    words = ["model=tiny", f"output_dir={tmp_path}", "data.test_problems=4", "data.eval_n=2", "cluster.threads=1"]
    with monkeypatch.context() as patch:
        change_after(place, tmp_path / "store", patch)
        assert evaluate(words) == 1
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "changed while it was read; nothing made of it is kept" in error
    assert not list(tmp_path.rglob("eval.json"))
