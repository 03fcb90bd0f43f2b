"""Log-probabilities of completions by the training forward pass: the one place where π, μ and π_ref are scored.

`score_tokens` scores micro-batches with a gradient; `score_rollouts` scores log μ and log π_ref once, for the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.models.loading import refuse_scaled_logits
from topr_exp.models.policy import Policy, memory_for
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Ragged, Store
from topr_exp.training.layers import recomputed_layers
from topr_exp.training.output_layer import OutputLayer
from topr_exp.training.packing import Sequences, Tree
from topr_exp.training.tree_attention import layout_for, row_width, tree_rows, use_tree_attention

VERSION = 2  # of what is stored; part of the key


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
    reference_logp = None
    if reference is not None:
        reference_logp = distribution_of(reference, inputs, float32_head)
    score = TokenScore(inputs, reference_logp, entropy)
    columns = OutputLayer(model, float32=float32_head).scores(hidden, score)
    padded = [values.new_zeros(inputs.mask.shape).masked_scatter(inputs.mask, values) for values in columns]
    vocab_kl = padded[1] if reference is not None else None
    return TokenScores(padded[0], padded[-1].detach() if entropy else None, vocab_kl)


# Maps the first row and the number of rows to log-probabilities [rows, V].
Distribution = Callable[[int, int], Tensor]


def distribution_of(model: Any, inputs: Inputs, float32_head: bool) -> Distribution:
    """Log-probabilities of the whole vocabulary by a model, without gradient, by rows of the completion tokens."""
    with torch.no_grad():
        hidden = predicting_states(model, inputs)
    layer = OutputLayer(model, float32=float32_head)

    def log_probabilities_of(start: int, count: int) -> Tensor:
        with torch.no_grad():
            return layer.logits(hidden[start : start + count]).log_softmax(-1)

    return log_probabilities_of


@dataclass(frozen=True)
class TokenScore:
    """Maps logits of completion tokens to their scores: log π, KL to the reference if there is one, entropy if asked.

    log π is that among the tokens that could be drawn, where those are known; entropy has no gradient.
    """

    inputs: Inputs
    reference_logp: Distribution | None
    entropy: bool

    def __call__(self, logits: Tensor, start: int, *, statistics: bool) -> tuple[Tensor, ...]:
        """Scores [n] of logits [n, V] of the tokens from `start` on; without `statistics` those with gradient alone."""
        logp = logits.log_softmax(-1)
        drawable_logp = logp
        if self.inputs.sets:
            drawable_logp = self.inputs.drawable(logits, start).log_softmax(-1)
        targets = self.inputs.targets[start : start + len(logits)]
        columns = [drawable_logp.gather(-1, targets[:, None])[:, 0]]
        if self.reference_logp is not None:
            columns.append((logp.exp() * (logp - self.reference_logp(start, len(logits)))).sum(-1))
        if self.entropy and statistics:
            with torch.no_grad():
                columns.append(-(logp.exp() * logp).sum(-1))
        return tuple(columns)


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
