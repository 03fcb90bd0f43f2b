"""The identity of a run: a key for every input that decides its result, and a name for its folder."""

import copy
import dataclasses
import re
from typing import Any, NamedTuple

import pytest

from tests.algorithms.tabular_policies import NAMES as LOSSES
from tests.conftest import config_of, each_row, plan_of
from tests.extending import LOSS, project
from topr_exp.algorithms.regressions import DPO
from topr_exp.config.run_folders import run_name
from topr_exp.config.yamls import loss_of_own_yaml
from topr_exp.schema import NOT_IDENTITY, identity

LORA = "model.lora={rank:16,alpha:32,targets:all-linear}"


# A command line | the name of its run
FOLDERS = """
seed=0 | topr_gsm8k_tiny_lr1e-4_s0_f023ec4a4b
optim.lr=1e-3 LORA seed=3 | topr_gsm8k_tiny_lr1e-3_lora16_s3_c38fbe57bd
model=llama3_8b baseline=-0.3 algo.advantage=reward | topr_gsm8k_llama3-8b_lr5e-7_c-0.3_s0_0191c5de0e
algo=agro model.reference=tiny_noise | agro_gsm8k_tiny_lr1e-4_reference-tiny-noise_s0_53e4d5aa9e
model=tiny_verifier | topr_gsm8k_tiny-verifier_lr1e-4_verifier_solver-tiny_solutions8_no-chat_s0_f403cc1513
algo=rloo mu=scored compose.pass_rate=[0.1,0.9] | rloo_gsm8k_tiny_lr1e-4_pass_rate0.1-0.9_prompts2_updates1_rounds200\
_s0_50bc118111
"""


@each_row("words name", FOLDERS.replace("LORA", LORA))
def test_names_never_change(words, name):
    """Users' folders outlive a release: a key that was added takes no neutral default where one of these changes."""
    assert config_of(*words.split()).folder.name == name


def test_a_folder_of_an_earlier_release_is_found_by_its_hash(tmp_path):
    config = config_of("algo.b_neg=0.5", f"output_dir={tmp_path}")
    folder = config.folder
    earlier_folder = folder.with_name("topr_gsm8k_tiny_lr1e-4_s0" + folder.name[-11:])
    earlier_folder.with_name("topr_gsm8k_tiny_lr1e-4_s0_0000000000").mkdir(parents=True)
    earlier_folder.with_name("of_a_file" + folder.name[-11:]).touch()

    assert config.folder == folder
    earlier_folder.mkdir()
    assert config.folder == earlier_folder
    folder.mkdir()
    assert config.folder == folder


@dataclasses.dataclass(frozen=True)
class WithAList(DPO):
    """A loss to which a field with a list was added."""

    added: list[float] = dataclasses.field(default_factory=list)


def test_a_list_that_is_added_to_a_loss_renames_no_run():
    dpo = config_of("algo=dpo").algo

    assert identity(WithAList(dpo.name, dpo.beta)).items() - identity(dpo).items() == {
        ("_target_", f"{__name__}.WithAList")
    }
    assert identity(WithAList(dpo.name, dpo.beta, [1.0]))["added"] == [1.0]


# ---- what decides a result


class Leaf(NamedTuple):
    """A setting: its dotted key, the group that holds it, and its name there."""

    key: str
    group: Any
    name: str


def leaves(group, prefix=""):
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield Leaf(f"{prefix}{field.name}", group, field.name)


@pytest.mark.parametrize("words", [("model=llama3_8b", LORA), ("model=tiny_verifier",), ("algo=grpo", "cluster=slurm")])
def test_every_setting_decides_the_identity_but_those_of_one_list(words):
    config = config_of(*words)
    identity = copy.deepcopy(config.identity)
    for leaf in leaves(config):
        value = getattr(leaf.group, leaf.name)

        object.__setattr__(leaf.group, leaf.name, f"not {value}")

        is_excluded = not NOT_IDENTITY.isdisjoint([leaf.key, leaf.key.partition(".")[0]])
        assert (config.identity == identity) == is_excluded, leaf.key
        object.__setattr__(leaf.group, leaf.name, value)


def test_the_list_holds_no_setting_that_changes_a_result():
    excluded_groups = {key.partition(".")[0] for key in NOT_IDENTITY}
    excluded_optim = {key for key in NOT_IDENTITY if key.startswith("optim")}

    assert not excluded_groups & {"seed", "mu", "baseline", "algo", "data", "compose", "schedule", "evaluation"}
    assert excluded_optim == {"optim.micro_batch_size", "optim.gradient_checkpointing", "optim.compile"}


# ---- names


def test_names_are_short_and_safe_whatever_the_settings_hold():
    for text in ("x/.. " * 200, "é" * 300):
        config = config_of(f"data.template='{text}{{question}}'", "data.stop=[]", LORA)
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, name=text), iterations=10**12)
        assert re.fullmatch(r"[\w.-]{1,80}_[0-9a-f]{10}", config.folder.name, re.ASCII)


PARTS = """
algo=tis algo.b_neg=2 algo.b_pos=3 | _b_pos3_b_neg2_
algo.length_normalize=false | _no-length_normalize_
algo=cispo algo.cap=.inf | _cap-inf_
"""


@each_row("words part", PARTS)
def test_a_name_shows_what_differs_from_the_losss_own_yaml(words, part):
    assert part in config_of(*words.split()).folder.name


# A command line | what the name of its last run begins with, before the hash
SWEPT = """
-m data.n=8,32 sampler.temperature=0.5,0.7 seed=0,1 | topr_gsm8k_tiny_lr1e-4_n32_temperature0.7_s1_
-m data.n=8 seed=0,1 | topr_gsm8k_tiny_lr1e-4_s1_
experiment=fig7 algo=topr seed=0 | topr_gsm8k_tiny_lr3e-4_proportion_n_examples3200_positive_share0.4_every25_s0_
"""


@each_row("words beginning", SWEPT)
def test_a_name_shows_what_a_command_line_varies_and_is_found_without(words, beginning, tmp_path):
    job = plan_of(*words.split(), f"output_dir={tmp_path}").jobs[-1]
    assert job.folder.name[:-10] == beginning

    job.folder.mkdir(parents=True)

    assert job.config.folder == job.folder


@pytest.mark.parametrize("name", LOSSES)
def test_a_name_shows_no_hyper_parameter_of_a_losss_own_yaml(name):
    config = config_of(f"algo={name}")

    assert run_name(config, loss_of_own_yaml(config.algo)) == run_name(config, config.algo)


def test_a_name_shows_what_differs_from_a_yaml_of_ones_own(tmp_path):
    with project(tmp_path, LOSS):
        words = ["--config-dir", "conf", "algo=soft_topr"]
        assert "ceiling" not in config_of(*words).folder.name
        assert "_ceiling4_" in config_of(*words, "algo.ceiling=4").folder.name
