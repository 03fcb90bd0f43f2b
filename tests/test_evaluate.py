"""`python -m topr_exp.evaluate`: any model folder, one that a run wrote with that run's settings."""

import re
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import (
    at_work_in,
    column,
    config_of,
    each_row,
    lines_of,
    names_in,
    read_json,
    refused,
    small_config,
    update_json,
)
from tests.run_folders import write_json
from topr_exp.config.yamls import CONF
from topr_exp.evaluate import compose_settings, main
from topr_exp.pipeline import run
from topr_exp.schema import plain
from topr_exp.types import ConfigError

SMALL = ["data.test_problems=6", "data.eval_n=2", "cluster.threads=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run's folder."""
    config = small_config(tmp_path_factory.mktemp("runs"), "sampler.temperature=0.9")
    run(config)
    return config.folder


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def evaluate(output, *words):
    """Evaluate into a folder; returns its only eval.json."""
    assert main([*words, f"output_dir={output}", "cluster.threads=1"]) == 0
    (path,) = output.glob("*/*/eval.json")
    return read_json(path)


def change_settings(folder, group, values):
    """Change what a run's folder says of its settings."""
    stored = read_json(folder / "config.json")
    stored["resolved"][group] |= values
    write_json(folder / "config.json", stored)


NAMES = ("pass@1", "maj@4", "correct", "incorrect", "invalid", "problems", "pass@k")  # of figures


def test_a_runs_model_gets_the_runs_questions_once_and_the_command_line_wins(finished, tmp_path, capsys):
    final = read_json(finished / "summary.json")["final"]

    for place, is_stored in (("model", False), (".", True)):
        results = evaluate(finished.parents[1], f"model={finished / place}")

        figures = results["figures"]
        printed = capsys.readouterr()
        assert results["sampler"]["temperature"] == 0.9
        assert {name: figures[name] for name in NAMES} == {name: final[name] for name in NAMES}
        assert "32/32 completions" in printed.err
        assert ("from the store" in printed.err) == is_stored
        assert "95 % interval over problems" in printed.out
        rows = re.findall(r"^(\w+@\d) ", printed.out, re.MULTILINE)
        assert rows == ["pass@1", "pass@2", "pass@4", "maj@2", "maj@4"], "maj@1 is pass@1"

    assert evaluate(tmp_path, f"model={finished}", "data.eval_n=2")["figures"]["samples"] == 2


def test_other_weights_of_the_same_name_have_a_folder_of_their_own(finished, copied, tmp_path):
    """A model that was trained on is another one, wherever it lies and whatever it is called."""
    moved = shutil.copytree(finished, tmp_path / "moved")
    path = copied / "model/model.safetensors"
    weights = {name: 1.5 * weight for name, weight in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    (copied / "model/checksums.json").unlink()

    for folder in (finished, copied, moved):
        assert main([f"model={folder}", f"output_dir={tmp_path / 'outputs'}", *SMALL]) == 0

    results = [read_json(path) for path in tmp_path.glob("outputs/*/*/eval.json")]
    assert len(results) == 2
    assert len(set(column(results, "weights"))) == 2


@pytest.mark.extended
def test_a_runs_model_is_evaluated_on_other_data(finished, tmp_path):
    results = evaluate(tmp_path, f"model={finished}", "data=math", *SMALL[:2])

    (folder,) = tmp_path.glob("evaluations/*")
    assert names_in(folder) == {"eval.json", "environment.json", "completions.jsonl"}
    assert set(column(lines_of(folder / "completions.jsonl"), "set")) == {"test"}
    assert results["data"]["name"] == "math"
    assert results["sampler"]["temperature"] == 0.9


@pytest.mark.extended
def test_a_folder_that_no_run_wrote_is_evaluated_under_its_name(finished, tmp_path):
    folder = shutil.copytree(finished / "model", tmp_path / "it's mine/x")

    model = evaluate(tmp_path / "out", f"model={folder}", "data.shots=0", "sampler=hf", *SMALL[:2])["model"]

    assert model["name"] == "x"
    assert model["path"] == str(folder)
    assert model["dtype"] == "float32"


def test_a_run_whose_model_has_a_name_of_its_own_is_evaluated(finished, copied, tmp_path):
    """model.name=mine beside a YAML's settings, as the documents tell; no YAML has that name."""
    change_settings(copied, "model", {"name": "mine"})

    results = evaluate(tmp_path / "out", f"model={copied}")

    model = results["model"]
    final = read_json(finished / "summary.json")["final"]
    assert model["name"] == "mine"
    assert model["dtype"] == "float32"
    assert results["figures"]["pass@1"] == final["pass@1"]


UNREADABLE = """
{ | run/config.json holds no JSON object
{"resolved": {"model": []}} | no settings of a run
"""


@each_row("text fault", UNREADABLE)
def test_a_run_whose_settings_cant_be_read_is_not_evaluated_by_others(text, fault, copied, tmp_path, capsys):
    (copied / "config.json").write_text(text)
    assert main([f"model={copied / 'model'}", f"output_dir={tmp_path}"]) == 2
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize("shots", [0, 1, 2])
def test_a_run_of_an_earlier_release_with_examples_of_a_file_keeps_its_prompt_or_is_refused(shots, copied, tmp_path):
    """It has its own prompt, or is refused; data.shots=FILE takes both examples, not the first as it did."""
    path = tmp_path / "shots.jsonl"
    path.write_text('{"question": "1 + 1?", "solution": "2"}\n' * 2)
    change_settings(copied, "data", {"fewshot_file": str(path), "shots": shots})
    args = Namespace(overrides=[f"model={copied}"], config_dir=None, multirun=False)

    if shots == 1:
        with refused(r"shots\.jsonl: the run took 1 of its 2 examples, and data\.shots=FILE takes all", ConfigError):
            compose_settings(args)
        args.overrides.append("data.shots=1")
        assert compose_settings(args).data.shots == 1, "the command line wins"
    else:
        assert compose_settings(args).data.shots == (str(path) if shots else 0)


# ---- nothing that a folder brings is run: each function packs something into it


@pytest.fixture
def marker(tmp_path):
    """The file that code of the folder makes when it is run."""
    return tmp_path / "was_run"


def code_with(marker, end=""):
    return f"from pathlib import Path\nPath({str(marker)!r}).touch()\n{end}"


def pack_tokenizer(folder, marker):
    own_class = "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n"
    (folder / "model/code.py").write_text(code_with(marker, own_class))
    (folder / "model/checksums.json").unlink()  # as whoever changes a model on purpose would
    auto_map = {"AutoTokenizer": [None, "code.Own"]}
    update_json(folder / "model/tokenizer_config.json", tokenizer_class="Own", auto_map=auto_map)
    change_settings(folder, "model", {"trust_remote_code": True})


def pack_interpreter(folder, marker):
    program = folder / "brought"
    program.write_text(f"#!{sys.executable}\n{code_with(marker)}")
    program.chmod(0o755)
    change_settings(folder, "sampler", plain(config_of("sampler=vllm").sampler) | {"python": str(program)})


def pack_yaml(folder, marker):
    (folder / "brought.yaml").write_text("defaults: [gsm8k, _self_]\n_target_: brought.Source\n")
    change_settings(folder, "data", {"name": f"{len(CONF.parts) * '../'}{str(folder)[1:]}/brought"})


def pack_setting(group, **values):
    return lambda folder, marker: change_settings(folder, group, values)


PACKING = {
    "tokenizer": pack_tokenizer,
    "interpreter": pack_interpreter,
    "grader": pack_setting("data", grader={"_target_": "brought.grade"}),
    "sampler": pack_setting("sampler", _target_="brought.Own", name="own"),
    "source": pack_setting("data", _target_="brought.Source"),
    "yaml": pack_yaml,
    "key": pack_setting("data", seed={"a:1,b": 1}),
}
# What is packed | the status | what is said | what permits it, - for nothing
PACKED = """
tokenizer | 1 | contains custom code | model.trust_remote_code=true
interpreter | 2 | no vLLM in that environment | -
grader | 2 | data.grader._target_=brought.grade of the run that wrote | data.grader={_target_: brought.grade}
sampler | 2 | sampler._target_=brought.Own of the run | -
source | 2 | data._target_=brought.Source of the run that wrote | -
yaml | 2 | brought: expected one of gsm8k, math | -
key | 2 | data.seed={'a:1,b': 1}: expected a whole number | -
"""


@each_row("name status message permission", PACKED)
def test_nothing_that_a_folder_brings_is_run(name, status, message, permission, copied, marker, tmp_path, capsys):
    """The same code is run where the command line names it."""
    (copied / "brought.py").write_text(code_with(marker, "def grade(*_):\n    return 'correct'\n"))
    PACKING[name](copied, marker)
    words = [f"model={copied}", f"output_dir={tmp_path / 'out'}", *SMALL]

    with at_work_in(copied):
        assert main(words) == int(status)

        error = capsys.readouterr().err
        assert message in error
        assert error.count("error: ") == 1
        assert "Traceback" not in error
        assert not marker.exists()
        if permission != "-":
            assert main([*words, permission]) == 0
            assert marker.exists()
