"""Packed trees: the same log-probabilities and gradients as padded rows and as sequences one by one."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import make_model
from topr_exp.training import tree_attention
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.packing import Layout, build_tree, cheapest_layout, padded_cost
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
    rows = [(np.array(prompt, dtype=np.int32), rng.integers(0, 11, rng.integers(1, 9)).astype(np.int32))
            for prompt in prompts for _ in range(completions)]  # fmt: skip
    return [rows[i] for i in rng.permutation(len(rows))]


SHOTS = [0, 3, 4, 5, 6, 7, 8, 9, 10, 3, 3]
CASES = {
    "nothing shared": draws([[3, 4], [5], [6, 7, 8]], 1),
    "a common prefix": draws([[*SHOTS, 4], [*SHOTS, 5, 6], [*SHOTS, 7, 7, 7]], 1),
    "several completions of each prompt": draws([[3, 4], [5], [6, 7, 8]], 3),
    "both": draws([[*SHOTS, 4], [*SHOTS, 5, 6], [*SHOTS, 7, 7, 7]], 3),
    "one prompt is the prefix of the others": draws([SHOTS, [*SHOTS, 5, 6], [*SHOTS, 7]], 2),
    "a single prompt": draws([SHOTS], 4),
    "some prompts have one completion": draws([[*SHOTS, 4], [*SHOTS, 5, 6]], 3) + draws([[*SHOTS, 9]], 1),
    "one sequence": draws([SHOTS], 1),
}


def use(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """Lay sequences out in one way whatever it costs."""
    build = (lambda s: None) if layout == "padded" else (lambda s: build_tree(s, **LAYOUTS[layout]))
    monkeypatch.setattr(tree_attention, "cheapest_layout", lambda sequences, *size: Layout(0.0, build(sequences)))


def with_gradient(model: Any, lines: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probabilities by sequence, and the gradient of a sum that weights every token differently."""
    total = sum(((i + 1) * line * torch.arange(1, len(line) + 1)).sum() for i, line in enumerate(lines))
    return [line.detach() for line in lines], list(torch.autograd.grad(total, list(model.parameters())))


def outcome(model: Any, data: list[Any], **options: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Both as `score_tokens` gives them."""
    logp = score_tokens(model, Inputs(data, CPU), **options).logp
    return with_gradient(model, [line[: len(completion)] for line, (_, completion) in zip(logp, data, strict=True)])


def one_by_one(model: Any, data: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The same from the full logits of each sequence alone."""
    lines = []
    for prompt, completion in data:
        ids = torch.tensor(np.concatenate([prompt, completion]).astype(np.int64))[None]
        logp = model(ids).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        lines.append(logp.gather(-1, ids[0, len(prompt) :, None]).squeeze(-1))
    return with_gradient(model, lines)


def assert_same(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Equal to `tolerance` relative to the largest log-probability and the largest gradient."""
    for mine, theirs in zip(found, expected, strict=True):
        largest = max(float(tensor.abs().max()) for tensor in theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert float((a - b).abs().max()) <= tolerance * max(largest, 1.0)


@pytest.mark.parametrize("step", [1, 5])  # rows as long as they are, and in multiples as on a GPU
@pytest.mark.parametrize("layout", ["padded", *LAYOUTS])
@pytest.mark.parametrize("case", CASES)
def test_every_layout_equals_the_sequences_one_by_one(monkeypatch, case, layout, step):
    model = make_model(11, initializer_range=0.2)
    monkeypatch.setitem(tree_attention.WIDTHS, "cpu", step)
    use(monkeypatch, layout)
    assert_same(outcome(model, CASES[case]), one_by_one(model, CASES[case]))


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
    seen = Mock()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", seen)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    tree_attention.takes_grouped_heads.cache_clear()
    query, key, value = (
        Mock(
            shape=(2, heads, 64, 128),
            is_cuda=True,
            device="cuda:0",
            dtype=dtype,
            **{"repeat_interleave.return_value": "copied"},
        )
        for heads in (32, 8, 8)
    )
    tree_attention.attend(query, key, value, mask, None)
    assert seen.call_args.args[1:].count("copied") == copied
    assert seen.call_args.kwargs["enable_gqa"] is (not copied)


@pytest.mark.extended
def test_a_gpu_sees_few_shapes_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scoring batches of 32 with lengths like GSM8K's: 8 worked examples, questions, answers."""
    rng = np.random.default_rng(0)
    shots = np.zeros(900, dtype=np.int32)

    def shapes(step: int) -> int:
        monkeypatch.setitem(tree_attention.WIDTHS, "cpu", step)
        seen = set()
        for _ in range(200):
            prompts = [np.append(shots, np.full(rng.integers(40, 250), i, dtype=np.int32)) for i in range(2)]
            data = [(prompt, np.full(int(np.clip(rng.lognormal(4.8, 0.5), 10, 512)), 3, dtype=np.int32))
                    for prompt in prompts for _ in range(16)]  # fmt: skip
            rows = padded_levels(build_tree(data, share_prefix=True, share_prompts=True), CPU, torch.float32)
            seen |= {(level.shape, None if level.mask is None else level.mask.shape[-1]) for level in rows}
        return len(seen)

    assert shapes(1) > 300
    assert shapes(64) < 50


@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_every_kind_of_model_that_is_let_in_is_exact(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    torch.manual_seed(0)
    settings = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"num_key_value_heads": 2, "vocab_size": 11, "head_dim": 4, "initializer_range": 0.2}
    config = AutoConfig.for_model(kind, **settings, max_position_embeddings=64, pad_token_id=2)
    config.sliding_window = None
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    assert why_not_exact(model) is None
    use(monkeypatch, "both")
    found = outcome(model, CASES["both"])
    assert model.config._attn_implementation == NAME
    assert_same(found, one_by_one(model, CASES["both"]))


def test_gradient_checkpointing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(11, initializer_range=0.2)
    for layout in ("padded", "both"):
        use(monkeypatch, layout)
        plain = outcome(model, CASES["both"])
        calls: list[int] = []
        handle = model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        again = outcome(model, CASES["both"], recompute=True)
        handle.remove()
        assert len(calls) == 2  # once forward, once more in the backward pass
        assert_same(again, plain, 0)
        assert not any(module.training for module in model.modules())


def test_in_bfloat16_the_tree_is_as_far_from_float32_as_padded_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(11, initializer_range=0.2)
    exact = torch.cat(one_by_one(model, CASES["both"])[0])
    errors = {}
    for layout in ("padded", "both"):
        use(monkeypatch, layout)
        with torch.autocast("cpu", torch.bfloat16):
            errors[layout] = float((torch.cat(outcome(model, CASES["both"])[0]) - exact).abs().mean())
    assert 0 < errors["both"] < 2 * errors["padded"] < 0.1


def test_each_token_of_a_shared_part_stands_in_the_row_once() -> None:
    tree = build_tree(CASES["both"], **LAYOUTS["both"])
    completions = sum(len(completion) for _, completion in CASES["both"])
    assert len(tree.ids) == len(tree.positions) == len(SHOTS) + 1 + 2 + 3 + completions
    assert list(map(len, tree.levels)) == [1, 3, 9]
    for end, start, (prompt, completion) in zip(tree.prompt_ends, tree.completion_starts, CASES["both"], strict=True):
        assert tree.ids[end] == prompt[-1]
        assert tree.positions[end] == len(prompt) - 1
        assert tree.ids[start : start + len(completion)].tolist() == completion.tolist()
        assert tree.positions[start] == len(prompt)


def test_the_layout_is_chosen_by_cost() -> None:
    size = 164_138, 128  # weights of a layer, query heads times their size
    few_shot, groups = draws([[*SHOTS * 80, n] for n in range(3, 11)], 1), draws([[n] * 40 for n in range(3, 7)], 16)
    for data, levels in ((few_shot, [1, 8]), (groups, [4, 64])):
        cost, tree = cheapest_layout(data, *size)
        assert list(map(len, tree.levels)) == levels
        assert cost < 0.5 * padded_cost(data, *size)
    same = [(np.arange(n, n + 30) % 11, np.arange(20) % 11) for n in range(8)]
    assert cheapest_layout(same, *size) == (padded_cost(same, *size), None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"_attn_implementation": "eager"}, "model.attention=eager"),
        ({"model_type": "gpt_oss"}, "models of type gpt_oss are not among"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "does not reach back"),
    ],
)
def test_a_model_for_which_trees_are_not_exact_is_padded_and_says_so_once(changes, said, capsys):
    model = make_model(11)
    for name, value in changes.items():
        setattr(model.config, name, value)
    assert not use_tree_attention(model)
    assert not use_tree_attention(model)
    assert capsys.readouterr().err.count(said) == 1


def test_a_model_still_generates_and_is_saved_without_an_attention_of_ours(tmp_path: Any) -> None:
    model = make_model(11)
    prompt = torch.tensor([[0, 3, 5], [2, 2, 4]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 1]])
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    before = model.generate(prompt, **options)
    assert use_tree_attention(model)
    assert torch.equal(before, model.generate(prompt, **options))
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
