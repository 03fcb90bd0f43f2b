"""Log-probabilities of completions by the training forward pass: the one place where π, μ and π_ref are scored.

`score_tokens` scores micro-batches with a gradient; `read_or_score` log μ and log π_ref once, for the store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from topr_exp.models.out_of_memory import memory_for
from topr_exp.models.policy import Policy
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.sampler import split_every
from topr_exp.store import Ragged, Store
from topr_exp.training.hidden_states import Inputs, inputs_of, predicting_states
from topr_exp.training.layers import recomputed_layers
from topr_exp.training.output_layer import OutputLayer, Scores
from topr_exp.training.padding import pad_tokens
from topr_exp.training.tree_attention import use_tree_attention

VERSION = 2  # of the stored table; part of the key


class TokenScores(NamedTuple):
    """Scores of every completion token from the output layer, [B, T] float32 each, 0 at padding."""

    logp: Tensor  # log π(y_t | x, y_<t), with gradient
    entropy: Tensor | None = None  # of π(. | x, y_<t), in nats, detached
    vocab_kl: Tensor | None = None  # KL(π(. | x, y_<t) ‖ π_ref(. | x, y_<t)), with gradient
    head_logp: Tensor | None = None  # [B, T, k] log π of the head's tokens, with gradient


def score_tokens(
    model: Any,
    inputs: Inputs,
    *,
    entropy: bool = False,
    reference: Any = None,
    recompute: bool = False,
) -> TokenScores:
    """Score every completion token; reference: π_ref of the KL over the whole vocabulary.

    The output layer is applied only where completion tokens are predicted, in chunks whose logits the backward pass
    computes again: [B, T, vocabulary] is never held. `recompute` (gradient checkpointing) does the same for each layer.

    The output layer computes in float32 under autocast too. Logits between 16 and 32 are 0.125 apart in bfloat16, and
    log π − log μ of a completion is a sum of hundreds of their differences.
    """
    with recomputed_layers(model, recompute and torch.is_grad_enabled()):
        hidden = predicting_states(model, inputs)
    reference_distribution = None
    if reference is not None:
        reference_distribution = distribution_of(reference, inputs)
    scorer = TokenScorer(inputs, reference_distribution, entropy)
    scores = OutputLayer(model).scores(hidden, scorer)
    columns = {}
    for name, values in zip(scorer.names, scores, strict=True):
        columns[name] = pad_tokens(values, inputs.mask)
    if entropy:
        columns["entropy"] = columns["entropy"].detach()
    return TokenScores(**columns)


# Maps the first completion token and the number of tokens to log-probabilities [tokens, V].
Distribution = Callable[[int, int], Tensor]


def distribution_of(model: Any, inputs: Inputs) -> Distribution:
    """Return a function to a model's log-probabilities of the whole vocabulary, without gradient."""
    with torch.no_grad():
        hidden = predicting_states(model, inputs)
    layer = OutputLayer(model)

    def log_probabilities_of(start: int, count: int) -> Tensor:
        with torch.no_grad():
            return layer.logits(hidden[start : start + count]).log_softmax(-1)

    return log_probabilities_of


@dataclass(frozen=True)
class TokenScorer:
    """Maps logits of completion tokens to the scores of `TokenScores` that are asked for.

    Where the drawable tokens are known, log π is the log-probability among these. Entropy has no gradient.
    """

    inputs: Inputs
    reference_distribution: Distribution | None
    entropy: bool

    @property
    def names(self) -> list[str]:
        """The scores in their order; entropy is the last."""
        names = ["logp"]
        if self.reference_distribution is not None:
            names.append("vocab_kl")
        if self.inputs.scores_head:
            names.append("head_logp")
        if self.entropy:
            names.append("entropy")
        return names

    def __call__(self, logits: Tensor, start: int, *, statistics: bool) -> Scores:
        """Return scores [n], the head's [n, k], of logits [n, V] of the tokens from `start` on.

        statistics: False leaves out the entropy, which a backward pass has no use for.
        """
        inputs = self.inputs
        logp = logits.log_softmax(-1)
        drawable_logp = logp
        if inputs.drawable is not None:
            drawable_logp = inputs.mask_undrawable(logits, start).log_softmax(-1)
        targets = inputs.targets[start : start + len(logits)]
        target_logp = drawable_logp.gather(-1, targets[:, None])  # [n, 1]
        columns = [target_logp[:, 0]]
        if self.reference_distribution is not None:
            reference_logp = self.reference_distribution(start, len(logits))
            kl_terms = logp.exp() * (logp - reference_logp)
            columns.append(kl_terms.sum(-1))
        if inputs.scores_head:
            columns.append(inputs.gather_head(logp, start))
        if self.entropy and statistics:
            with torch.no_grad():
                entropy_terms = logp.exp() * logp
                columns.append(-entropy_terms.sum(-1))
        return tuple(columns)


def read_or_score(
    policy: Policy, completions: Completions, store: Store, batch_size: int, label: str
) -> tuple[pa.ChunkedArray, int]:
    """Score log π(y_t | x, y_<t) by completion, or read it from the store; also the number of tokens scored now.

    All candidates are scored, not just the chosen ones, so that every composition of a sweep shares the table.
    """
    key = {"weights": policy.fingerprint, **policy.numerics_key, "version": VERSION}
    if not policy.full_precision:
        key["head"] = "float32"
    stored = completions.stored
    assert stored is not None
    table = completions.derived_table(store, "logprobs", key)
    progress = Progress(label, len(completions), "completions", kind="scoring", rate_unit="completion tokens")

    def score_shard(shard: int) -> pa.Table:
        logp = log_probabilities(policy, completions, stored.sharding.rows(shard), batch_size, progress.advance)
        return pa.table({"logp": logp})

    def token_count(shard_table: pa.Table) -> int:
        return int(Ragged(shard_table["logp"]).lengths().sum())

    with progress:
        tokens_scored = table.fill(score_shard, progress, token_count)
    return table.read()["logp"], tokens_scored


def log_probabilities(
    policy: Policy,
    completions: Completions,
    rows: Sequence[int],
    batch_size: int,
    report: Callable[[int], None] = lambda tokens: None,
) -> pa.Array:
    """Score some rows of the completions: log π(y_t | x, y_<t), a list for each completion.

    report: called with the number of completion tokens of each scored batch.
    """
    lengths = np.array([len(completions.tokens[row]) for row in rows])
    if use_tree_attention(policy.model):  # completions of a problem share their prompt's computation
        problem_index = completions.problem_index[np.asarray(rows)]
        order = np.lexsort((lengths, problem_index))
    else:
        order = np.argsort(lengths, kind="stable")
    values: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
    for batch in split_every(order, batch_size):
        rows_of_batch = [rows[index] for index in batch]
        logp = score_batch(policy, completions, rows_of_batch)
        for index, row_logp in zip(batch, logp, strict=True):
            values[index] = row_logp[: lengths[index]]
        report(int(lengths[batch].sum()))
    return pa.array(values, pa.list_(pa.float32()))


def score_batch(policy: Policy, completions: Completions, rows: Sequence[int]) -> NDArray[np.float32]:
    """Score a batch of rows, [B, T]; TOPRError if memory runs out."""
    inputs = inputs_of(completions, rows, policy.device)
    work = f"scoring {len(rows)} completions at a time, the longest of {inputs.longest} tokens"
    remedy = "lower optim.micro_batch_size"
    with memory_for(work, remedy), torch.inference_mode(), policy.autocast():
        logp = score_tokens(policy.model, inputs).logp
    return logp.cpu().numpy()
