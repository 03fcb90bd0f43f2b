"""Which layers LoRA may be asked to train, told from a model's files before it is loaded."""

from __future__ import annotations

import dataclasses

import pytest

from tests.conftest import config_of
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models import loading
from topr_exp.models.loading import SHIPPED, check_targets
from topr_exp.models.policy import load_policy
from topr_exp.types import ConfigError

ALLOWED = "all-linear, or some of down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"


@pytest.mark.parametrize(
    ("target", "hint"),
    [("q_prj", "; did you mean q_proj?"), ("proj", "; did you mean v_proj?"), ("lm_head", ""), ("embed_tokens", "")],
)
def test_a_target_that_is_no_layer_of_a_block_is_refused_with_the_nearest(target: str, hint: str) -> None:
    line = f"model.lora.targets={target}: no linear layer of the model's blocks{hint} (allowed: {ALLOWED})"
    lora = LoRA(4, 8.0, ["o_proj", target])
    with pytest.raises(ConfigError) as by_files:
        check_targets(lora, loading.linear_layers(SHIPPED / "tiny"))
    with pytest.raises(ConfigError) as loaded:  # of a name on the hub nothing is known before that
        load_policy(dataclasses.replace(config_of().model, lora=lora), "cpu")
    assert str(by_files.value) == str(loaded.value) == line


@pytest.mark.parametrize("targets", [ALL_LINEAR, "q_proj", ["layers.1.mlp.up_proj", "v_proj"], ["self_attn.o_proj"]])
def test_names_and_ends_of_names_are_taken(targets: str | list[str]) -> None:
    check_targets(LoRA(4, 8.0, targets), loading.linear_layers(SHIPPED / "tiny"))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("{rank: 4, alpha: 8}", "model.lora.targets is not set"),
        ("{rank: 0, alpha: 8, targets: q_proj}", "model.lora.rank must be 1 or more; got 0"),
        ("{rank: 4, alpha: 0, targets: q_proj}", "model.lora.alpha must be above 0; got 0.0"),
        ("{rank: 4, alpha: 8, targets: []}", "model.lora.targets must be all-linear or names of linear layers; got no"),
        ("{rank: 4, alpha: 8, target: q_proj}", "nothing reads model.lora.target here; allowed: rank, alpha, targets"),
        ("16", "model.lora=16: expected {rank: ..., alpha: ..., targets: ...} or null"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(given: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(f"model.lora={given}")
    assert str(caught.value).startswith(line)
