"""The card of a model: read by the hub's own reader, in the way of nothing that reads the model."""

import json
import re

import pytest
from huggingface_hub import ModelCard

from tests.conftest import config_of, read_json, small_config, write_file
from tests.run_folders import write_json
from topr_exp.data.problems import load_problems
from topr_exp.models.model_folder import weights_fingerprint
from topr_exp.pipeline import run
from topr_exp.runs.model_card import CARD_FILE, write_card
from topr_exp.runs.provenance import user_overrides
from topr_exp.runs.tasks import ProblemCounts


def test_a_run_leaves_a_card_that_the_hub_reads(smoke):
    config, _ = smoke
    summary = read_json(config.folder / "summary.json")
    text = (config.folder / "model" / CARD_FILE).read_text()

    card = ModelCard(text).data
    assert card.library_name == "transformers"
    assert card.pipeline_tag == "text-generation"
    assert card.tags == ["topr_exp", "reinforcement-learning", "topr"]
    assert card.base_model is card.license is card.datasets is None  # the base is a folder here
    for line in (
        "license: fill in",
        "topr (a_pos=1.0, b_pos=1.0, a_neg=0.0, b_neg=1.0, ratio=sequence",
        "trained on  16 problems generated in the form of gsm8k",
        "tested on   8 problems generated in the form of gsm8k",
        "M parameters, cpu with 1 thread, float32\n",
        "\ntopr_exp.run(...)  # from Python",  # not the words of the tests' command
    ):
        assert line in text
    for row, evaluation in (("base", summary["base"]), ("trained", summary["final"])):
        interval = evaluation["pass@k"]["1"]
        numbers = [evaluation["pass@1"], interval["low"], interval["high"], evaluation["maj@4"]]
        cells = r"{:.1f} \[{:.1f}, {:.1f}\] +{:.1f} ".format(*(100 * number for number in numbers))
        assert re.search(rf"^{row} +{cells}", text, re.MULTILINE)


def test_the_model_is_the_same_without_its_card_which_a_stopped_run_still_gets(copied_smoke):
    folder = copied_smoke.folder / "model"
    fingerprint = weights_fingerprint(folder)
    (folder / CARD_FILE).write_text("filled in")
    assert weights_fingerprint(folder) == fingerprint

    run(copied_smoke)  # finished before: nothing is written again
    assert (folder / CARD_FILE).read_text() == "filled in"

    for name in ("DONE", "summary.json", f"model/{CARD_FILE}"):
        (copied_smoke.folder / name).unlink()
    run(copied_smoke)
    assert (folder / CARD_FILE).read_text().startswith("---\n# license")


SUMMARY = """{
    "base": FIGURES, "final": FIGURES, "problems": {"test": 1}, "n_train": 3, "positive_share": 0.5, "baseline": 0.0
}"""
FIGURES = """{
    "pass@1": 0.5, "correct": 0.5, "incorrect": 0.5, "invalid": 0.5, "problems": 1,
    "pass@k": {"1": {"value": 0.5, "low": null, "high": null}}
}"""
ENVIRONMENT = {"versions": {}, "git_commit": None, "command": ["a/topr_exp/__main__.py", "-cd", "a b", "seed=1"]}


@pytest.mark.parametrize(
    "problems_of_data, datasets",
    [(2, ["EleutherAI/hendrycks_math"]), (0, None)],  # 0: completions made elsewhere brought all problems
)
def test_a_model_of_the_hub_and_its_data_are_named(problems_of_data, datasets, tmp_path):
    config = config_of("model=llama3_8b", "data=math", f"output_dir={tmp_path}")
    summary = json.loads(SUMMARY.replace("FIGURES", FIGURES))
    trained_on = ProblemCounts(2, problems_of_data, "x")

    write_card(tmp_path, config, summary, ENVIRONMENT, trained_on, "the header")

    text = (tmp_path / CARD_FILE).read_text()
    card = ModelCard(text).data
    assert card.base_model == "meta-llama/Meta-Llama-3-8B-Instruct"
    assert card.datasets == datasets
    assert "trained                  50.0         50.0" in text
    assert "\nthe header\n" in text
    assert "python -m topr_exp -cd 'a b'" in text
    assert "commit" not in text  # of an installed package


LOG = """
{"problem_id": "KNOWN", "completion": "The answer is 3."}
{"question": "How much is 1 + 1?", "gold": "2", "completion": "The answer is 3."}
{"question": "How much is 2 + 1?", "gold": "3", "completion": "The answer is 3."}
"""


def test_header_summary_and_card_name_the_problems_that_imported_completions_answer(tmp_path, capsys):
    known_problem = load_problems(small_config(tmp_path).data).train[0]
    log = write_file(tmp_path / "made.jsonl", LOG.replace("KNOWN", known_problem.id))
    config = small_config(tmp_path, f"data.completions={log}", "compose.mix=0.5")

    summary = run(config)

    trained_on = f"16 problems generated in the form of gsm8k, 2 problems that {log} brought"
    assert summary["trained_on"] == trained_on
    assert summary["problems"] == {"train": 18, "test": 8}
    for text in (capsys.readouterr().out, (config.folder / "model" / CARD_FILE).read_text()):
        assert f"\ntrained on  {trained_on}\n" in text


def test_a_run_names_its_part_of_a_sweep(tmp_path):
    launch = {"number": 1, "settings": {}, "cwd": "/", "arguments": [], "launched": 0.0, "overrides": ["seed=1"]}
    write_json(tmp_path / "launch.json", launch)

    assert user_overrides(tmp_path) == ["seed=1"]
