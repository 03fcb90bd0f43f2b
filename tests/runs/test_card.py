"""The card beside a trained model: read by the hub's own reader, in the way of nothing that reads the model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.conftest import config_of, overrides
from tests.run_folders import write_json
from topr_exp.data.problems import load_problems
from topr_exp.models.loading import weights_fingerprint
from topr_exp.pipeline import run
from topr_exp.runs.attempt import overrides as overrides_of
from topr_exp.runs.console import CARD_FILE, write_card
from topr_exp.runs.task_set import TrainedOn


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = config_of(*overrides(tmp_path_factory.mktemp("runs"), "baseline=-0.3"))
    run(config)
    return config


def test_a_run_leaves_a_card_that_the_hub_reads(finished: Any) -> None:
    text = (finished.folder / "model" / CARD_FILE).read_text()
    summary = json.loads((finished.folder / "summary.json").read_text())
    found = ModelCard(text).data
    assert (found.library_name, found.pipeline_tag) == ("transformers", "text-generation")
    assert found.tags == ["topr_exp", "reinforcement-learning", "topr"]
    assert found.base_model is found.license is found.datasets is None  # the base is a folder here
    assert summary["trained_on"] == "16 problems generated in the form of gsm8k"
    for line in (
        "license: fill in",
        "topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence",
        "baseline=-0.3",
        f"trained on  {summary['trained_on']}",
        "tested on   8 problems generated in the form of gsm8k",
    ):
        assert line in text
    for row, end in (("base", "base"), ("trained", "final")):
        figures = [f"{100 * summary[end][name]:.1f}" for name in ("pass@1", "maj@4")]
        assert re.search(rf"^{row} +{figures[0]} ± \S+ +{figures[1]} ", text, re.MULTILINE)


def test_the_model_is_the_same_without_its_card_which_a_stopped_run_still_gets(finished: Any) -> None:
    folder = finished.folder / "model"
    before = weights_fingerprint(folder)
    (folder / CARD_FILE).write_text("filled in")
    assert weights_fingerprint(folder) == before
    run(finished)  # finished before: nothing is written again
    assert (folder / CARD_FILE).read_text() == "filled in"
    for name in ("DONE", "summary.json", f"model/{CARD_FILE}"):
        (finished.folder / name).unlink()
    run(finished)
    assert (folder / CARD_FILE).read_text().startswith("---\n# license")


@pytest.mark.parametrize(
    ("of_data", "datasets"),
    [(2, ["EleutherAI/hendrycks_math"]), (0, None)],  # 0: completions made elsewhere brought all problems
)
def test_a_model_of_the_hub_and_its_data_are_named(tmp_path: Path, of_data: int, datasets: list[str] | None) -> None:
    config = config_of("model=llama3_8b", "data=math", f"output_dir={tmp_path}")
    shares = dict.fromkeys(("pass@1", "correct", "incorrect", "invalid"), 0.5)
    figures = {**shares, "pass@1_se": None, "problems": 1}
    summary = {"base": figures, "final": figures, "problems": {"test": 1}, "n_train": 3, "positive_share": 0.5}
    environment = {"versions": {}, "git_commit": None, "command": ["x", "--config-dir", "a b", "seed=1"]}
    write_card(tmp_path, config, {**summary, "baseline": 0.0}, environment, TrainedOn(2, of_data, "x"), "the header")
    text = (tmp_path / CARD_FILE).read_text()
    found = ModelCard(text).data
    assert found.base_model == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert found.datasets == datasets
    assert "trained           50.0         50.0" in text
    assert "\nthe header\n" in text
    assert "python -m topr_exp --config-dir 'a b'" in text


@pytest.mark.parametrize("mixed", [False, True])
def test_header_summary_and_card_name_the_problems_that_imported_completions_answer(
    tmp_path: Path, mixed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    known = load_problems(config_of(*overrides(tmp_path)).data).train[0]
    rows = [{"problem_id": known.id, "completion": f"The answer is {known.answer}."}]
    rows += [
        {"question": f"How much is {i} + 1?", "gold": str(i + 1), "completion": "The answer is 3."} for i in (1, 2)
    ]
    (tmp_path / "made.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ["compose.mix=0.5"] if mixed else []
    config = config_of(*overrides(tmp_path, f"data.completions={tmp_path / 'made.jsonl'}", *more))
    summary = run(config)
    count = 16 if mixed else 1
    named = f"{count} problems generated in the form of gsm8k, 2 problems that {tmp_path / 'made.jsonl'} brought"
    assert summary["trained_on"] == named
    assert summary["problems"] == {"train": count + 2, "test": 8}
    for text in (capsys.readouterr().out, (config.folder / "model" / CARD_FILE).read_text()):
        assert f"\ntrained on  {named}\n" in text


def test_a_run_names_its_part_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topr", "-m", "seed=0,1"])
    assert overrides_of(tmp_path / "a") == ["seed=0,1"]
    write_json(tmp_path / "launch.json", {"overrides": ["seed=1"]})
    assert overrides_of(tmp_path) == ["seed=1"]
