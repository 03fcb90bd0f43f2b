"""`python -m topr_exp.evaluate`: any model folder, one that a run wrote with that run's settings."""

import gc
import shutil
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.conftest import column, config_of, lines_of, names_in, read_json, small_config
from tests.observed import reading_models
from tests.run_folders import write_json
from topr_exp.config.yamls import CONF
from topr_exp.evaluate import main
from topr_exp.models.model_folder import SHIPPED, weights_fingerprint
from topr_exp.pipeline import run
from topr_exp.schema import plain

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


def test_a_runs_model_gets_the_runs_questions_once_and_the_command_line_wins(finished, tmp_path, capsys):
    final = read_json(finished / "summary.json")["final"]
    names = ("pass@1", "maj@4", "correct", "incorrect", "invalid", "problems", "pass@k")

    for place, is_stored in (("model", False), (".", True)):
        results = evaluate(finished.parents[1], f"model={finished / place}")

        output = capsys.readouterr()
        assert results["sampler"]["temperature"] == 0.9
        assert [results["figures"][name] for name in names] == [final[name] for name in names]
        assert "32/32 completions" in output.err
        assert ("from the store" in output.err) == is_stored
        assert "95 % interval over problems" in output.out
        rows = [line.split()[0] for line in output.out.splitlines() if "@" in line[:5]]
        assert rows == ["pass@1", "pass@2", "pass@4", "maj@2", "maj@4"], "maj@1 is pass@1"

    assert evaluate(tmp_path, f"model={finished}", "data.eval_n=2")["figures"]["samples"] == 2


def test_other_weights_of_the_same_name_have_a_folder_of_their_own(finished, copied, tmp_path):
    """A model that was trained on is another one, wherever it lies and whatever it is called."""
    moved = shutil.copytree(finished, tmp_path / "moved")
    path = copied / "model" / "model.safetensors"
    weights = {name: 1.5 * weight for name, weight in load_file(path).items()}
    save_file(weights, path, {"format": "pt"})
    (copied / "model" / "checksums.json").unlink()

    for folder in (finished, copied, moved):
        assert main([f"model={folder}", f"output_dir={tmp_path / 'outputs'}", *SMALL]) == 0

    results = list(map(read_json, (tmp_path / "outputs").glob("*/*/eval.json")))
    assert len(results) == len(set(column(results, "weights"))) == 2


@pytest.mark.extended
def test_shipped_names_other_data_and_foreign_folders(finished, tmp_path):
    shipped = evaluate(tmp_path / "a", "model=tiny", *SMALL[:2])
    (folder,) = (tmp_path / "a").glob("evaluations/*")
    foreign = shutil.copytree(finished / "model", tmp_path / "it's mine" / "x")
    other_data = evaluate(tmp_path / "b", f"model={finished}", "data=math", *SMALL[:2])
    model = evaluate(tmp_path / "c", f"model={foreign}", "data.shots=0", "sampler=hf", *SMALL[:2])["model"]

    assert shipped["model"]["path"] == "tiny"
    assert names_in(folder) == {"eval.json", "environment.json", "completions.jsonl"}
    assert set(column(lines_of(folder / "completions.jsonl"), "set")) == {"test"}
    assert (other_data["data"]["name"], other_data["sampler"]["temperature"]) == ("math", 0.9)
    assert (model["name"], model["path"], model["dtype"]) == ("x", str(foreign), "float32")


def test_a_run_whose_model_has_a_name_of_its_own(finished, copied, tmp_path):
    """model.name=mine beside a YAML's settings, as the documents tell; no YAML has that name."""
    change_settings(copied, "model", {"name": "mine"})

    results = evaluate(tmp_path / "out", f"model={copied}")

    assert (results["model"]["name"], results["model"]["dtype"]) == ("mine", "float32")
    assert results["figures"]["pass@1"] == read_json(finished / "summary.json")["final"]["pass@1"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "run/config.json holds no JSON object"), ('{"resolved": {"model": []}}', "no settings of a run")],
)
def test_a_run_whose_settings_cant_be_read_is_not_evaluated_by_others(text, fault, copied, tmp_path, capsys):
    (copied / "config.json").write_text(text)
    assert main([f"model={copied / 'model'}", f"output_dir={tmp_path}"]) == 2
    assert fault in capsys.readouterr().err


# ---- nothing that a folder brings is run: each function packs something into it


@pytest.fixture
def marker(tmp_path):
    """The file that code of the folder makes when it is run."""
    return tmp_path / "was_run"


def write_code(path, marker, end=""):
    path.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n{end}")


def pack_tokenizer(folder, marker):
    code = "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n"
    write_code(folder / "model" / "code.py", marker, code)
    (folder / "model" / "checksums.json").unlink()  # as whoever changes a model on purpose would
    path = folder / "model" / "tokenizer_config.json"
    own_class = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
    write_json(path, read_json(path) | own_class)
    change_settings(folder, "model", {"trust_remote_code": True})


def pack_interpreter(folder, marker):
    program = folder / "brought"
    write_code(program, marker)
    program.write_text(f"#!{sys.executable}\n{program.read_text()}")
    program.chmod(0o755)
    change_settings(folder, "sampler", plain(config_of("sampler=vllm").sampler) | {"python": str(program)})


def pack_grader(folder, marker):
    write_code(folder / "brought.py", marker, "def grade(*_):\n    return 'correct'\n")
    change_settings(folder, "data", {"grader": {"_target_": "brought.grade"}})


def pack_sampler(folder, marker):
    write_code(folder / "brought.py", marker)
    change_settings(folder, "sampler", {"_target_": "brought.Own", "name": "own"})


def pack_source(folder, marker):
    write_code(folder / "brought.py", marker)
    change_settings(folder, "data", {"_target_": "brought.Source"})


def pack_yaml(folder, marker):
    write_code(folder / "brought.py", marker)
    (folder / "brought.yaml").write_text("defaults: [gsm8k, _self_]\n_target_: brought.Source\n")
    change_settings(folder, "data", {"name": f"{len(CONF.parts) * '../'}{str(folder)[1:]}/brought"})


def pack_key(folder, marker):
    change_settings(folder, "data", {"seed": {"a:1,b": 1}})


TRUSTED = {pack_tokenizer: "model.trust_remote_code=true", pack_grader: "data.grader={_target_: brought.grade}"}


@pytest.mark.parametrize(
    ("pack", "status", "message"),
    [
        (pack_tokenizer, 1, "contains custom code"),
        (pack_interpreter, 2, "no vLLM in that environment"),
        (pack_grader, 2, "data.grader._target_=brought.grade of the run that wrote"),
        (pack_sampler, 2, "sampler._target_=brought.Own of the run that wrote"),
        (pack_source, 2, "data._target_=brought.Source of the run that wrote"),
        (pack_yaml, 2, "brought: expected one of gsm8k, math"),
        (pack_key, 2, "data.seed={'a:1,b': 1}: expected a whole number"),
    ],
)
def test_nothing_that_a_folder_brings_is_run(pack, status, message, copied, marker, tmp_path, monkeypatch, capsys):
    """The same code is run where the command line names it."""
    pack(copied, marker)
    monkeypatch.syspath_prepend(copied)
    words = [f"model={copied}", f"output_dir={tmp_path / 'out'}", *SMALL]

    assert main(words) == status

    error = capsys.readouterr().err
    assert message in error
    assert error.count("error: ") == 1
    assert "Traceback" not in error
    assert not marker.exists()
    if pack in TRUSTED:
        assert main([*words, TRUSTED[pack]]) == 0
        assert marker.exists()


def test_a_solver_is_gone_before_the_verifier_is_loaded(tmp_path):
    """A GPU may have no room for both."""
    models: dict[str, Callable[[], Any]] = {}

    def read(folder, read_model):
        assert all(model() is None for model in models.values())
        model = read_model()
        model.circle = [model]  # as the first model of a process is held by frames of its loading
        models[folder.name] = weakref.ref(model)
        return model

    verifier = ["task=verifier", "task.solver=tiny", "task.test_solutions=2"]
    gc.disable()  # so that no circle goes by chance
    try:
        with reading_models(read):
            results = evaluate(tmp_path, "model=tiny_verifier", *verifier, *SMALL[:2])
    finally:
        gc.enable()

    assert list(models) == ["tiny", "tiny_verifier"]
    assert results["weights"] == weights_fingerprint(SHIPPED / "tiny_verifier")
