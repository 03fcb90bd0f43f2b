"""Weights that go to an engine, and the comparison with transformers by which others' weights are noticed."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests import plain_scoring
from tests.conftest import each_row, make_model
from topr_exp.sampling.engine_weights import can_share_gpu_memory, completion_logp, send_weights
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


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox"])
def test_weights_go_to_an_engine_by_their_names_on_disk(policy, model_type, tmp_path):
    """transformers calls `lm_head` what Pythia's files and vLLM call `embed_out`."""
    make_model(11, model_type=model_type, tie_word_embeddings=False).save_pretrained(tmp_path / "saved")
    policy.model = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert ("embed_out.weight" in stored) == (model_type == "gpt_neox")
    engine = Mock()

    send_weights(engine, policy)

    weights_sent = [call.kwargs for call in engine.ask.call_args_list if call.args == ("take",)]
    assert {weight["name"]: weight["shape"] for weight in weights_sent} == {
        name: list(weight.shape) for name, weight in stored.items()
    }
    for weight in weights_sent:
        assert weight["content"] == stored[weight["name"]].numpy().tobytes()


SYSTEMS = """
"6.8.0-45-generic" | "" | True
"6.8.0-45-generic" | "max_split_size_mb:512,expandable_segments:True" | False
"6.8.0-45-generic" | "backend:cudaMallocAsync" | False
"5.15.167.4-microsoft-standard-WSL2" | "" | False
"""


@each_row("kernel allocator can_share", SYSTEMS, literals=True)
def test_weights_are_sent_where_no_other_process_can_open_gpu_memory(kernel, allocator, can_share, monkeypatch):
    """NVIDIA's driver for WSL has no CUDA IPC."""
    monkeypatch.setattr("platform.release", lambda: kernel)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", allocator)

    assert can_share_gpu_memory() is can_share
