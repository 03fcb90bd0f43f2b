"""Weights that go to an engine, and the comparison with transformers by which others' weights are noticed."""

import numpy as np
import torch

from tests import plain_scoring
from tests.conftest import make_model
from topr_exp.sampling.engine_weights import completion_logp
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens


def test_an_engine_is_compared_with_the_output_layer_that_it_has(policy):
    """In bfloat16 logits of 16 to 32 are 0.125 apart, and the engine's output layer is float32."""
    policy.model = make_model(20_000)  # in two slices
    policy.compute_dtype = torch.bfloat16
    prompt = [0, 5, 3]
    tokens = [3, 19_000, 5, 6]
    inputs = Inputs([(np.array(prompt), np.array(tokens))], policy.device)
    with policy.autocast(), torch.no_grad():
        expected = score_tokens(policy.model, inputs).logp[0]
        rounded_logp = plain_scoring.completion_logp(policy.model, prompt, tokens)

    torch.testing.assert_close(completion_logp(policy, prompt, tokens), expected, atol=1e-3, rtol=0)
    assert float((rounded_logp - expected).abs().max()) > 1e-2
