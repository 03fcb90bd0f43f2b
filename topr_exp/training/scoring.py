"""log μ of every completion by the training forward pass, scored once and kept in the store."""

from __future__ import annotations

import numpy as np
import torch

from topr_exp.models.policy import Policy
from topr_exp.progress import Progress
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store, Table
from topr_exp.training.logprobs import collate, token_logprobs

VERSION = 1  # of what is stored; part of the key


def score(policy: Policy, rollouts: Rollouts, store: Store, batch_size: int) -> tuple[Table, int]:
    """The table of log μ(y_t | x, y_<t), row by row as the rollouts, and the number of tokens scored by this call.

    All candidates are scored, not just the chosen ones, so that every composition of a sweep shares the table.
    """
    import pyarrow as pa

    key = {
        "rollouts": rollouts.table.name,
        "weights": policy.fingerprint,
        "precision": policy.precision,
        "version": VERSION,
    }
    table = store.table("logprobs", key, rollouts.table.shards)
    tokens = rollouts.tokens
    scored = 0
    with Progress("scoring", rollouts.rows, "completions", rate_unit="tokens") as progress:

        def make(shard: int) -> pa.Table:
            nonlocal scored
            rows = np.arange(*rollouts.shard_rows(shard))
            values: list[np.ndarray] = [np.zeros(0, np.float32)] * len(rows)
            # Completions of similar length together: less padding, the same values.
            order = np.argsort([len(tokens[row]) for row in rows], kind="stable")
            for start in range(0, len(rows), batch_size):
                part = order[start : start + batch_size]
                sequences = [(rollouts.prompt_of(row), tokens[row]) for row in rows[part]]
                inputs = collate(sequences, policy.device)
                with torch.inference_mode(), policy.autocast():
                    logp = token_logprobs(policy.model, inputs).cpu().numpy()
                for index, line, (_, completion) in zip(part, logp, sequences, strict=True):
                    values[index] = line[: len(completion)]
                count = sum(len(completion) for _, completion in sequences)
                scored += count
                progress.update(len(part), count)
            return pa.table({"logp": pa.array(values, type=pa.list_(pa.float32()))})

        def report(shard: int, made_here: bool) -> None:
            if not made_here:
                start, end = rollouts.shard_rows(shard)
                progress.update(end - start, 0, "from the store")

        table.fill(make, report, parallel=True, on_wait=progress.message)
    return table, scored
