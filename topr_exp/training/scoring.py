"""Log-probabilities of completions by the training forward pass: log μ and log π_ref, scored once and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from topr_exp.models.policy import Policy, memory_for
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Ragged, Store
from topr_exp.training.logprobs import collate, score_tokens
from topr_exp.training.tree_attention import use_tree_attention

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2  # of what is stored; part of the key


def score_rollouts(policy: Policy, rollouts: Rollouts, store: Store, batch_size: int, label: str) -> tuple[Ragged, int]:
    """log π(y_t | x, y_<t) under `policy` by row of the rollouts, and the number of tokens scored by this call.

    All candidates are scored, not just the chosen ones, so that every composition of a sweep shares the table.
    """
    key = {
        "rollouts": rollouts.name,
        "weights": policy.fingerprint,
        **policy.computes,
        "version": VERSION,
    }
    if policy.float32_head and not policy.full_precision:
        key["head"] = "float32"
    table = store.table("logprobs", key, rollouts.shards)
    scored = 0
    with Progress(label, rollouts.rows, "completions", rate_unit="tokens") as progress:

        def make(shard: int) -> pa.Table:
            nonlocal scored
            start, end = rollouts.shard_rows(shard)
            columns = log_probabilities(policy, rollouts, range(start, end), batch_size)
            count = len(columns["logp"].combine_chunks().values)
            scored += count
            progress.update(end - start, count)
            return columns

        def report(shard: int, made_here: bool) -> None:
            if not made_here:
                start, end = rollouts.shard_rows(shard)
                progress.update(end - start, 0, "from the store")

        table.fill(make, report, on_wait=progress.message)
    return table.ragged("logp"), scored


def log_probabilities(policy: Policy, rollouts: Rollouts, rows: Sequence[int], batch_size: int) -> pa.Table:
    """The column `logp` (a list a completion) for some rows of the rollouts."""
    import pyarrow as pa

    tokens = [rollouts.tokens[row] for row in rows]
    values: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(rows)
    # Where completions can share their prompt's computation, those of a prompt together; else those of similar length.
    lengths = np.array([len(completion) for completion in tokens])
    prompts = rollouts.problem[np.asarray(rows)] if use_tree_attention(policy.model) else np.zeros_like(lengths)
    order = np.lexsort((lengths, prompts))
    for start in range(0, len(rows), batch_size):
        part = order[start : start + batch_size]
        inputs = collate([(rollouts.prompt_of(rows[i]), tokens[i]) for i in part], policy.device)
        longest = max(len(prompt) + len(completion) for prompt, completion in inputs.sequences)
        work = f"scoring {len(part)} completions at a time (optim.score_batch_size), the longest of {longest} tokens"
        with memory_for(work, "lower optim.score_batch_size"), torch.inference_mode(), policy.autocast():
            logp = score_tokens(policy.model, inputs, float32_head=policy.float32_head).logp.cpu().numpy()
        for i, line in zip(part, logp, strict=True):
            values[i] = line[: len(tokens[i])]
    return pa.table({"logp": pa.array(values, type=pa.list_(pa.float32()))})
