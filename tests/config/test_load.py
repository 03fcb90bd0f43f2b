"""Settings: every YAML composes, and each value comes from the place that has the last word."""

import dataclasses
import json
import re
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from unittest.mock import patch

import pytest
import yaml

from tests.conftest import ROOT, config_of, each_row, needs_gym, plan_of, refused, write_file
from topr_exp.algorithms.regressions import DPO
from topr_exp.api import read_config
from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.groups import ComposeConfig
from topr_exp.config.model import ALL_LINEAR, LoRA, ModelConfig
from topr_exp.config.model_choice import SHIPPED, read_presets
from topr_exp.config.yamls import CONF
from topr_exp.schema import Count, at_least, plain, show
from topr_exp.types import ConfigError

MODELS = sorted(path.stem for path in CONF.glob("model/*.yaml"))
# What a choice needs beside itself; an experiment's seeds are as many runs.
NEEDED_SETTINGS = {
    "verifier": ["task.solver=tiny", "task.chat=false"],
    "jsonl": [f"data.path={ROOT / 'tests/data/own.jsonl'}", "data.test_share=0.25"],
    "experiment": ["seed=0"],
    "masks": ["optim.lr=1e-4"],  # a command chooses the rates of these three
    "nats": ["optim.lr=1e-4"],
    "staleness_by_rate": ["optim.lr=1e-4"],
}


def yaml_choices():
    choices = []
    for path in sorted(CONF.glob("*/*.yaml")):
        marks = [needs_gym] if path.stem in ("reasoning_gym", "tiny_tasks") else []
        choices.append(pytest.param(path.parent.name, path.stem, marks=marks))
    return choices


@pytest.mark.parametrize("group, choice", yaml_choices())
def test_every_yaml_composes_and_sets_nothing_in_vain(group, choice, capsys):
    settings = NEEDED_SETTINGS.get(group, []) + NEEDED_SETTINGS.get(choice, [])

    planned = plan_of(f"{group}={choice}", "dry_run=true", *settings)

    for job in planned.jobs:
        assert job.config.folder.parent.name == job.config.name
    assert "set and not read" not in capsys.readouterr().err


@pytest.mark.parametrize("group, schema", [("model", ModelConfig), ("compose", ComposeConfig)])
def test_every_yaml_has_every_field(group, schema):
    fields = {field.name for field in dataclasses.fields(schema)}
    for path in CONF.glob(f"{group}/*.yaml"):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        values = settings.get(group, settings)
        assert values["name"] == path.stem
        assert values.keys() == fields


@pytest.mark.parametrize("model", MODELS)
def test_a_toy_has_embedded_problems_and_a_real_model_the_benchmark(model):
    for data in ("gsm8k", "math"):
        source = config_of(f"model={model}", f"data={data}").data.source
        assert source == ("embedded" if model.startswith("tiny") else "hub")


# ---- models


@pytest.mark.parametrize("model", ["llama3_2_1b", "qwen2_5_0_5b", "qwen2_5_1_5b", "qwen3_0_6b", "smollm2_135m"])
def test_a_preset_is_a_pinned_chat_model_asked_without_examples(model):
    config = config_of(f"model={model}", "data=gsm8k")

    assert re.fullmatch(r"[\w-]+/[\w.-]+", config.model.path)
    assert re.fullmatch(r"[0-9a-f]{40}", config.model.revision)
    assert config.data.chat is True
    assert config.data.shots == 0
    assert config.sampler.top_k == 0
    assert config.optim.batch_size % config.optim.micro_batch_size == 0


def test_other_weights_have_no_revision_of_a_preset():
    config = config_of("model=smollm2_135m", f"model.path={SHIPPED / 'tiny'}", "data.chat=false")

    assert config.model.revision is None


# What is on a machine | where a sweep runs | its sampler | prompts of a shard
SAMPLERS = """
vllm driver | local | vllm | 256
vllm | local | hf | 32
driver | local | hf | 32
vllm | slurm | vllm | 256
"""  # the last is submitted where no GPU is, and run where one is


@each_row("parts cluster sampler prompts", SAMPLERS)
def test_a_preset_samples_with_vllm_where_it_can(parts, cluster, sampler, prompts, working_folder, monkeypatch):
    for part in parts.split():
        write_file(working_folder / part / "__init__.py", "raise RuntimeError('imported')")
    monkeypatch.setattr("topr_exp.config.sampler_choice.DRIVER", working_folder / "driver")
    words = ["--config-dir", str(working_folder), "model=qwen2_5_0_5b", "data=gsm8k", f"cluster={cluster}"]

    config = config_of(*words)

    assert config.sampler.name == sampler
    assert config.sampler.prompts_per_shard == int(prompts)
    assert config_of(*words, "sampler=hf").sampler.name == "hf"


def test_a_model_yaml_of_the_users_needs_no_adapter(tmp_path):
    text = re.sub(r"  lora:.*\n", "", (CONF / "model/tiny.yaml").read_text(encoding="utf-8"))
    write_file(tmp_path / "model/mine.yaml", text)
    words = ["--config-dir", str(tmp_path), "model=mine"]
    as_group = ["model.lora={rank: 6, alpha: 8, targets: all-linear}"]
    by_key = ["model.lora.rank=6", "model.lora.alpha=8", "model.lora.targets=all-linear"]

    assert config_of(*words).model.lora is None
    for settings in (as_group, by_key):
        assert config_of(*words, *settings).model.lora == LoRA(6, 8.0, ALL_LINEAR)


# ---- which place has the last word

PAPER = """
optim.name=adafactor optim.lr=5e-07 optim.batch_size=8 optim.grad_clip=1.0 optim.epochs=1
sampler.name=vllm sampler.top_k=500 sampler.max_new_tokens=512 sampler.temperature=1.0 sampler.top_p=1.0
sampler.gpu_memory_utilization=null
"""
# A command line | settings of its run
SETTINGS = """
data=math | data.n=16
data=math model=llama3_8b | data.n=32
data=math model=llama3_8b data.n=3 | data.n=3
model=llama3_8b sampler=hf | sampler.name=hf
optim=paper | optim.lr=5e-07
data.source=hub | data.source=hub
model=tiny model.name=mine sampler=hf | sampler.prompts_per_shard=32
model=llama3_8b model.name=tiny sampler=hf | sampler.prompts_per_shard=2
model=llama3_8b model.path=some/model model.revision=abc | reference_model.path=some/model reference_model.revision=abc
model=llama3_8b model.revision=abc model.reference=a/b | reference_model.path=a/b reference_model.revision=null
model=llama3_8b data=gsm8k | data.n=16 data.eval_n=64 PAPER
model=llama3_8b data=math | data.n=32 data.eval_n=16 PAPER
model=deepseek_r1_8b data=gsm8k | data.n=16 data.eval_n=64 PAPER
model=deepseek_r1_8b data=math | data.n=32 data.eval_n=16 PAPER
"""


@each_row("words settings", SETTINGS)
def test_the_command_line_wins_over_the_model_and_the_model_over_everything_else(words, settings):
    config = config_of(*words.split())

    for setting in settings.replace("PAPER", PAPER).split():
        key, _, value = setting.partition("=")
        assert show(attrgetter(key)(config)) == value, key


def test_values_of_ones_own_yaml_that_the_model_replaces_are_a_warning(tmp_path, capsys):
    write_file(tmp_path / "data/mine.yaml", "defaults: [gsm8k, _self_]\nn: 4\neval_n: 8\nthreshold: 0.5\n")
    write_file(tmp_path / "experiment/four.yaml", "# @package _global_\ndata: {n: 4}\n")
    words = ["--config-dir", str(tmp_path), "data=mine"]
    for settings in ([], ["data.n=5"], ["experiment=four"]):
        plan_of(*words, *settings)

    lines = [line for line in capsys.readouterr().err.splitlines() if "mine.yaml" in line]
    assert len(lines) == 1
    assert "data/mine.yaml: data.n=4 not used, since model=tiny comes after it" in lines[0]


def test_values_are_compared_with_the_models_of_runs_alone(tmp_path, capsys):
    """Not with model=tiny, which the command line has without its sweep."""
    write_file(tmp_path / "data/mine.yaml", "defaults: [gsm8k, _self_]\nn: 4\n")
    for name, rate in (("one", 1e-4), ("two", 2e-4)):
        text = f"# @package _global_\ndefaults: [tiny, _self_]\ndata: {{n: 4}}\noptim: {{lr: {rate}}}\n"
        write_file(tmp_path / f"model/{name}.yaml", text)

    plan_of("--config-dir", str(tmp_path), "-m", "data=mine", "model=one,two")

    assert capsys.readouterr().err == ""


def test_the_model_of_many_runs_is_looked_up_once():
    """All YAMLs of models are read for that, which takes 0.1 s."""
    composer = Composer(parse_arguments(["-m", "model=llama3_8b", "seed=range(20)"]))
    with patch("topr_exp.config.model_choice.read_presets", side_effect=read_presets) as read:
        assert len(list(composer.jobs())) == 20

    assert read.call_count == 1


def test_settings_of_a_run_are_read_as_they_are(tmp_path):
    """Whoever packed a folder of a run would else read variables of the environment."""
    config = config_of(r"data.template='{question} \${oc.env:HOME}'")
    write_file(tmp_path / "config.json", json.dumps({"resolved": plain(config)}))

    assert read_config(tmp_path) == config


def test_a_tilde_is_the_home_folder():
    """Else the folder of a run is called `~`, which some libraries expand where they write, and others do not."""
    folder = Path.home() / "x"

    config = config_of('output_dir="~/x"')

    assert config.output_dir == str(folder)
    assert config.store == folder / "store"
    assert config.folder.is_relative_to(folder)
    assert config_of('output_dir="x~"').output_dir == "x~"


# ---- a loss of the user's own


class UnknownNeed(DPO):
    needs = frozenset({"ref_logp", "refrence"})


class NeedsText(DPO):
    needs = "pairs"


class UnknownRewards(DPO):
    needs = frozenset()
    rewards = "zero-one"


class TextAsPaper(DPO):
    papers: ClassVar = {"dpo": "2305.18290"}


class UnnamedSignals(DPO):
    def signals(self, batch):
        return {}


@dataclass(frozen=True)
class Typed(DPO):
    """A loss with a field of each type that a setting may have."""

    largest: ClassVar[Annotated[int, at_least(1)]] = 3  # no setting, so that its range is applied to nothing
    order: Literal[1, 2] = 1
    kind: Literal["soft", 0] | None = None
    powers: list = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RangeOfAPart(DPO):
    steps: Count | None = None


class NoDataclass(DPO):
    ceiling: float


DECLARATIONS = """
UnknownNeed | needs refrence, which nothing provides; allowed: pairs,
NeedsText | needs must be a set of names; got 'pairs'
UnknownRewards | rewards=zero-one: expected one of pm1, zero_one
TextAsPaper | papers must be a dictionary from names of losses to Paper(...); got {'dpo': '2305.18290'}
UnnamedSignals | signal_names must name the tensors that `signals` returns
"""


# A setting of Typed | its value in JSON
TYPED = """
order=2 | 2
kind=soft | "soft"
kind=0 | 0
kind=null | null
powers=[1,a] | [1, "a"]
steps=[1,2] | [1, 2]
weights={short:1,long:0.5} | {"short": 1.0, "long": 0.5}
"""
# A setting of Typed | how it is refused
MISTYPED = """
order=3 | algo.order=3: expected one of 1, 2
order=true | algo.order=true: expected one of 1, 2
steps=[a] | algo.steps[0]=a: expected a whole number
weights={short:no} | algo.weights.short=no: expected a number
"""


@each_row("setting value", TYPED)
def test_a_loss_may_have_settings_of_each_of_these_types(setting, value):
    words = [f"algo._target_={__name__}.Typed", f"algo.{setting}"]

    assert getattr(config_of("algo=dpo", *words).algo, setting.partition("=")[0]) == json.loads(value)


@each_row("setting message", MISTYPED)
def test_a_value_of_another_type_is_refused(setting, message):
    with refused(f"^{re.escape(message)}", ConfigError):
        config_of("algo=dpo", f"algo._target_={__name__}.Typed", f"algo.{setting}")


def test_a_range_that_nothing_would_apply_is_refused():
    with refused(r"algo.steps: a range within a type is not applied; write Annotated\[", ConfigError):
        config_of("algo=dpo", f"algo._target_={__name__}.RangeOfAPart", "algo.steps=-3")


def test_a_class_that_is_no_dataclass_is_refused_by_name():
    with refused(r"NoDataclass: write @dataclass\(frozen=True\) above the class", ConfigError):
        config_of("algo=dpo", f"algo._target_={__name__}.NoDataclass", "algo.ceiling=2")


@each_row("name message", DECLARATIONS)
def test_a_loss_declares_nothing_that_nobody_knows(name, message):
    target = f"algo._target_={__name__}.{name}"

    with refused(f"^{re.escape(target)}: {re.escape(message)}", ConfigError):
        config_of("algo=dpo", target)


# ---- documents


def test_every_command_for_an_8b_model_asks_the_cluster_for_a_gpu():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *CONF.rglob("*.yaml")]
    commands = []
    for page in pages:
        commands += re.findall(r".*model=llama3_8b.*cluster=slurm\w*.*", page.read_text(encoding="utf-8"))

    assert commands
    for command in commands:
        assert "cluster=slurm_8b" in command or "cluster.gpus_per_node=" in command
