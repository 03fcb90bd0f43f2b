"""An adapter beside frozen weights: what it changes, what it leaves, and what of it others can load."""

import copy
from array import array
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.conftest import config_of, make_model, needs_peft, refused
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models import adapter
from topr_exp.models.model_folder import ADAPTER
from topr_exp.models.policy import Policy, load_policy, save_policy, stored_weights
from topr_exp.sampling.engine_weights import check_log_probabilities
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.types import ConfigError, TOPRError

pytestmark = needs_peft

BOTH = [torch.float32, torch.bfloat16]
IDS = torch.tensor([[0, 5, 3, 7, 9, 4], [0, 4, 4, 8, 6, 10]])
SEQUENCES = [(line[:3].numpy(), line[3:].numpy()) for line in IDS]


def adapted(dtype: torch.dtype = torch.float32, targets: Any = ALL_LINEAR, trained: bool = True) -> tuple[Any, Policy]:
    """A model, and a policy that trains an adapter on the same; `trained`: with numbers in it."""
    base = make_model(11).to(dtype)
    policy = Policy(copy.deepcopy(base), None, "base", dtype)
    policy.add_adapter(LoRA(4, 8.0, targets), 0, base_path="somewhere/base", trained_folder=None)
    if trained:
        generator = torch.Generator().manual_seed(1)
        for _, weight in adapter.trained_weights(policy.model):
            weight.data = 0.3 * torch.randn(weight.shape, generator=generator)
    return base, policy


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return out.float()


def logp(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return score_tokens(model, Inputs(SEQUENCES, torch.device("cpu")), entropy=True).logp


def test_an_adapter_that_could_not_be_merged_is_refused() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 11}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads, num_experts=4, num_experts_per_tok=2))
    with refused("an adapter of Qwen3MoeForCausalLM can't be merged", ConfigError):
        adapter.add_adapter(model, LoRA(4, 8.0, ALL_LINEAR), 0)


@pytest.mark.parametrize("targets", [ALL_LINEAR, "q_proj", ["layers.1.mlp.up_proj", "v_proj"]])
def test_only_the_adapter_is_trained_in_float32_and_the_rest_stays_as_it_is(targets: Any) -> None:
    base, policy = adapted(torch.bfloat16, targets)
    names = dict(adapter.trained_weights(policy.model))
    assert names
    assert all(".lora_" in name and weight.dtype is torch.float32 for name, weight in names.items())
    kept = adapter.base_weights(policy.model)
    assert kept.keys() == dict(base.named_parameters()).keys()
    for name, weight in base.named_parameters():
        assert kept[name].dtype is torch.bfloat16
        assert torch.equal(kept[name], weight)


@pytest.mark.parametrize("dtype", BOTH)
def test_a_new_adapter_changes_no_bit_and_is_the_same_by_its_seed(dtype: torch.dtype) -> None:
    base, policy = adapted(dtype, trained=False)
    assert torch.equal(logits(policy.model), logits(base))
    assert (policy.fingerprint, policy.base) == ("base", ("somewhere/base", "base"))

    def drawn(seed: int) -> list[torch.Tensor]:
        other = make_model(11).to(dtype)
        torch.manual_seed(7 + seed)  # of no consequence
        state = torch.get_rng_state()
        adapter.add_adapter(other, LoRA(4, 8.0, ALL_LINEAR), seed)
        assert torch.equal(torch.get_rng_state(), state)
        return [weight for _, weight in adapter.trained_weights(other)]

    ours = [weight for _, weight in adapter.trained_weights(policy.model)]
    assert all(map(torch.equal, ours, drawn(0)))
    assert not all(map(torch.equal, ours, drawn(1)))


@pytest.mark.parametrize("dtype", BOTH)
def test_with_its_adapter_off_a_model_is_the_base_bit_for_bit(dtype: torch.dtype) -> None:
    base, policy = adapted(dtype)
    reference = policy.without_adapter()
    assert reference.fingerprint == "base"
    assert reference.folder is None
    expected, trained = logp(base), logp(policy.model)
    assert torch.equal(logp(reference.model), expected)
    assert not torch.allclose(trained, expected, atol=0.1)
    assert torch.equal(logp(policy.model), trained)  # it is on again
    whole = score_tokens(policy.model, Inputs(SEQUENCES, torch.device("cpu")), reference=reference.model)
    other = score_tokens(policy.model, Inputs(SEQUENCES, torch.device("cpu")), reference=base)
    assert torch.equal(whole.vocab_kl, other.vocab_kl)  # type: ignore[arg-type]
    assert float(whole.vocab_kl.detach().max()) > 0.01  # type: ignore[union-attr]
    whole.logp.sum().backward()
    assert all(weight.grad is not None for _, weight in adapter.trained_weights(policy.model))


def test_saved_weights_have_the_adapter_in_them_and_others_load_it_alone(tmp_path: Path) -> None:
    from peft import PeftModel

    base, policy = adapted()
    policy.tokenizer = Mock()
    save_policy(policy, tmp_path / "model")
    expected = logits(policy.model)
    stored = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert not any("lora" in name for name, _ in stored.named_parameters())
    torch.testing.assert_close(logits(stored), expected, atol=1e-4, rtol=1e-4)
    assert float((expected - logits(base)).abs().max()) > 0.1
    beside = PeftModel.from_pretrained(base, str(tmp_path / "model" / ADAPTER))
    assert beside.peft_config["default"].base_model_name_or_path == "somewhere/base"
    torch.testing.assert_close(logits(beside), expected, atol=0, rtol=0)
    again = Policy(make_model(11), None, "base", torch.float32)
    again.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 5, base_path="somewhere/base", trained_folder=tmp_path / "model")
    assert torch.equal(logits(again.model), expected)
    assert again.fingerprint not in ("base", policy.fingerprint)
    assert again.without_adapter().fingerprint == "base"


def test_a_layer_adds_alpha_over_rank_times_its_two_matrices() -> None:
    base, policy = adapted(targets="q_proj")
    weights = dict(policy.model.named_parameters())
    name = "model.layers.1.self_attn.q_proj"
    down, up = (weights[f"{name}.lora_{matrix}.default.weight"].detach() for matrix in "AB")
    assert (down.shape[0], up.shape[1]) == (4, 4)
    expected = base.get_parameter(f"{name}.weight") + 8.0 / 4 * up @ down
    found = adapter.merged_weight(policy.model, f"{name}.weight", adapter.base_weights(policy.model)[f"{name}.weight"])
    torch.testing.assert_close(found, expected)
    states = torch.randn(3, 16, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(policy.model.get_submodule(name)(states), states @ expected.T)


def test_each_part_of_an_adapted_model_alone_gives_it_another_fingerprint(tmp_path: Path) -> None:
    def fingerprint(base: str = "base", alpha: float = 8.0, changed: bool = False) -> str:
        policy = Policy(make_model(11), Mock(), "base", torch.float32)
        policy.add_adapter(LoRA(4, 8.0, ALL_LINEAR), 0, base_path="somewhere/base", trained_folder=None)
        if changed:
            dict(adapter.trained_weights(policy.model)).popitem()[1].data[0, 0] += 1
        folder = tmp_path / f"{base}-{alpha}-{changed}-{len(list(tmp_path.iterdir()))}"
        save_policy(policy, folder)
        again = Policy(make_model(11), None, base, torch.float32)
        again.add_adapter(LoRA(4, alpha, ALL_LINEAR), 0, base_path="somewhere/base", trained_folder=folder)
        return again.fingerprint

    assert fingerprint() == fingerprint()
    assert len({fingerprint(), fingerprint(base="other"), fingerprint(alpha=4.0), fingerprint(changed=True)}) == 4


class Merged:
    """An engine that has the adapter in its weights: log-probabilities of given completions by them."""

    def __init__(self, policy: Policy) -> None:
        self.model = make_model(11).to(policy.compute_dtype)
        self.model.load_state_dict(dict(stored_weights(policy.model)), strict=False)  # lm_head is tied

    def ask(self, do: str, *, prompts: list[list[int]], n: int, **settings: Any) -> dict[str, Any]:
        tokens = [10, 4, 7]
        inputs = torch.tensor([[*prompt, *tokens] for prompt in prompts])
        found = self.model(input_ids=inputs).logits[:, 2:-1].float().log_softmax(-1)
        logp = found.gather(-1, inputs[:, 3:, None]).repeat_interleave(n, 0).numpy()
        each = iter(logp.astype(np.float32)[..., 0])
        return {"completions": [[(array("i", tokens), next(each), "length") for _ in range(n)] for _ in prompts]}


@pytest.mark.parametrize("dtype", BOTH)
def test_an_engine_is_compared_with_the_weights_it_has_and_training_keeps_its_own(dtype: torch.dtype) -> None:
    _, policy = adapted(dtype)
    policy.tokenizer = Mock(eos_token_id=1)
    before, trained = {name: weight.clone() for name, weight in policy.model.named_parameters()}, logits(policy.model)
    engine = Merged(policy)
    with adapter.with_merged_adapter(policy.model):
        assert torch.equal(logits(policy.model), logits(engine.model))
    check_log_probabilities(engine, policy, [[0, 5, 3], [0, 4, 4]])  # type: ignore[arg-type]
    engine.model.model.norm.weight.data.mul_(-1)
    with pytest.raises(TOPRError, match="another model"):
        check_log_probabilities(engine, policy, [[0, 5, 3]])  # type: ignore[arg-type]
    assert all(torch.equal(weight, before[name]) for name, weight in policy.model.named_parameters())
    assert torch.equal(logits(policy.model), trained)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_stay_as_they_are_are_loaded_in_the_precision_of_the_forward_pass(dtype: str) -> None:
    asked = ["model.lora={rank: 4, alpha: 8, targets: all-linear}", f"model.dtype={dtype}"]
    frozen, full = (load_policy(config_of(*settings).model, "cpu") for settings in (asked, asked[1:]))
    assert {str(weight.dtype) for weight in frozen.model.parameters()} == {f"torch.{dtype}"}
    assert {weight.dtype for weight in full.model.parameters()} == {torch.float32}
    # What both compute alike they share in the store.
    assert (frozen.numerics_key == full.numerics_key) == (dtype == "float32")
    assert full.numerics_key == {"precision": dtype}
