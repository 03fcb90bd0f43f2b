"""Packed trees: the same log-probabilities and gradients as padded rows and as sequences one by one."""

from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion
from transformers import LlamaForCausalLM

from tests.conftest import each_row, make_model
from tests.plain_scoring import completion_logp
from topr_exp.training import tree_attention
from topr_exp.training.hidden_states import Inputs, padded_input, states_in_layout
from topr_exp.training.layers import recomputed_layers
from topr_exp.training.logprobs import TokenScorer
from topr_exp.training.output_layer import OutputLayer
from topr_exp.training.packing import Layout, ModelShape, build_tree, cheapest_layout, padded_cost
from topr_exp.training.tree_attention import MODEL_TYPES, NAME, use_tree_attention

CPU = torch.device("cpu")
LAYOUTS = {
    "packed": {"share_prefix": False, "share_prompts": False},
    "prefix": {"share_prefix": True, "share_prompts": False},
    "prompts": {"share_prefix": False, "share_prompts": True},
    "both": {"share_prefix": True, "share_prompts": True},
}


def draws(prompts, completions, seed=0):
    """Completions of 1 to 8 tokens of each prompt, in a random order."""
    rng = np.random.default_rng(seed)
    sequences = []
    for prompt in prompts * completions:
        length = rng.integers(1, 9)
        completion = rng.integers(0, 11, length).astype(np.int32)
        sequences.append((np.array(prompt, np.int32), completion))
    order = rng.permutation(len(sequences))
    return [sequences[index] for index in order]


SHOTS = [0, 3, 4, 5, 6, 7, 8, 9, 10, 3, 3]
PROMPTS = [[3, 4], [5], [6, 7, 8]]
PROMPTS_AFTER_SHOTS = [[*SHOTS, 4], [*SHOTS, 5, 6], [*SHOTS, 7, 7, 7]]
SHARED = draws(PROMPTS_AFTER_SHOTS, 3)
CASES = {
    "nothing shared": draws(PROMPTS, 1),
    "a common prefix": draws(PROMPTS_AFTER_SHOTS, 1),
    "several completions of each prompt": draws(PROMPTS, 3),
    "both": SHARED,
    "one prompt is the prefix of the others": draws([SHOTS, [*SHOTS, 5, 6], [*SHOTS, 7]], 2),
    "one completion of one prompt": draws([[*SHOTS, 4], [*SHOTS, 5, 6]], 3) + draws([[*SHOTS, 9]], 1),
    "one sequence": draws([SHOTS], 1),
}


def make_smooth_model(seed=0, **changes):
    """A model whose gradients are not so large that float32's rounding is."""
    return make_model(11, seed, initializer_range=0.2, **changes)


def tree_of(model, sequences, layout):
    """The tree of a layout, for which the model gets its attention; None of "padded"."""
    if layout == "padded":
        return None
    assert use_tree_attention(model)
    return build_tree(sequences, **LAYOUTS[layout])


class Outcome(NamedTuple):
    """Log-probabilities of all tokens, and the gradient of a sum that weights each of them differently."""

    logp: torch.Tensor
    gradient: torch.Tensor


def with_gradient(model, logp):
    coefficients = torch.arange(1, len(logp) + 1)
    total = (coefficients * logp).sum()
    gradients = torch.autograd.grad(total, list(model.parameters()))
    flat_gradients = [gradient.flatten() for gradient in gradients]
    return Outcome(logp.detach(), torch.cat(flat_gradients))


def scored(model, sequences, layout, *, recompute=False):
    """The outcome in a layout."""
    inputs = Inputs(sequences, CPU)
    tree = tree_of(model, sequences, layout)
    with recomputed_layers(model, recompute):
        hidden = states_in_layout(model, inputs, tree)
    score = TokenScorer(inputs, None, entropy=False)
    (logp,) = OutputLayer(model).scores(hidden, score)
    return with_gradient(model, logp)


def one_by_one(model, sequences):
    """The outcome from the full logits of each sequence alone."""
    logps = [completion_logp(model, prompt, completion) for prompt, completion in sequences]
    return with_gradient(model, torch.cat(logps))


def assert_same(outcome, expected, tolerance=1e-6):
    """Equal to `tolerance` relative to the largest log-probability and the largest slope."""
    for values, expected_values in zip(outcome, expected, strict=True):
        largest = max(float(expected_values.abs().max()), 1.0)
        largest_error = float((values - expected_values).abs().max())
        assert largest_error <= tolerance * largest


@pytest.fixture
def model():
    return make_smooth_model()


@pytest.mark.parametrize("layout", ["padded", *LAYOUTS])
@pytest.mark.parametrize("case", CASES)
def test_every_layout_equals_the_sequences_one_by_one(model, case, layout):
    assert_same(scored(model, CASES[case], layout), one_by_one(model, CASES[case]))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_trees_are_exact_for_every_type_of_model_that_gets_them(model_type):
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    model = make_smooth_model(model_type=model_type, sliding_window=None, **heads)

    outcome = scored(model, SHARED, "both")

    assert model.config._attn_implementation == NAME
    assert_same(outcome, one_by_one(model, SHARED))


@pytest.mark.parametrize("layout", ["padded", "both"])
def test_gradient_checkpointing_changes_nothing(model, layout):
    expected = scored(model, SHARED, layout)
    calls = []
    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))

    outcome = scored(model, SHARED, layout, recompute=True)

    assert len(calls) == 2  # once forward, once more in the backward pass
    assert_same(outcome, expected, 0)
    assert not any(module.training for module in model.modules())


def test_in_bfloat16_the_tree_is_as_far_from_float32_as_padded_rows_are(model):
    exact = one_by_one(model, SHARED).logp
    errors = {}
    for layout in ("padded", "both"):
        with torch.autocast("cpu", torch.bfloat16):
            logp = scored(model, SHARED, layout).logp
        errors[layout] = float((logp - exact).abs().mean())

    assert 0 < errors["both"] < 2 * errors["padded"] < 0.1


# ---- on a GPU


# What queries, keys and values are kept in | a mask | torch's version | the GPU's generation | how many are copied
KERNELS = """
"bfloat16" | None | "2.13.0" | 8 | 0
"float32" | None | "2.14.0" | 9 | 2
"bfloat16" | True | "2.13.0" | 8 | 2
"bfloat16" | True | "2.13.0" | 9 | 0
"bfloat16" | True | "2.14.0" | 8 | 0
"""


@each_row("dtype mask version capability copies", KERNELS, literals=True)
def test_a_gpu_copies_grouped_keys_and_values_where_no_kernel_takes_them(
    monkeypatch, dtype, mask, version, capability, copies
):
    """Of Llama 3's 32 heads of queries and 8 of keys; stand-ins for tensors on a GPU."""
    kernel = Mock()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    tree_attention.takes_grouped_heads.cache_clear()
    on_gpu = {"is_cuda": True, "device": "cuda:0", "dtype": getattr(torch, dtype)}
    queries = Mock(shape=(2, 32, 64, 128), **on_gpu)
    keys = Mock(shape=(2, 8, 64, 128), **on_gpu)
    keys.repeat_interleave.return_value = "copied"

    tree_attention.attend(queries, keys, keys, mask, None)

    assert kernel.call_args.args[1:].count("copied") == copies
    assert kernel.call_args.kwargs["enable_gqa"] is (copies == 0)


@pytest.mark.parametrize("context, width", [(128, 128), (100, 97)])
def test_padding_on_a_gpu_ends_before_the_context(context, width):
    """Where a model's table of positions may end."""
    sequence = (np.zeros(90, np.int32), np.zeros(7, np.int32))

    model_input = padded_input(Inputs([sequence], torch.device("cuda")), context)

    assert model_input.ids.shape == (1, width)


# ---- the layout


SHAPE = ModelShape(164_138, 128)


@pytest.mark.parametrize(
    "sequences, levels",
    [
        (draws([[*SHOTS * 80, token] for token in range(3, 11)], 1), [1, 8]),
        (draws([[token] * 40 for token in range(3, 7)], 16), [4, 64]),
    ],
    ids=["few shots", "groups"],
)
def test_a_shared_part_is_laid_out_once_where_that_is_cheaper(sequences, levels):
    layout = cheapest_layout(sequences, SHAPE)

    assert [len(level) for level in layout.tree.levels] == levels
    assert layout.cost < 0.5 * padded_cost(sequences, SHAPE)


def test_equal_lengths_without_a_shared_part_are_padded():
    completion = np.arange(20) % 11
    sequences = [(np.arange(start, start + 30) % 11, completion) for start in range(8)]

    assert cheapest_layout(sequences, SHAPE) == Layout(padded_cost(sequences, SHAPE), None)


UNFIT = """
"_attn_implementation" | "eager" | "its attention is eager, where sdpa is needed"
"model_type" | "gpt_oss" | "models of type gpt_oss are not among"
"layer_types" | ["full_attention", "sliding_attention"] | "does not reach back"
"""  # settings of models


@each_row("name value reason", UNFIT, literals=True)
def test_a_model_for_which_trees_are_not_exact_is_padded_with_one_warning(model, name, value, reason, capsys):
    setattr(model.config, name, value)

    assert [use_tree_attention(model), use_tree_attention(model)] == [False, False]
    assert capsys.readouterr().err.count(reason) == 1


class OwnLlama(LlamaForCausalLM):
    """As a folder's own code has it: of a known type, and with layers that may do as they like."""


def test_a_model_of_a_folders_own_code_is_padded_whatever_type_it_names(model, capsys):
    model.__class__ = OwnLlama

    assert not use_tree_attention(model)
    assert "the code of OwnLlama is not transformers'" in capsys.readouterr().err
