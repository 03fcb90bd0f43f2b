"""Settings for a model that is a folder or a name on the hub: a toy's only for a toy."""

import json
import shutil
from argparse import Namespace

import pytest

from tests.conftest import each_row, plan_of, refused, write_file
from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.load import load
from topr_exp.config.model_choice import SHIPPED, Shape, choose_settings
from topr_exp.config.yamls import CONF
from topr_exp.evaluate import compose_settings
from topr_exp.types import ConfigError

CHOICES = sorted(path.stem for path in CONF.glob("model/*.yaml"))
TOY = Shape(128, 3, 413)
UNKNOWN = Shape(777, 30, 49152)
LLAMA = Shape(4096, 32, 128256)
HAS_SHAPE = "whose model has its shape"
NOTHING_FITS = "since no YAML of conf/model has its name or shape"
TOYS_FOR_A_LARGER = "model=tiny model.path=.* settings of a shipped model .* leave model=tiny out"


def write_config(folder, config):
    return write_file(folder / "config.json", json.dumps(config)).parent


def model_folder(folder, shape):
    """A folder of a model's settings, without weights."""
    return write_config(folder, shape._asdict())


def run_folder(folder, weights, shape, model_name):
    """A folder of a run that trained a model with the settings of `model_name`."""
    model_folder(folder / weights, shape)
    return write_config(folder, {"resolved": {"model": {"name": model_name}}})


def choose(folder):
    """The settings that `model=FOLDER` takes."""
    return choose_settings("model", str(folder), CHOICES)


def composed(*words):
    """The checked settings of a run; no file is looked at."""
    composer = Composer(parse_arguments([*words, "sampler=hf"]))
    ((_, settings),) = composer.jobs()
    return load(settings)


# ---- which YAML


# A folder's name, the hidden size, layers and vocabulary of its model | whose settings it takes, and why
FOLDERS = """
own 128 3 413 | model=tiny, whose model has its shape
own 128 3 310 | model=tiny_long, whose model has its shape
own 16 3 413 | model=tiny, since it is as small as a shipped model
own 129 3 413 | model=llama3_8b, since no YAML of conf/model has its name or shape
own 128 4 413 | model=llama3_8b, since no YAML of conf/model has its name or shape
own 777 30 49152 | model=llama3_8b, since no YAML of conf/model has its name or shape
own 576 30 49152 | model=smollm2_135m, whose model has its shape
own 4096 32 128256 | model=llama3_8b, whose model has its shape
DeepSeek-R1-Distill-Llama-8B 4096 32 128256 | model=deepseek_r1_8b, whose model its folder names
models--meta-llama--Meta-Llama-3-8B-Instruct 4096 32 128256 | model=llama3_8b, whose model its folder names
DeepSeek-R1-Distill-Llama-8B 777 30 49152 | model=llama3_8b, since no YAML of conf/model has its name or shape
tiny 777 30 49152 | model=llama3_8b, since no YAML of conf/model has its name or shape
"""


@each_row("words described", FOLDERS)
def test_a_folder_takes_the_settings_of_its_name_or_shape(words, described, tmp_path):
    name, *numbers = words.split()
    folder = model_folder(tmp_path / name, Shape(*map(int, numbers)))

    model = choose(folder)

    assert model.described == described
    assert model.path == str(folder)
    assert model.name == name


def test_a_shape_may_be_unknown_or_that_of_a_part(tmp_path):
    without_shape = write_config(tmp_path / "a", {"hidden_size": 16})
    with_part = write_config(tmp_path / "b", {"text_config": LLAMA._asdict()})

    assert choose(without_shape).reason == NOTHING_FITS
    assert choose(with_part).reason == HAS_SHAPE


NAMES = {
    "model": "my_run",
    "iteration-2/model": "my_run",
    "iteration-2/update-50": "update-50_iteration-2_my_run",
}


@pytest.mark.parametrize("weights, name", NAMES.items())
def test_a_runs_model_takes_the_settings_of_the_yaml_that_the_run_used(weights, name, tmp_path):
    run = run_folder(tmp_path / "my_run", weights, TOY, "tiny_noise")

    model = choose(run / weights)

    assert model.path == str(run / weights)
    assert model.name == name
    assert model.choice == "tiny_noise"
    assert model.reason == "of the run that wrote it"
    if weights == "model":
        assert choose(run) == model


def test_a_strangers_run_gives_no_larger_model_a_toys_settings(tmp_path):
    run = run_folder(tmp_path, "model", UNKNOWN, "tiny")

    assert choose(run).reason == NOTHING_FITS


def test_a_run_without_a_model_is_one_line(tmp_path):
    write_config(tmp_path, {"resolved": {"model": {"name": "tiny"}}})

    with refused(f"model={tmp_path}: there is no model in it, nor in its model/", ConfigError):
        choose(tmp_path)


# ---- the settings of a run


NAMES_ON_THE_HUB = """
owner/Name-7B | Name-7B | model=llama3_8b, since no YAML of conf/model names it
iteration-1/model | iteration-1 | model=llama3_8b, since no YAML of conf/model names it
deepseek-ai/DeepSeek-R1-Distill-Llama-8B | DeepSeek-R1-Distill-Llama-8B | model=deepseek_r1_8b, which is for it
"""
both_keys = pytest.mark.parametrize("key", ["model", "model.path"])


@both_keys
@each_row("word name settings_of", NAMES_ON_THE_HUB)
def test_a_name_on_the_hub_takes_the_settings_of_the_yaml_that_names_it(key, word, name, settings_of, capsys):
    (job,) = plan_of(f"{key}={word}", "sampler=hf").jobs

    assert job.config.model.path == word
    assert job.config.model.name == name
    assert capsys.readouterr().out == f"model {word}: settings of {settings_of}\n"


@pytest.mark.parametrize("words", [["data=gsm8k"], ["experiment=smoke"], ["data=math", "algo=tis"]])
def test_no_other_setting_gives_a_real_model_those_of_a_toy(words, tmp_path):
    folder = model_folder(tmp_path / "own", UNKNOWN)

    assert composed(f"model.path={folder}", *words).data.source == "hub"
    with refused(TOYS_FOR_A_LARGER, ConfigError):
        composed("model=tiny", f"model.path={folder}", *words)


def test_settings_that_are_chosen_by_name_and_values_on_the_command_line_stay(tmp_path):
    folder = model_folder(tmp_path / "own", UNKNOWN)
    toy_folder = model_folder(tmp_path / "toy", TOY)

    assert composed("model=deepseek_r1_8b", f"model.path={folder}").model.name == "deepseek_r1_8b"
    assert composed("model=tiny_noise", f"model.path={toy_folder}").model.name == "tiny_noise"
    config = composed(f"model={folder}", "model.name=mine", "optim.lr=3e-5")
    assert config.model.name == "mine"
    assert config.optim.lr == 3e-5


def test_a_shipped_model_by_its_path_is_the_run_of_its_choice():
    assert composed("model.path=tiny_noise").folder == composed("model=tiny_noise").folder


def test_a_yaml_of_the_users_own_takes_part(tmp_path):
    folder = model_folder(tmp_path / "weights", UNKNOWN)
    text = (CONF / "model/llama3_8b.yaml").read_text(encoding="utf-8")
    text = text.replace("meta-llama/Meta-Llama-3-8B-Instruct", "owner/mine")
    write_file(tmp_path / "model/mine.yaml", text.replace("[4096, 32, 128256]", "[777, 30, 49152]"))

    composer = Composer(parse_arguments(["--config-dir", str(tmp_path), f"model={folder}"]))
    list(composer.jobs())

    (choice,) = composer.model_choices.values()
    assert choice.described == f"model=mine, {HAS_SHAPE}"


def test_evaluate_takes_the_same_settings(tmp_path, capsys):
    folder = shutil.copytree(SHIPPED / "tiny_long", tmp_path / "own")
    words = [f"model={folder}", "data.train_problems=2", "data.test_problems=2", f"output_dir={tmp_path}"]

    evaluation = compose_settings(Namespace(overrides=words, config_dir=None, multirun=False))

    run = composed(*words)
    assert evaluation.model == run.model
    assert evaluation.data == run.data
    assert evaluation.sampler == run.sampler
    assert f"settings of model=tiny_long, {HAS_SHAPE}" in capsys.readouterr().out


# ---- names of folders


@both_keys
@pytest.mark.parametrize("name", ["it's mine", "a,b", "${oc.env:HOME}", "x=y"])
def test_a_folder_may_have_any_name(name, key, tmp_path):
    folder = model_folder(tmp_path / name, TOY)

    model = composed(f"{key}={folder}").model

    assert model.path == str(folder)
    assert model.name == name


@both_keys
def test_the_name_of_a_folder_may_be_computed(key, tmp_path, variables):
    folder = model_folder(tmp_path / "own", TOY)
    variables["WEIGHTS"] = str(tmp_path)

    assert composed(f"{key}=${{oc.env:WEIGHTS}}/own").model.path == str(folder)
