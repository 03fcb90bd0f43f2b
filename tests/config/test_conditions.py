"""Two settings that meet in a condition: each of their four cases is accepted or refused as it should be."""

import itertools
from pathlib import Path

import pytest

from tests.conftest import config_of, needs_peft, overrides, refused
from topr_exp.models.model_folder import SHIPPED, weights_fingerprint
from topr_exp.models.policy import load_policy
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.policies import Policies
from topr_exp.types import ConfigError

MASK = "algo.mask=[{statistic: ratio, high: 5}]"
PARTS = {
    "mask": [MASK],
    "limits": ["algo.b_neg=2"],  # not constant: the weight is a clipped ratio
    "rule": ["algo.rule=ppo"],
}


@pytest.mark.parametrize("algo", ["naive", "sft", "topr"])
@pytest.mark.parametrize("part", [None, *PARTS])
@pytest.mark.parametrize("mu", ["none", "scored"])
def test_a_loss_without_mu_is_accepted_only_where_nothing_of_it_reads_mu(algo: str, part: str | None, mu: str) -> None:
    words = [f"algo={algo}", f"mu={mu}", *PARTS.get(part or "", [])]
    if part == "rule" and algo == "sft":
        with refused("for rule=ppo", ConfigError):
            config_of(*words)
        return
    reads_mu = algo == "topr" or part is not None
    if mu == "none" and reads_mu:
        with refused(f"mu must be scored or sampler for algo={algo}, which reads μ; got none", ConfigError):
            config_of(*words)
    else:
        assert config_of(*words).mu == mu


@pytest.mark.parametrize("correction", [None, 2])
@pytest.mark.parametrize("denominator", ["sampler", "old"])
@pytest.mark.parametrize("mu", ["none", "scored", "sampler"])
def test_a_loss_of_three_policies_has_the_samplers_mu(correction: int | None, denominator: str, mu: str) -> None:
    words = ["algo=naive", f"mu={mu}", f"algo.denominator={denominator}"]
    if correction is not None:
        words.append(f"algo.correction={correction}")
    if (correction, denominator) != (None, "sampler") and mu != "sampler":
        with refused("mu must be sampler for algo=naive, which compares μ with the same weights", ConfigError):
            config_of(*words)
    else:
        assert config_of(*words).mu == mu


@needs_peft
@pytest.mark.parametrize(("adapter", "named"), itertools.product([False, True], repeat=2))
def test_the_reference_is_the_model_that_is_named_else_the_base(tmp_path: Path, adapter: bool, named: bool) -> None:
    words = overrides(tmp_path, "algo=kl_pg")
    if adapter:
        words.append("model.lora={rank: 4, alpha: 8, targets: all-linear}")
    if named:
        words.append("model.reference=tiny_noise")
    config = config_of(*words)
    with RunFolder(config) as folder:
        policies = Policies(config, folder)
        policies.add_adapter(1)
        for _, weight in policies.trained.model.named_parameters():
            weight.data.add_(0.01 * weight.requires_grad)  # trained by now
        reference = policies.reference()
    assert reference is not None
    expected = "tiny_noise" if named else "tiny"
    assert reference.fingerprint == weights_fingerprint(SHIPPED / expected)
    alone = load_policy(config_of(f"model.path={expected}").model, "cpu")
    prompt = alone.encode("Tom has 3 apples.")
    own, right = (policy.model(input_ids=_batch(prompt)).logits for policy in (reference, alone))
    assert own.equal(right)


def _batch(prompt):
    import torch

    return torch.as_tensor(prompt)[None].long()
