"""Packed trees: the same log-probabilities and gradients as padded rows and as sequences one by one."""

from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.torch_version import TorchVersion
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import make_model
from topr_exp.training import tree_attention
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.packing import Layout, Sequences, build_tree, cheapest_layout, padded_cost
from topr_exp.training.tree_attention import MODEL_TYPES, NAME, padded_levels, use_tree_attention, why_not_exact

CPU = torch.device("cpu")
LAYOUTS = {
    "packed": {"share_prefix": False, "share_prompts": False},
    "prefix": {"share_prefix": True, "share_prompts": False},
    "prompts": {"share_prefix": False, "share_prompts": True},
    "both": {"share_prefix": True, "share_prompts": True},
}


def draws(prompts: list[list[int]], completions: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Completions of 1 to 8 tokens of each prompt, in a random order."""
    rng = np.random.default_rng(seed)
    sequences = []
    for prompt in prompts:
        for _ in range(completions):
            completion = rng.integers(0, 11, rng.integers(1, 9))
            sequences.append((np.array(prompt, dtype=np.int32), completion.astype(np.int32)))
    return [sequences[index] for index in rng.permutation(len(sequences))]


SHOTS = [0, 3, 4, 5, 6, 7, 8, 9, 10, 3, 3]
CASES = {
    "nothing shared": draws([[3, 4], [5], [6, 7, 8]], 1),
    "a common prefix": draws([[*SHOTS, 4], [*SHOTS, 5, 6], [*SHOTS, 7, 7, 7]], 1),
    "several completions of each prompt": draws([[3, 4], [5], [6, 7, 8]], 3),
    "both": draws([[*SHOTS, 4], [*SHOTS, 5, 6], [*SHOTS, 7, 7, 7]], 3),
    "one prompt is the prefix of the others": draws([SHOTS, [*SHOTS, 5, 6], [*SHOTS, 7]], 2),
    "a single prompt": draws([SHOTS], 4),
    "one completion of one prompt": draws([[*SHOTS, 4], [*SHOTS, 5, 6]], 3) + draws([[*SHOTS, 9]], 1),
    "one sequence": draws([SHOTS], 1),
}


def use_layout(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lay sequences out in one way, whatever it costs."""

    def layout(sequences: Sequences, *sizes: int) -> Layout:
        tree = None if name == "padded" else build_tree(sequences, **LAYOUTS[name])
        return Layout(0.0, tree)

    monkeypatch.setattr(tree_attention, "cheapest_layout", layout)


class Outcome(NamedTuple):
    """Log-probabilities by sequence, and the gradient of a sum that weights every token differently."""

    logp: list[Tensor]
    gradients: list[Tensor]


def with_gradient(model: Any, logp: list[Tensor]) -> Outcome:
    total = torch.zeros(())
    for index, values in enumerate(logp, 1):
        total = total + (index * values * torch.arange(1, len(values) + 1)).sum()
    return Outcome([values.detach() for values in logp], list(torch.autograd.grad(total, list(model.parameters()))))


def scored(model: Any, sequences: Sequences, **options: Any) -> Outcome:
    """The outcome by `score_tokens`."""
    logp = score_tokens(model, Inputs(sequences, CPU), **options).logp
    return with_gradient(model, [row[: len(pair[1])] for row, pair in zip(logp, sequences, strict=True)])


def one_by_one(model: Any, sequences: Sequences) -> Outcome:
    """The outcome from the full logits of each sequence alone."""
    all_logp = []
    for prompt, completion in sequences:
        ids = torch.tensor(np.concatenate([prompt, completion]).astype(np.int64))[None]
        logp = model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        all_logp.append(logp.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1))
    return with_gradient(model, all_logp)


def assert_same(outcome: Outcome, expected: Outcome, tolerance: float = 1e-6) -> None:
    """Equal to `tolerance` relative to the largest log-probability and the largest gradient."""
    for tensors, references in zip(outcome, expected, strict=True):
        largest = max(float(reference.abs().max()) for reference in references)
        for tensor, reference in zip(tensors, references, strict=True):
            assert float((tensor - reference).abs().max()) <= tolerance * max(largest, 1.0)


@pytest.mark.parametrize("step", [1, 5])  # rows as long as they are, and in multiples as on a GPU
@pytest.mark.parametrize("layout", ["padded", *LAYOUTS])
@pytest.mark.parametrize("case", CASES)
def test_every_layout_equals_the_sequences_one_by_one(monkeypatch, case, layout, step):
    model = make_model(11, initializer_range=0.2)
    monkeypatch.setitem(tree_attention.WIDTHS, "cpu", step)
    use_layout(monkeypatch, layout)
    assert_same(scored(model, CASES[case]), one_by_one(model, CASES[case]))


@pytest.mark.parametrize(
    ("dtype", "mask", "version", "capability", "copied"),
    [
        (torch.bfloat16, None, "2.13.0", 8, 0),
        (torch.float32, None, "2.14.0", 9, 2),
        (torch.bfloat16, True, "2.13.0", 8, 2),
        (torch.bfloat16, True, "2.13.0", 9, 0),
        (torch.bfloat16, True, "2.14.0", 8, 0),
    ],
)
def test_a_gpu_copies_grouped_keys_and_values_where_no_kernel_takes_them(
    monkeypatch, dtype, mask, version, capability, copied
):
    """Of Llama 3's 32 heads of queries and 8 of keys; stand-ins for tensors on a GPU."""
    kernel = Mock()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    tree_attention.takes_grouped_heads.cache_clear()

    def gpu_tensor(heads: int) -> Mock:
        tensor = Mock(shape=(2, heads, 64, 128), is_cuda=True, device="cuda:0", dtype=dtype)
        tensor.repeat_interleave.return_value = "copied"
        return tensor

    tree_attention.attend(gpu_tensor(32), gpu_tensor(8), gpu_tensor(8), mask, None)
    assert kernel.call_args.args[1:].count("copied") == copied
    assert kernel.call_args.kwargs["enable_gqa"] is (not copied)


@pytest.mark.extended
def test_a_gpu_sees_few_shapes_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring batches of 32 with lengths like GSM8K's: 8 worked examples, questions, answers."""
    rng = np.random.default_rng(0)
    shots = np.zeros(900, dtype=np.int32)

    def random_batch() -> list[tuple[np.ndarray, np.ndarray]]:
        sequences = []
        for token in range(2):
            prompt = np.append(shots, np.full(rng.integers(40, 250), token, dtype=np.int32))
            for _ in range(16):
                length = int(np.clip(rng.lognormal(4.8, 0.5), 10, 512))
                sequences.append((prompt, np.full(length, 3, dtype=np.int32)))
        return sequences

    def count_shapes(step: int) -> int:
        monkeypatch.setitem(tree_attention.WIDTHS, "cpu", step)
        shapes = set()
        for _ in range(200):
            tree = build_tree(random_batch(), share_prefix=True, share_prompts=True)
            for level in padded_levels(tree, CPU, torch.float32):
                shapes.add((level.shape, None if level.mask is None else level.mask.shape[-1]))
        return len(shapes)

    assert count_shapes(1) > 300
    assert count_shapes(64) < 50


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_trees_are_exact_for_every_type_of_model_that_gets_them(monkeypatch: pytest.MonkeyPatch, model_type) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 11, "head_dim": 4, "max_position_embeddings": 64}
    config = AutoConfig.for_model(model_type, **shape, initializer_range=0.2, pad_token_id=2)
    config.sliding_window = None
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    assert why_not_exact(model) is None
    use_layout(monkeypatch, "both")
    outcome = scored(model, CASES["both"])
    assert model.config._attn_implementation == NAME
    assert_same(outcome, one_by_one(model, CASES["both"]))


@pytest.mark.parametrize("layout", ["padded", "both"])
def test_gradient_checkpointing_changes_nothing(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    model = make_model(11, initializer_range=0.2)
    use_layout(monkeypatch, layout)
    expected = scored(model, CASES["both"])
    calls: list[int] = []
    handle = model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    outcome = scored(model, CASES["both"], recompute=True)
    handle.remove()
    assert len(calls) == 2  # once forward, once more in the backward pass
    assert_same(outcome, expected, 0)
    assert not any(module.training for module in model.modules())


def test_in_bfloat16_the_tree_is_as_far_from_float32_as_padded_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(11, initializer_range=0.2)
    exact = torch.cat(one_by_one(model, CASES["both"]).logp)
    errors = {}
    for layout in ("padded", "both"):
        use_layout(monkeypatch, layout)
        with torch.autocast("cpu", torch.bfloat16):
            logp = torch.cat(scored(model, CASES["both"]).logp)
        errors[layout] = float((logp - exact).abs().mean())
    assert 0 < errors["both"] < 2 * errors["padded"] < 0.1


def test_each_token_of_a_shared_part_stands_in_the_row_once() -> None:
    tree = build_tree(CASES["both"], **LAYOUTS["both"])
    completion_tokens = sum(len(completion) for _, completion in CASES["both"])
    assert len(tree.ids) == len(tree.positions) == len(SHOTS) + 1 + 2 + 3 + completion_tokens
    assert [len(level) for level in tree.levels] == [1, 3, 9]
    for end, start, (prompt, completion) in zip(tree.prompt_ends, tree.completion_starts, CASES["both"], strict=True):
        assert tree.ids[end] == prompt[-1]
        assert tree.positions[end] == len(prompt) - 1
        assert tree.ids[start : start + len(completion)].tolist() == completion.tolist()
        assert tree.positions[start] == len(prompt)


WEIGHTS_OF_LAYER, ATTENTION_SIZE = 164_138, 128


@pytest.mark.parametrize(
    ("sequences", "levels"),
    [
        (draws([[*SHOTS * 80, token] for token in range(3, 11)], 1), [1, 8]),
        (draws([[token] * 40 for token in range(3, 7)], 16), [4, 64]),
    ],
    ids=["few shots", "groups"],
)
def test_a_shared_part_is_laid_out_once_where_that_is_cheaper(sequences: Sequences, levels: list[int]) -> None:
    cost, tree = cheapest_layout(sequences, WEIGHTS_OF_LAYER, ATTENTION_SIZE)
    assert tree is not None
    assert [len(level) for level in tree.levels] == levels
    assert cost < 0.5 * padded_cost(sequences, WEIGHTS_OF_LAYER, ATTENTION_SIZE)


def test_equal_lengths_without_a_shared_part_are_padded() -> None:
    sequences = [(np.arange(start, start + 30) % 11, np.arange(20) % 11) for start in range(8)]
    cost = padded_cost(sequences, WEIGHTS_OF_LAYER, ATTENTION_SIZE)
    assert cheapest_layout(sequences, WEIGHTS_OF_LAYER, ATTENTION_SIZE) == Layout(cost, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"_attn_implementation": "eager"}, "model.attention=eager"),
        ({"model_type": "gpt_oss"}, "models of type gpt_oss are not among"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "does not reach back"),
    ],
)
def test_a_model_for_which_trees_are_not_exact_is_padded_with_one_warning(changes, reason, capsys):
    model = make_model(11)
    for name, value in changes.items():
        setattr(model.config, name, value)
    assert not use_tree_attention(model)
    assert not use_tree_attention(model)
    assert capsys.readouterr().err.count(reason) == 1


def test_a_model_still_generates_and_is_saved_without_our_attention(tmp_path: Any) -> None:
    model = make_model(11)
    prompts = torch.tensor([[0, 3, 5], [2, 2, 4]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(prompts, **options)
    assert use_tree_attention(model)
    assert torch.equal(expected, model.generate(prompts, **options))
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
