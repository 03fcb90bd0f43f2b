"""Weights that go to an engine, and the comparison with transformers by which others' weights are noticed."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.conftest import make_model
from topr_exp.sampling import engine_weights
from topr_exp.sampling.engine_weights import completion_logp
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens


def test_an_engine_is_compared_with_the_output_layer_that_it_has(policy):
    """In bfloat16 logits of 16 to 32 are 0.125 apart, and the engine's output layer is float32."""
    policy.model = make_model(20_000)  # in two slices
    policy.compute_dtype = torch.bfloat16
    prompt, tokens = [0, 5, 3], [3, 19_000, 5, 6]
    inputs = Inputs([(np.array(prompt), np.array(tokens))], policy.device)
    with policy.autocast(), torch.no_grad():
        expected = score_tokens(policy.model, inputs).logp[0]

    torch.testing.assert_close(completion_logp(policy, prompt, tokens), expected, atol=1e-3, rtol=0)
    policy.float32_head = False
    with torch.no_grad():
        rounded_logp = completion_logp(policy, prompt, tokens)
    assert float((rounded_logp - expected).abs().max()) > 1e-2


def tf32(values):
    """Numbers with 10 bits behind the leading one, rounded half to even."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def test_the_tolerance_separates_products_of_tf32_from_those_of_float32():
    """The logits are spread as a trained model's."""
    torch.manual_seed(0)
    shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=2000, **shape)).eval()
    model.lm_head.weight.data *= 15
    tokens = torch.randint(0, 2000, (2, 64))

    def log_probabilities():
        with torch.no_grad():
            logits = model(tokens).logits.float()
        return logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])

    float32 = log_probabilities()
    model.double()
    float64 = log_probabilities()
    model.float()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data = tf32(module.weight.data)
            module.register_forward_pre_hook(lambda module, inputs: (tf32(inputs[0]),))

    tolerance = engine_weights.TOLERANCE["float32"]
    assert float((log_probabilities() - float32).abs().mean()) > 2 * tolerance
    assert float((float64 - float32).abs().mean()) < tolerance / 50
