"""`python -m topr_exp.evaluate`: any model folder, one that a run wrote with that run's settings."""

import gc
import json
import shutil
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from tests.conftest import config_of, lines_of, overrides
from topr_exp import session
from topr_exp.config.yamls import CONF
from topr_exp.evaluate import main
from topr_exp.models.loading import load_model
from topr_exp.models.model_folder import SHIPPED, weights_fingerprint
from topr_exp.models.policy import load_policy
from topr_exp.pipeline import run
from topr_exp.runs.first_prompt import preview_prompt
from topr_exp.sampling import generation
from topr_exp.schema import plain, show
from topr_exp.types import TOPRError

SMALL = ["data.test_problems=6", "data.eval_n=4", "cluster.threads=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's folder."""
    config = config_of(*overrides(tmp_path_factory.mktemp("runs"), "sampler.temperature=0.9"))
    run(config)
    return config.folder


def found(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*/*/eval.json")
    return json.loads(path.read_text())


def test_a_runs_model_is_asked_what_the_run_asked_once_and_the_command_line_wins(finished, tmp_path, capsys):
    outputs, summary = finished.parents[1], json.loads((finished / "summary.json").read_text())
    said = []
    for place in ("model", "."):
        assert main([f"model={finished / place}", f"output_dir={outputs}", "cluster.threads=1"]) == 0
        told, shown = found(outputs), capsys.readouterr()
        said.append(shown.err)
        assert told["sampler"]["temperature"] == 0.9
        for name in ("pass@1", "maj@4", "correct", "incorrect", "invalid", "problems", "pass@k"):
            assert told["figures"][name] == summary["final"][name]
        assert Path(told["figures"]["verdicts"]).is_dir()
        assert "32/32 completions" in shown.err
        rows = [line.split()[0] for line in shown.out.splitlines() if "@" in line[:5]]
        assert rows == ["pass@1", "pass@2", "pass@4", "maj@2", "maj@4"], "maj@1 is pass@1"
        assert "95 % interval over problems" in shown.out
    assert ["from the store" in each for each in said] == [False, True]
    assert main([f"model={finished}", f"output_dir={tmp_path}", "data.eval_n=2", "cluster.threads=1"]) == 0
    assert found(tmp_path)["figures"]["samples"] == 2


def test_other_weights_of_the_same_name_have_a_folder_of_their_own(finished: Path, tmp_path: Path) -> None:
    """A model that was trained on is another one, wherever it lies and whatever it is called."""
    shutil.copytree(finished, tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model" / "model.safetensors")
    moved = {name: 1.5 * weight for name, weight in weights.items()}
    save_file(moved, tmp_path / "other" / "model" / "model.safetensors", {"format": "pt"})
    (tmp_path / "other" / "model" / "checksums.json").unlink()
    shutil.copytree(finished, tmp_path / "moved")
    for folder in (finished, tmp_path / "other", tmp_path / "moved"):
        assert (
            main([f"model={folder}", f"output_dir={tmp_path / 'outputs'}", "data.eval_n=2", "cluster.threads=1"]) == 0
        )
    found = [json.loads(path.read_text()) for path in (tmp_path / "outputs").glob("*/*/eval.json")]
    assert len(found) == len({each["weights"] for each in found}) == 2


@pytest.mark.extended
def test_shipped_names_other_data_and_foreign_folders(finished: Path, tmp_path: Path) -> None:
    assert main(["model=tiny", f"output_dir={tmp_path / 'a'}", *SMALL]) == 0
    assert found(tmp_path / "a")["model"]["path"] == "tiny"
    (folder,) = (tmp_path / "a").glob("evaluations/*")
    assert {path.name for path in folder.iterdir()} == {"eval.json", "environment.json", "completions.jsonl"}
    assert {entry["set"] for entry in lines_of(folder / "completions.jsonl")} == {"test"}
    assert main([f"model={finished}", "data=math", f"output_dir={tmp_path / 'b'}", *SMALL]) == 0
    told = found(tmp_path / "b")
    assert told["data"]["name"] == "math"
    assert told["sampler"]["temperature"] == 0.9
    shutil.copytree(finished / "model", tmp_path / "it's mine" / "x")
    own = ["data.source=embedded", "data.train_problems=2", "data.shots=0", "sampler.max_new_tokens=64"]
    own += ["sampler=hf"]
    folder = tmp_path / "it's mine" / "x"
    assert main([f"model={folder}", *own, f"output_dir={tmp_path / 'c'}", *SMALL]) == 0
    told = found(tmp_path / "c")
    assert told["model"] == {**told["model"], "name": "x", "path": str(folder), "dtype": "float32"}


def test_a_run_whose_model_has_a_name_of_its_own(finished: Path, tmp_path: Path) -> None:
    """model.name=mine beside a YAML's settings, as the documents tell; no YAML has that name."""
    shutil.copytree(finished, tmp_path / "run")
    stored = json.loads((finished / "config.json").read_text())
    stored["resolved"]["model"]["name"] = "mine"
    (tmp_path / "run" / "config.json").write_text(json.dumps(stored))
    assert main([f"model={tmp_path / 'run'}", f"output_dir={tmp_path / 'a'}", "cluster.threads=1"]) == 0
    told, summary = found(tmp_path / "a"), json.loads((finished / "summary.json").read_text())
    assert (told["model"]["name"], told["model"]["dtype"]) == ("mine", "float32")
    assert told["figures"]["pass@1"] == summary["final"]["pass@1"]


def test_a_run_whose_settings_can_t_be_read_is_not_asked_something_else(finished, tmp_path, capsys):
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    assert main([f"model={tmp_path / 'run' / 'model'}", f"output_dir={tmp_path}"]) == 2
    assert "run/config.json holds no JSON object" in capsys.readouterr().err


def marking(path: Path, marker: Path, end: str = "") -> Path:
    """A file of code that says when it is run."""
    path.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n{end}")
    return path


@pytest.mark.parametrize(
    ("group", "change", "status", "message"),
    [
        ("model", {"trust_remote_code": True}, 1, "contains custom code"),
        ("sampler", {"name": "vllm", "python": "brought"}, 2, "no vLLM in that environment"),
        (
            "data",
            {"grader": {"_target_": "brought.grade"}},
            2,
            "data.grader._target_=brought.grade of the run that wrote",
        ),
        (
            "sampler",
            {"_target_": "brought.Own", "name": "own"},
            2,
            "sampler._target_=brought.Own of the run that wrote",
        ),
        ("data", {"_target_": "brought.Source"}, 2, "data._target_=brought.Source of the run that wrote"),
        ("data", {"name": "brought"}, 2, "brought: expected one of gsm8k, math"),
        ("data", {"stop": ["${oc.env:HOME}"]}, 0, ""),
        ("data", {"seed": {"a:1,b": 1}}, 2, "data.seed={'a:1,b': 1}: expected a whole number"),
        ("model", [], 2, "no settings of a run"),
    ],
)
def test_nothing_that_a_folder_brings_is_run(finished, tmp_path, monkeypatch, capsys, group, change, status, message):
    """Its tokenizer's code, its interpreter, its grader, its source, a YAML out of the folders of YAMLs."""
    folder, marker = tmp_path / "unpacked", tmp_path / "was_run"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    marking(folder / "brought.py", marker, "def grade(*_):\n    return 'correct'\n")
    program = marking(folder / "brought", marker)
    program.write_text(f"#!{sys.executable}\n{program.read_text()}")
    program.chmod(0o755)
    (folder / "brought.yaml").write_text("defaults: [gsm8k, _self_]\n_target_: brought.Source\n")
    stored = json.loads((folder / "config.json").read_text())
    brought = {"python": str(program), "name": f"{len(CONF.parts) * '../'}{str(folder)[1:]}/brought"}
    if "python" in change:
        stored["resolved"][group], brought["name"] = plain(config_of("sampler=vllm").sampler), "vllm"
    elif group == "sampler":
        brought["name"] = change["name"]
    if change:
        stored["resolved"][group] |= {key: brought.get(key, value) for key, value in change.items()}
    else:
        stored["resolved"][group] = change
    (folder / "config.json").write_text(json.dumps(stored))
    if "trust_remote_code" in change:
        own = "from transformers import PreTrainedTokenizerFast\nclass Own(PreTrainedTokenizerFast): pass\n"
        marking(folder / "model" / "code.py", marker, own)
        (folder / "model" / "checksums.json").unlink()  # as whoever changes a model on purpose would
        of_tokenizer = folder / "model" / "tokenizer_config.json"
        added = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "code.Own"]}}
        of_tokenizer.write_text(json.dumps(json.loads(of_tokenizer.read_text()) | added))
    assert main([f"model={folder}", f"output_dir={tmp_path / 'out'}", *SMALL]) == status
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("error: ") == bool(status)
    assert "Traceback" not in shown.err
    assert not marker.exists()
    if "python" in change or "trust_remote_code" in change:
        assert f"settings of the run in {folder}, but not {group}." in shown.out
    if "grader" in change or "trust_remote_code" in change:  # by the same words on the command line
        words = [f"{group}.{key}={show(value)}".replace("'", "") for key, value in change.items()]
        assert main([f"model={folder}", f"output_dir={tmp_path / 'out'}", *SMALL, *words]) == 0
        assert marker.exists()


@pytest.mark.parametrize("trust", [False, True])
def test_trust_in_a_folder_s_code_reaches_all_that_loads_from_it_as_it_was_set(tmp_path, monkeypatch, trust):
    """Model, tokenizer, the tokenizer alone (for a prompt), and the sampler of runs and evaluations."""
    seen: list[tuple[str, bool]] = []

    def watch(kind: Any) -> None:
        real = kind.from_pretrained

        def load(*args: Any, trust_remote_code: bool, **more: Any) -> Any:
            seen.append((kind.__name__, trust_remote_code))
            return real(*args, trust_remote_code=trust_remote_code, **more)

        monkeypatch.setattr(kind, "from_pretrained", load)

    def refuse(config: Any, scratch: Path, given: bool, **_: Any) -> Any:
        seen.append(("sampler", given))
        raise TOPRError("no sampler")

    watch(transformers.AutoTokenizer)
    watch(transformers.AutoModelForCausalLM)
    words = [f"model.trust_remote_code={trust}"]
    config = config_of(*overrides(tmp_path), *words)
    load_policy(config.model, "cpu")
    preview_prompt(config)
    monkeypatch.setattr(generation, "open_sampler", refuse)
    monkeypatch.setattr(session, "open_sampler", refuse)
    with pytest.raises(TOPRError, match="no sampler"):
        run(config)
    assert main(["model=tiny", f"output_dir={tmp_path}", *SMALL, *words]) == 1
    alone = ["AutoTokenizer"] if trust else []  # untrusted: by a class that reads tokenizer.json and no code
    kinds = ["AutoTokenizer", "AutoModelForCausalLM", *alone, "sampler", "sampler"]
    assert seen == [(kind, trust) for kind in kinds]


def test_a_solver_is_gone_before_the_verifier_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU may have no room for both."""
    loaded: list[tuple[str, Any]] = []

    def load(path: str, *arguments: Any, **options: Any) -> Any:
        assert all(model() is None for _, model in loaded)
        model, tokenizer = load_model(path, *arguments, **options)
        model.circle = [model]  # as the first model of a process is held by frames of its loading
        loaded.append((Path(path).name, weakref.ref(model)))
        return model, tokenizer

    monkeypatch.setattr("topr_exp.models.policy.load_model", load)
    verifier = ["task=verifier", "task.solver=tiny", "task.test_solutions=2"]
    gc.disable()  # so that no circle goes by chance
    try:
        assert main(["model=tiny_verifier", *verifier, f"output_dir={tmp_path}", *SMALL]) == 0
    finally:
        gc.enable()
    assert [path for path, _ in loaded] == ["tiny", "tiny_verifier"]
    assert found(tmp_path)["weights"] == weights_fingerprint(SHIPPED / "tiny_verifier")


def test_a_setting_given_twice_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["model=tiny", "model=tiny_noise"], ["model=tiny", "data.eval_n=2", "data.eval_n=3"]):
        assert main([*words, f"output_dir={tmp_path}"]) == 2
        assert "is given twice; give it once" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
