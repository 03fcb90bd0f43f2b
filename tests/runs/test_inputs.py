"""A run goes on only with the files that it began with, and a changed grader grades again."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp.models import loading
from topr_exp.pipeline import run
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.plan import Job
from topr_exp.runs.preflight import compare_inputs, inputs_of
from topr_exp.runtime import files
from topr_exp.sweeps.launch import refuse_changed_inputs
from topr_exp.types import TOPRError


def test_a_changed_grader_grades_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module beside the command, which its workers find too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_grader", raising=False)
    grader = "def grade(completion, gold):\n    return {}\n"
    (tmp_path / "our_grader.py").write_text(grader.format('"correct"'))
    settings = [*overrides(tmp_path), "data.grader=our_grader:grade"]
    assert run(config_of(*settings))["base"]["correct"] == 1.0
    (tmp_path / "our_grader.py").write_text(grader.format('"correct" if "7" in completion else "incorrect"'))
    with pytest.raises(TOPRError, match=r"data.grader \(our_grader.py\) has changed since .*; set another name"):
        run(config_of(*settings))
    assert run(config_of(*settings, "name=again"))["base"]["correct"] < 1.0


def test_changed_problems_are_refused_and_a_copy_of_them_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "problems"
    folder.mkdir()
    for split, numbers in (("train", range(6)), ("test", range(10, 13))):
        lines = [json.dumps({"question": f"What is {i} plus 1?", "answer": f"#### {i + 1}"}) for i in numbers]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    settings = [*overrides(tmp_path), f"data.source={folder}", "compose.n_examples=16"]
    first = run(config_of(*settings))
    (folder / "test.jsonl").write_text((folder / "test.jsonl").read_text())
    assert run(config_of(*settings)) == first
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps({"question": "What is 1 plus 8?", "answer": "#### 9"}) + "\n")
    with pytest.raises(TOPRError, match=r"data.source \(train.jsonl\) has changed since"):
        run(config_of(*settings))


@pytest.fixture
def own_model(tmp_path: Path) -> Path:
    """A model folder that a test may change."""
    return Path(shutil.copytree(loading.SHIPPED / "tiny", tmp_path / "mine"))


def change(model: Path) -> None:
    """Another tokenizer file of the same length, so that only the content tells."""
    path = model / "generation_config.json"
    path.write_text(path.read_text().replace("{", "{ ", 1).replace("\n}", "}", 1))


def begin(config: Any) -> None:
    """Note its inputs, as a run does before anything else."""
    with RunFolder(config) as folder:
        compare_inputs(folder, inputs_of(config), note=True)


@pytest.mark.parametrize(("key", "finished"), [("model.path", True), ("model.reference", False)])
def test_a_run_whose_model_has_changed_is_refused(tmp_path: Path, own_model: Path, key: str, finished: bool) -> None:
    algo = "algo=agro" if key == "model.reference" else "algo=topr"
    config = config_of(*overrides(tmp_path), algo, f"{key}={own_model}")
    begin(config)
    if finished:
        (config.folder / "summary.json").write_text('{"final": {}}')
        (config.folder / "DONE").touch()
    begin(config)
    change(own_model)
    for answer in (
        run,
        lambda config: refuse_changed_inputs(Job([], config)),
    ):  # the second: dry_run and a sweep's launch
        with pytest.raises(TOPRError, match=rf"^{key} has changed since .*; set another name, or remove that$"):
            answer(config)


def test_a_model_that_looks_as_it_did_is_read_once(
    tmp_path: Path, own_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing a large model takes many seconds; a copy of the same files is the same model all the same."""
    config = config_of(*overrides(tmp_path), f"model.path={own_model}")
    begin(config)
    read: list[str] = []
    digest = files.file_digest
    monkeypatch.setattr(files, "file_digest", lambda path: read.append(path.name) or digest(path))
    compare_inputs(RunFolder(config), inputs_of(config))
    assert not read
    os.utime(own_model / "model.safetensors")
    compare_inputs(RunFolder(config), inputs_of(config))
    assert read == ["model.safetensors"]
