"""An adapter beside frozen weights: what it changes, what it leaves, and what of it others can load."""

import copy
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.conftest import config_of, make_model, needs_peft, normal, refused, values_of
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models import adapter
from topr_exp.models.model_folder import ADAPTER
from topr_exp.models.policy import Policy, load_policy, save_policy, stored_weights
from topr_exp.training import tree_attention
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.types import ConfigError

pytestmark = needs_peft

IDS = torch.tensor([[0, 5, 3, 7, 9, 4], [0, 4, 4, 8, 6, 10]])
SEQUENCES = [(line[:3].numpy(), line[3:].numpy()) for line in IDS]
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def make_adapted(dtype=torch.float32, targets=ALL_LINEAR, *, is_trained=True):
    """A model, and a policy that trains an adapter on the same; is_trained: with numbers in it."""
    base = make_model(11).to(dtype)
    policy = Policy(copy.deepcopy(base), Mock(eos_token_id=1), "base", dtype)
    add_adapter(policy, targets=targets)
    if is_trained:
        generator = torch.Generator().manual_seed(1)
        for _, weight in adapter.trained_weights(policy.model):
            weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    return base, policy


def add_adapter(policy, *, alpha=8.0, targets=ALL_LINEAR, seed=0, folder=None):
    policy.add_adapter(LoRA(4, alpha, targets), seed, base_path="somewhere/base", trained_folder=folder)


@torch.no_grad()
def logits(model):
    out = model(input_ids=IDS, use_cache=False).logits
    return out.float()


def score(model, reference=None):
    return score_tokens(model, Inputs(SEQUENCES, torch.device("cpu")), reference=reference)


def test_an_adapter_that_could_not_be_merged_is_refused():
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(num_hidden_layers=1))

    with refused("an adapter of Qwen3MoeForCausalLM can't be merged", ConfigError):
        adapter.add_adapter(model, LoRA(4, 8.0, ALL_LINEAR), 0)


def new_adapter_weights(dtype, seed):
    """The weights of a new adapter, flat; nothing else is drawn from torch's global randomness."""
    model = make_model(11).to(dtype)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    adapter.add_adapter(model, LoRA(4, 8.0, ALL_LINEAR), seed)
    assert torch.equal(torch.get_rng_state(), state)
    flat_weights = [weight.flatten() for _, weight in adapter.trained_weights(model)]
    return torch.cat(flat_weights)


@both_dtypes
def test_a_new_adapter_changes_no_bit_and_is_the_same_by_its_seed(dtype):
    base, policy = make_adapted(dtype, is_trained=False)
    assert torch.equal(logits(policy.model), logits(base))
    assert policy.fingerprint == "base"
    assert policy.base == ("somewhere/base", "base")

    weights = new_adapter_weights(dtype, seed=0)
    assert torch.equal(weights, new_adapter_weights(dtype, seed=0))
    assert not torch.equal(weights, new_adapter_weights(dtype, seed=1))
    assert not torch.equal(weights, new_adapter_weights(dtype, seed=2**64 + 1))  # torch's have at most 64 bits


@both_dtypes
def test_with_its_adapter_off_a_model_is_the_base_bit_for_bit(dtype):
    base, policy = make_adapted(dtype)
    reference = policy.without_adapter()
    base_logp = score(base).logp
    adapted_logp = score(policy.model).logp

    logp_with_adapter_off = score(reference.model).logp
    logp_on_again = score(policy.model).logp
    scores = score(policy.model, reference.model)
    expected_scores = score(policy.model, base)
    scores.logp.sum().backward()

    assert reference.fingerprint == "base"
    assert reference.folder is None
    assert torch.equal(logp_with_adapter_off, base_logp)
    assert not torch.allclose(adapted_logp, base_logp, atol=0.1)
    assert torch.equal(logp_on_again, adapted_logp)
    assert torch.equal(scores.vocab_kl, expected_scores.vocab_kl)
    assert float(scores.vocab_kl.detach().max()) > 0.01
    for name, weight in adapter.trained_weights(policy.model):
        assert weight.grad is not None, name


def test_a_model_seen_first_with_its_adapter_off_is_packed_as_any_other(capsys):
    _, policy = make_adapted()
    reference = policy.without_adapter()

    assert tree_attention.use_tree_attention(reference.model)
    assert policy.model.config._attn_implementation == tree_attention.NAME
    assert capsys.readouterr().err == ""


def test_a_layer_adds_alpha_over_rank_times_its_two_matrices_and_no_other_is_changed():
    targets = ["layers.1.mlp.up_proj", "layers.0.mlp.up_proj"]
    base, policy = make_adapted(targets=targets)
    trained_weights = dict(adapter.trained_weights(policy.model))
    base_weights = adapter.base_weights(policy.model)

    assert len(trained_weights) == 2 * len(targets)
    assert base_weights.keys() == dict(base.named_parameters()).keys()
    states = normal(3, 16, seed=2)
    for target in targets:
        name = f"model.{target}"
        down = trained_weights[f"{name}.lora_A.default.weight"]
        up = trained_weights[f"{name}.lora_B.default.weight"]
        expected = base.get_parameter(f"{name}.weight") + 8.0 / 4 * up @ down
        merged_weight = adapter.merged_weight(policy.model, f"{name}.weight", base_weights[f"{name}.weight"])
        layer = policy.model.get_submodule(name)
        torch.testing.assert_close(merged_weight, expected)
        torch.testing.assert_close(layer(states), states @ expected.T)


# ---- on disk


def test_saved_weights_have_the_adapter_in_them_and_others_load_it_alone(tmp_path):
    from peft import PeftModel

    base, policy = make_adapted()
    save_policy(policy, tmp_path)
    expected = logits(policy.model)
    assert float((expected - logits(base)).abs().max()) > 0.1

    merged = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    names = [name for name, _ in merged.named_parameters()]
    torch.testing.assert_close(logits(merged), expected, atol=1e-4, rtol=1e-4)
    assert "lora" not in " ".join(names)

    peft_model = PeftModel.from_pretrained(base, str(tmp_path / ADAPTER))
    config = peft_model.peft_config["default"]
    assert config.base_model_name_or_path == "somewhere/base"
    assert config.task_type == "CAUSAL_LM"
    assert config.r == 4
    assert config.lora_alpha == 8.0
    assert config.inference_mode is True
    assert torch.equal(logits(peft_model), expected)

    resumed = Policy(make_model(11), None, "base", torch.float32)
    add_adapter(resumed, seed=5, folder=tmp_path)
    assert torch.equal(logits(resumed.model), expected)
    assert resumed.fingerprint not in ("base", policy.fingerprint)
    assert resumed.without_adapter().fingerprint == "base"


def test_each_part_of_an_adapted_model_alone_gives_it_another_fingerprint(tmp_path_factory):
    """Wherever it lies: each has a folder of its own."""

    def fingerprint(base="base", alpha=8.0, *, is_trained=False):
        folder = tmp_path_factory.mktemp("model")
        _, policy = make_adapted(is_trained=is_trained)
        save_policy(policy, folder)
        loaded = Policy(make_model(11), None, base, torch.float32)
        add_adapter(loaded, alpha=alpha, folder=folder)
        return loaded.fingerprint

    fingerprints = {fingerprint(), fingerprint(base="other"), fingerprint(alpha=4.0), fingerprint(is_trained=True)}

    assert len(fingerprints) == 4
    assert fingerprint() in fingerprints


# ---- in an engine and in memory


@both_dtypes
def test_an_engine_is_compared_with_merged_weights_and_training_keeps_its_own(dtype):
    _, policy = make_adapted(dtype)
    weights = {name: weight.clone() for name, weight in policy.model.named_parameters()}
    adapted_logits = logits(policy.model)
    merged = make_model(11).to(dtype)
    merged.load_state_dict(dict(stored_weights(policy.model)), strict=False)  # lm_head is tied

    with adapter.with_merged_adapter(policy.model):
        assert torch.equal(logits(policy.model), logits(merged))
        with adapter.adapters_off(policy.model):
            assert torch.equal(logits(policy.model), logits(merged))

    torch.testing.assert_close(dict(policy.model.named_parameters()), weights, atol=0, rtol=0)
    assert torch.equal(logits(policy.model), adapted_logits)


def dtypes_of(policy):
    return set(values_of(policy.model.parameters(), "dtype"))


@both_dtypes
def test_weights_that_stay_as_they_are_are_loaded_in_the_precision_of_the_forward_pass(dtype):
    precision = str(dtype).removeprefix("torch.")
    lora = "model.lora={rank: 4, alpha: 8, targets: all-linear}"

    frozen = load_policy(config_of(lora, f"model.dtype={precision}").model, "cpu")
    trained = load_policy(config_of(f"model.dtype={precision}").model, "cpu")

    assert dtypes_of(frozen) == {dtype}
    assert dtypes_of(trained) == {torch.float32}
    # What both compute alike they share in the store.
    assert (frozen.numerics_key == trained.numerics_key) == (dtype is torch.float32)
    assert trained.numerics_key == {"precision": precision}
