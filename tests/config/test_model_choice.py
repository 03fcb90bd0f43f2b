"""The settings that a model takes which is a folder or a name on the hub: never a toy's, unless it is one."""

import json
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, refused
from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.load import load
from topr_exp.config.model_choice import SHIPPED
from topr_exp.config.yamls import CONF
from topr_exp.evaluate import settings
from topr_exp.types import ConfigError

TOY = {"hidden_size": 128, "num_hidden_layers": 3, "vocab_size": 413}
LARGE = {"hidden_size": 777, "num_hidden_layers": 30, "vocab_size": 49152}  # as no YAML's
SMOLLM = {"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152}
LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256}
GENERAL = "model=llama3_8b, since no YAML of conf/model has its name or shape"
BY_SHAPE = "model={}, whose model has its shape"
BY_NAME = "model={}, whose model its folder names"


def model_folder(folder: Path, config: dict[str, Any]) -> Path:
    """A shipped model's files with another config.json."""
    shutil.copytree(SHIPPED / "tiny", folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def composed(*words: str) -> list[Any]:
    """The settings of the runs of a command line, composed and checked; their files are not."""
    composer = Composer(parse_arguments(words))
    return [load(run) for _, run in composer.jobs(composer.base())]


def chosen(*words: str) -> Any:
    """The settings of a run, whose sampler needs no vLLM."""
    (run,) = composed("sampler=hf", *words)
    return run


@pytest.mark.parametrize("key", ["model", "model.path"])
@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        ("own", TOY, BY_SHAPE.format("tiny")),
        ("own", {**TOY, "vocab_size": 310}, BY_SHAPE.format("tiny_long")),
        ("own", {**TOY, "hidden_size": 16}, "model=tiny, since it is as small as a shipped model"),
        ("own", {**TOY, "hidden_size": 129}, GENERAL),
        ("own", {**TOY, "num_hidden_layers": 4}, GENERAL),
        ("own", LARGE, GENERAL),
        ("own", SMOLLM, BY_SHAPE.format("smollm2_135m")),
        ("own", {"hidden_size": 16}, GENERAL),
        ("own", LLAMA, BY_SHAPE.format("llama3_8b")),
        ("own", {"text_config": LLAMA}, BY_SHAPE.format("llama3_8b")),
        ("DeepSeek-R1-Distill-Llama-8B", LLAMA, BY_NAME.format("deepseek_r1_8b")),
        ("models--meta-llama--Meta-Llama-3-8B-Instruct", LLAMA, BY_NAME.format("llama3_8b")),
        ("DeepSeek-R1-Distill-Llama-8B", LARGE, GENERAL),
        ("tiny", LARGE, GENERAL),
    ],
)
def test_a_folder_takes_the_settings_of_its_name_or_shape(key, name, config, reason, tmp_path):
    folder = model_folder(tmp_path / name, config)
    found = chosen(f"{key}={folder}")
    assert found.model.settings_of == reason
    assert (found.model.path, found.model.name) == (str(folder), name)
    is_toy = reason.startswith("model=tiny")
    assert found.model.size == ("tiny" if is_toy else "large")
    assert (found.optim.lr == 1e-4) == is_toy


@pytest.mark.parametrize("key", ["model", "model.path"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("owner/Name-7B", "model=llama3_8b, since no YAML of conf/model names it"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "model=deepseek_r1_8b, which is for it"),
    ],
)
def test_a_name_on_the_hub_takes_the_settings_of_the_yaml_that_names_it(key: str, name: str, reason: str) -> None:
    model = chosen(f"{key}={name}").model
    assert (model.path, model.name, model.settings_of) == (name, name.partition("/")[2], reason)


def test_a_shipped_model_by_its_path_is_the_run_of_its_choice() -> None:
    for name in ("tiny", "tiny_noise", "tiny_long"):
        assert chosen(f"model.path={name}").folder == chosen(f"model={name}").folder


@pytest.mark.parametrize("words", [["data=gsm8k"], ["experiment=smoke"], ["data=math", "algo=tis"]])
def test_no_other_setting_gives_a_real_model_those_of_a_toy(words: list[str], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "own", LARGE)
    assert chosen(f"model.path={folder}", *words).model.size == "large"
    with refused("model=tiny model.path=.* settings of a shipped model .* leave model=tiny out", ConfigError):
        chosen("model=tiny", f"model.path={folder}", *words)


def test_settings_that_are_chosen_by_name_and_values_on_the_command_line_stay(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "own", LARGE)
    found = chosen("model=deepseek_r1_8b", f"model.path={folder}")
    assert (found.model.name, found.model.settings_of) == ("deepseek_r1_8b", None)
    found = chosen(f"model={folder}", "model.name=mine", "optim.lr=3e-5", "model.dtype=float32")
    assert (found.model.name, found.optim.lr, found.model.dtype) == ("mine", 3e-5, "float32")
    toy = model_folder(tmp_path / "toy", TOY)
    assert chosen("model=tiny_noise", f"model.path={toy}").model.name == "tiny_noise"


@pytest.mark.parametrize("weights", ["model", "iteration-2/model"])
def test_a_run_s_folder_is_its_model_with_the_settings_of_the_yaml_that_it_used(weights: str, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "my_run"
    model_folder(run / weights, TOY)
    (run / "config.json").write_text(json.dumps({"resolved": {"model": {"name": "tiny_noise"}}}))
    ways = [run, run / weights] if weights == "model" else [run / weights]
    for given in ways:
        model = chosen(f"model={given}").model
        assert (model.path, model.name) == (str(run / weights), "my_run")
        assert model.settings_of == "model=tiny_noise, of the run that wrote it"


def test_settings_of_a_toy_in_a_stranger_s_run_are_not_for_a_larger_model(tmp_path: Path) -> None:
    model_folder(tmp_path / "run" / "model", LARGE)
    (tmp_path / "run" / "config.json").write_text(json.dumps({"resolved": {"model": {"name": "tiny"}}}))
    assert chosen(f"model={tmp_path / 'run'}").model.settings_of == GENERAL


def test_a_run_without_a_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"resolved": {"model": {"name": "tiny"}}}))
    with refused(f"model={tmp_path}: there is no model in it, nor in its model/", ConfigError):
        chosen(f"model={tmp_path}")


@pytest.mark.parametrize("name", ["it's mine", "a,b", "sp ace", "${oc.env:HOME}", "x=y"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / name, TOY)
    for key in ("model", "model.path"):
        assert (found := chosen(f"{key}={folder}").model).path == str(folder)
        assert found.name == name


def test_a_plain_folder_is_shown_as_it_was_given(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "own", TOY)
    composer = Composer(parse_arguments([f"model={folder}"]))
    assert [words for words, _ in composer.jobs(composer.base())] == [[f"model={folder}"]]


def test_the_name_of_a_folder_may_be_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_folder(tmp_path / "own", TOY)
    monkeypatch.setenv("WEIGHTS", str(tmp_path))
    assert chosen("model=${oc.env:WEIGHTS}/own").model.path == str(tmp_path / "own")
    assert chosen("model.path=${oc.env:WEIGHTS}/own").model.path == str(tmp_path / "own")


def test_each_model_of_a_sweep_takes_its_own_settings(tmp_path: Path) -> None:
    toy, real = model_folder(tmp_path / "toy", TOY), model_folder(tmp_path / "real", LARGE)
    found = composed("-m", f"model={toy},{real},tiny_noise", "sampler=hf")
    assert [(config.model.name, config.data.source) for config in found] == [
        ("toy", "embedded"), ("real", "hub"), ("tiny_noise", "embedded"),
    ]  # fmt: skip


def test_a_yaml_of_the_user_s_own_takes_part(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "weights", LARGE)
    text = (ROOT / "conf" / "model" / "llama3_8b.yaml").read_text(encoding="utf-8")
    text = text.replace("meta-llama/Meta-Llama-3-8B-Instruct", "owner/mine").replace(
        "[4096, 32, 128256]", "[777, 30, 49152]"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(text, encoding="utf-8")
    found = chosen("--config-dir", str(tmp_path), f"model={folder}")
    assert found.model.settings_of == BY_SHAPE.format("mine")


def test_evaluate_takes_the_same_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path / "own", json.loads((SHIPPED / "tiny_long" / "config.json").read_text()))
    words = ["data.train_problems=2", "data.test_problems=2", f"output_dir={tmp_path}"]
    (folder / "model.safetensors").write_bytes((SHIPPED / "tiny_long" / "model.safetensors").read_bytes())
    evaluated = settings(Namespace(overrides=[f"model={folder}", *words], config_dir=None, multirun=False))
    run = chosen(f"model={folder}", *words)
    for group in ("model", "data", "sampler"):
        assert getattr(evaluated, group) == getattr(run, group)
    assert f"settings of {BY_SHAPE.format('tiny_long')}" in capsys.readouterr().out


def test_a_preset_s_shape_is_unlike_a_toy_s() -> None:
    """So that no folder of a real model's shape has a toy's settings."""
    for path in CONF.glob("model/*.yaml"):
        model = OmegaConf.load(path).model
        assert (model.shape is None) == (model.size == "tiny"), path
