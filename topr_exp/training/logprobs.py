"""Log-probabilities of completions by the training forward pass: the one place where π, μ and π_ref are scored.

`score_tokens` scores micro-batches with a gradient; `score_rollouts` scores log μ and log π_ref once, for the store.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from topr_exp.models.loading import refuse_scaled_logits
from topr_exp.models.policy import Policy, memory_for
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Ragged, Store
from topr_exp.training.packing import Sequences, Tree
from topr_exp.training.tree_attention import layout_for, row_width, tree_rows, use_tree_attention

VERSION = 2  # of what is stored; part of the key
# Logits at a time: 64 MiB in float32; on a GPU 256, since each chunk reads the whole output layer again.
CHUNK = {"cpu": 1 << 24, "cuda": 1 << 26}


@dataclass(frozen=True)
class Inputs:
    """B sequences (prompt, then completion) to score, and where; what is masked follows from lengths, not tokens."""

    sequences: Sequences
    device: torch.device
    kept: Sequence[Sequence[NDArray[np.int32]]] = ()  # of each `Rollouts.kept`: ids, and how many for a token

    def __post_init__(self) -> None:
        assert all(len(prompt) and len(completion) for prompt, completion in self.sequences)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[B] tokens of each completion."""
        return np.array([len(completion) for _, completion in self.sequences], dtype=np.int64)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, that of each completion."""
        return sum(len(prompt) for prompt, _ in self.sequences)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.prompt_tokens + int(self.lengths.sum())

    @cached_property
    def mask(self) -> Tensor:
        """[B, T] bool, True at completion tokens; padding stands on the right."""
        mask = np.arange(self.lengths.max()) < self.lengths[:, None]
        return torch.from_numpy(mask).to(self.device, non_blocking=True)

    @cached_property
    def targets(self) -> Tensor:
        """[N] the tokens of all completions, one after the other."""
        tokens = np.concatenate([completion for _, completion in self.sequences]).astype(np.int64)
        return torch.from_numpy(tokens).to(self.device, non_blocking=True)

    @cached_property
    def sets(self) -> list[NDArray[np.int64]]:
        """`kept` of all completions, one after the other."""
        return [np.concatenate(values).astype(np.int64) for values in zip(*self.kept, strict=True)]

    def drawable(self, logits: Tensor, start: int) -> Tensor:
        """Logits of the tokens from `start` on, −∞ for what could not be drawn in their place, where that is known."""
        if not self.sets:
            return logits
        ids, sizes = self.sets
        mine, first = sizes[start : start + len(logits)], sizes[:start].sum()
        rows = np.repeat(np.arange(len(logits)), mine)
        hidden = torch.full_like(logits, -torch.inf)
        hidden[torch.from_numpy(rows), torch.from_numpy(ids[first : first + mine.sum()])] = 0
        return logits + hidden


class TokenScores(NamedTuple):
    """Scores of every completion token from the output layer, [B, T] float32 each, 0 at padding."""

    logp: Tensor  # log π(y_t | x, y_<t), with gradient
    entropy: Tensor | None  # of π(. | x, y_<t), in nats, detached
    vocab_kl: Tensor | None  # KL(π(. | x, y_<t) ‖ π_ref(. | x, y_<t)), with gradient


def score_tokens(
    model: Any,
    inputs: Inputs,
    *,
    entropy: bool = False,
    reference: Any = None,
    recompute: bool = False,
    float32_head: bool = True,
) -> TokenScores:
    """Score every completion token; `reference` is the model whose whole distribution the KL is taken to.

    The output layer is applied only where completion tokens are predicted, in chunks whose logits the backward pass
    computes again: [B, T, vocabulary] is never held. `recompute` (gradient checkpointing) does the same for each layer.

    With `float32_head` the output layer computes in float32 under autocast too. Logits between 16 and 32 are 0.125
    apart in bfloat16, and log π − log μ of a completion is a sum of hundreds of their differences.
    """
    with recomputed_layers(model, recompute and torch.is_grad_enabled()):
        hidden = predicting_states(model, inputs)
    targets, head = inputs.targets, output_layer(model, float32_head)
    if reference is not None:
        reference_head = output_layer(reference, float32_head)
        with torch.no_grad():
            reference_hidden = predicting_states(reference, inputs)

    def score_rows(start: int, end: int, hidden: Tensor) -> tuple[Tensor, ...]:
        """By row: the target's log-probability among what is drawable; if asked, entropy and KL to the reference."""
        logits = head(hidden[start:end])
        drawable = inputs.drawable(logits, start)
        out = [-torch.nn.functional.cross_entropy(drawable, targets[start:end], reduction="none")]
        if entropy:
            with torch.no_grad():
                logp = logits.log_softmax(-1)
                out.append(-(logp.exp() * logp).sum(-1))
        if reference is not None:
            with torch.no_grad():
                reference_logp = reference_head(reference_hidden[start:end]).log_softmax(-1)
            logp = logits.log_softmax(-1)
            out.append((logp.exp() * (logp - reference_logp)).sum(-1))
        return tuple(out)

    size = max(1, CHUNK[inputs.device.type] // model.get_output_embeddings().weight.shape[0])
    recomputed = torch.is_grad_enabled() and len(hidden) > size
    run = partial(checkpoint, score_rows, use_reentrant=False) if recomputed else score_rows
    parts = [run(start, start + size, hidden) for start in range(0, len(hidden), size)]
    flat = [torch.cat(column) for column in zip(*parts, strict=True)]
    filled = [values.new_zeros(inputs.mask.shape).masked_scatter(inputs.mask, values) for values in flat]
    return TokenScores(filled[0], filled[1] if entropy else None, filled[-1] if reference is not None else None)


def output_layer(model: Any, float32: bool) -> Callable[[Tensor], Tensor]:
    """The output layer as a function of hidden states [N, H] to logits in float32 (float64 for a float64 model).

    float32: computed at that accuracy, on a GPU by split products; else in autocast's precision.
    """
    head = model.get_output_embeddings()
    bias = head.bias.float() if head.bias is not None else None
    halves = split(head.weight.detach()) if float32 and on_tensor_cores(head.weight) else None  # once for all chunks

    def logits(hidden: Tensor) -> Tensor:
        if not float32:
            rounded: Tensor = head(hidden)
            return rounded.to(torch.promote_types(rounded.dtype, torch.float32))
        with torch.autocast(hidden.device.type, enabled=False):  # the weight may be in another precision
            if halves is None:
                return torch.nn.functional.linear(hidden.float(), head.weight.float(), bias)
            products: Tensor = SplitLinear.apply(hidden.float(), head.weight, *halves)
            return products if bias is None else products + bias

    return logits


def on_tensor_cores(weight: Tensor) -> bool:
    return weight.is_cuda and weight.dtype is torch.float32


def predicting_states(model: Any, inputs: Inputs) -> Tensor:
    """The last hidden states from which the completions' tokens are predicted, [N, H], in their order.

    Sequences are laid out as a tree where that is exact and costs less than padding; which of the two it is changes
    values by rounding only. Refuses models whose logits are more than a linear map of these states.
    """
    refuse_scaled_logits(model)
    _, tree = layout_for(model, inputs.sequences)
    ids, places, options = padded_inputs(inputs) if tree is None else packed_inputs(tree, inputs, model.dtype)

    def tensor(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(inputs.device, non_blocking=True)

    hidden: Tensor = model.base_model(input_ids=tensor(ids), use_cache=False, **options).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, tensor(places))


@contextlib.contextmanager
def recomputed_layers(model: Any, wanted: bool) -> Iterator[None]:
    """While the block runs, layers keep their inputs only and compute the rest again in the backward pass.

    transformers does that in training mode, which is set on the layers alone: what lies inside them, dropout too,
    stays in evaluation mode. Before and after, layers take a cache, which recomputation would not.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)] if wanted else []
    assert layers or not wanted, f"{type(model).__name__} has no layers that can be computed again"
    for layer in layers:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
        layer.gradient_checkpointing = layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = layer.training = False


def padded_inputs(inputs: Inputs) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, Any]]:
    """The sequences padded on the right to [B, L], the places that predict, and nothing else to tell the model.

    Causal attention never looks back from a sequence to the padding behind it, so no mask is needed.
    """
    width = row_width(max(len(p) + len(c) for p, c in inputs.sequences), inputs.device)
    ids = np.zeros((len(inputs.sequences), width), dtype=np.int64)
    for row, (prompt, completion) in zip(ids, inputs.sequences, strict=True):
        row[: len(prompt)] = prompt
        row[len(prompt) : len(prompt) + len(completion)] = completion
    first = np.array([row * ids.shape[1] + len(prompt) for row, (prompt, _) in enumerate(inputs.sequences)])
    return ids, predecessors(first - 1, first, inputs.lengths), {}


def packed_inputs(
    tree: Tree, inputs: Inputs, dtype: torch.dtype
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, Any]]:
    """The row of a tree's tokens [1, N], the places that predict, and the tree for the attention function."""
    if torch.is_autocast_enabled(inputs.device.type):
        dtype = torch.get_autocast_dtype(inputs.device.type)
    positions = torch.from_numpy(tree.positions)[None].to(inputs.device, non_blocking=True)
    # A mask of four dimensions is passed on as it is; without one, transformers would build its own.
    unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=inputs.device)
    options = {"position_ids": positions, "attention_mask": unused, "tree": tree_rows(tree, inputs.device, dtype)}
    places = predecessors(tree.prompt_ends, tree.completion_starts, inputs.lengths)
    return tree.ids.astype(np.int64)[None], places, options


def predecessors(before: NDArray[np.int64], first: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place before each completion token: `before` for a completion's first, from `first` on for its others."""
    begin = np.cumsum(lengths) - lengths  # of each completion among all tokens
    places = np.repeat(first - 1 - begin, lengths) + np.arange(lengths.sum())
    places[begin] = before
    return places


def score_rollouts(policy: Policy, rollouts: Rollouts, store: Store, batch_size: int, label: str) -> tuple[Ragged, int]:
    """log π(y_t | x, y_<t) under `policy` by row of the rollouts, and the number of tokens scored by this call.

    All candidates are scored, not just the chosen ones, so that every composition of a sweep shares the table.
    """
    key = {"rollouts": rollouts.name, "weights": policy.fingerprint, **policy.computes, "version": VERSION}
    if policy.float32_head and not policy.full_precision:
        key["head"] = "float32"
    table = store.table("logprobs", key, rollouts.shards, rollouts.derivation)
    table.hold()

    def make(shard: int) -> pa.Table:
        rows = range(*rollouts.shard_rows(shard))
        return log_probabilities(policy, rollouts, rows, batch_size, progress.advance)

    with Progress(label, rollouts.rows, "completions", "scoring", rate_unit="completion tokens") as progress:
        scored = table.fill(make, progress, lambda columns: len(columns["logp"].combine_chunks().values))
    return Ragged(table.read()["logp"]), scored


def log_probabilities(
    policy: Policy,
    rollouts: Rollouts,
    rows: Sequence[int],
    batch_size: int,
    report: Callable[[int], None] = lambda tokens: None,
) -> pa.Table:
    """The column `logp` (a list a completion) for some rows of the rollouts.

    report: called with the number of completion tokens of each batch that is scored.
    """
    tokens = [rollouts.tokens[row] for row in rows]
    values: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
    # Where completions can share their prompt's computation, those of a prompt together; else those of similar length.
    lengths = np.array([len(completion) for completion in tokens])
    prompts = rollouts.problem[np.asarray(rows)] if use_tree_attention(policy.model) else np.zeros_like(lengths)
    order = np.lexsort((lengths, prompts))
    for start in range(0, len(rows), batch_size):
        part = order[start : start + batch_size]
        kept = [[column[rows[i]] for column in rollouts.kept] for i in part]
        inputs = Inputs([(rollouts.prompt_of(rows[i]), tokens[i]) for i in part], policy.device, kept)
        longest = max(len(prompt) + len(completion) for prompt, completion in inputs.sequences)
        work = f"scoring {len(part)} completions at a time (optim.score_batch_size), the longest of {longest} tokens"
        with memory_for(work, "lower optim.score_batch_size"), torch.inference_mode(), policy.autocast():
            logp = score_tokens(policy.model, inputs, float32_head=policy.float32_head).logp.cpu().numpy()
        for i, line in zip(part, logp, strict=True):
            values[i] = line[: len(tokens[i])]
        report(int(lengths[part].sum()))
    return pa.table({"logp": pa.array(values, type=pa.list_(pa.float32()))})


# ---- matrix products near float32's accuracy on tensor cores: three of bfloat16 halves, summed in float32


Halves = tuple[Tensor, Tensor]


def split(matrix: Tensor) -> Halves:
    """A float32 matrix as the sum of two in bfloat16; what is left is below 2^-16 of each value."""
    high = matrix.to(torch.bfloat16)
    return high, (matrix - high).to(torch.bfloat16)


def product(left: Halves, right: Halves) -> Tensor:
    """left @ right in float32, without the product of the two low halves (2^-16 of the whole)."""
    total = multiply(left[0], right[1])
    total += multiply(left[1], right[0])
    total += multiply(left[0], right[0])
    return total


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """The product of two bfloat16 matrices with sums and result in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # exact products, as on tensor cores


class SplitLinear(torch.autograd.Function):
    """hidden @ weight.T from bfloat16 halves, forward and backward.

    Arguments: hidden [N, H] and weight [V, H] float32; `split(weight)`, made once for many calls. Returns [N, V]
    float32. At logits up to 25 the mean error of log p is below 1e-4; one product in bfloat16 has over 300 times that.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, high: Tensor, low: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, high, low)
        return product(split(hidden), (high.T, low.T))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, high, low = ctx.saved_tensors
        grad = split(grads[0])
        to_hidden = product(grad, (high, low)) if ctx.needs_input_grad[0] else None
        to_weight = product((grad[0].T, grad[1].T), split(hidden)) if ctx.needs_input_grad[1] else None
        return to_hidden, to_weight, None, None
