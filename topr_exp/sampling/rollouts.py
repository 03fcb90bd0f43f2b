"""Rollouts: n completions of each problem, sampled once and kept in the store for all runs that need the same."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.config.model import SamplerConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Ragged, Store

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 2  # of the sampler's arithmetic and of what is stored; part of the key
MADE_BY = b"made_by"  # in a shard's metadata


@dataclass(frozen=True)
class Rollouts:
    """Completions of P prompts, in shards; usually n of each prompt, or as many as were imported."""

    name: str  # of the store's table, which keys of other tables refer to
    columns: pa.Table  # problem (the prompt's index), sample (which one of the prompt's), tokens, text, finish
    prompts: Sequence[NDArray[np.int32]]
    bounds: Sequence[int]  # the first row of each shard, then the number of rows
    sampled: int  # tokens that this process sampled for it

    @property
    def rows(self) -> int:
        return self.bounds[-1]

    @property
    def made_by(self) -> dict[str, str]:
        """The program that drew the first of them, with versions and device; empty for what was imported."""
        found: dict[str, str] = json.loads((self.columns.schema.metadata or {}).get(MADE_BY, b"{}"))
        return found

    @property
    def shards(self) -> int:
        return len(self.bounds) - 1

    def shard_rows(self, shard: int) -> tuple[int, int]:
        """The first row of a shard and the one after its last."""
        return self.bounds[shard], self.bounds[shard + 1]

    def prompt_of(self, row: int) -> NDArray[np.int32]:
        return self.prompts[self.problem[row]]

    @cached_property
    def problem(self) -> NDArray[np.int32]:
        """[rows] the index of each row's prompt."""
        return np.asarray(self.columns["problem"].to_numpy())

    @cached_property
    def sample(self) -> NDArray[np.int64]:
        """[rows] which one of its prompt's completions a row is."""
        return np.asarray(self.columns["sample"].to_numpy()).astype(np.int64)

    @cached_property
    def tokens(self) -> Ragged:
        """The sampled token ids, by row."""
        return Ragged(self.columns["tokens"])

    @cached_property
    def truncated(self) -> NDArray[np.bool_]:
        """[rows] cut off by the token limit."""
        return np.asarray(self.columns["finish"].to_numpy() == "length")

    def texts(self, start: int, end: int) -> list[str]:
        """Some completions as text, special tokens left out."""
        texts: list[str] = self.columns["text"].slice(start, end - start).to_pylist()
        return texts


@dataclass(frozen=True)
class Completions:
    """Completions, the prompts that they answer, and log μ where it came with them."""

    rollouts: Rollouts
    questions: TokenizedProblems
    log_mu: Ragged | None = None


def generate_rollouts(
    sampler: Sampler,
    policy: Policy,
    questions: TokenizedProblems,
    n: int,
    seed: int,
    store: Store,
    label: str = "sampling",
) -> Rollouts:
    """n completions of each prompt, from the store as far as they are there, else sampled and stored by shards.

    A shard is a function of the key and its index: it has its own random generator.
    """
    config, prompts = sampler.config, questions.prompts
    size = config.prompts_per_shard
    table = store.table("rollouts", rollouts_key(config, policy, questions, n, seed), -(-len(prompts) // size))
    sampler.prepare(policy, max(map(len, prompts)) + config.max_new_tokens)
    with Progress(label, len(prompts) * n, "completions", rate_unit="tokens") as progress:
        shards = ShardSampling(sampler, policy, questions, n, seed, progress)
        threads = min(sampler.lanes, -(-table.shards // distributed.world_size()))  # other processes want some too
        with store.stop.leaving_together():
            run_in_lanes(sampler, threads, lambda: table.fill(shards.make, shards.report, on_wait=shards.wait))
    bounds = [min(shard * size, len(prompts)) * n for shard in range(table.shards + 1)]
    return Rollouts(table.name, table.read(), prompts, bounds, shards.sampled)


def rollouts_key(
    config: SamplerConfig, policy: Policy, questions: TokenizedProblems, n: int, seed: int
) -> dict[str, Any]:
    """All that decides what is sampled: what the store finds the completions by."""
    return {
        "weights": policy.fingerprint,
        **policy.computes,
        "prompts": fingerprint(questions.prompts),
        "problems": fingerprint([np.frombuffer(problem.id.encode(), np.uint8) for problem in questions.problems]),
        "n": n,
        "sampler": config.distribution(policy.vocabulary),
        "seed": seed,
        "stop": list(questions.stop),
        "prompts_per_shard": config.prompts_per_shard,  # decides which prompts share a random generator
        "version": VERSION,
    }


@dataclass
class ShardSampling:
    """Samples the shards of a table of rollouts, in several threads, and says how far it is: each shard counts once."""

    sampler: Sampler
    policy: Policy
    questions: TokenizedProblems
    n: int
    seed: int
    progress: Progress
    sampled: int = 0  # tokens
    told: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def make(self, shard: int) -> pa.Table:
        """Sample a shard."""
        import pyarrow as pa

        part, questions = self.prompts_of(shard), self.questions
        prompts = questions.prompts[part]
        seed = (self.seed, shard)
        made = completions_table(self.sampler, self.policy, prompts, self.n, seed, questions.stop, first=part.start)
        ids = [problem.id for problem in questions.problems[part] for _ in range(self.n)]
        made = made.append_column("problem_id", pa.array(ids, pa.string()))
        count = token_count(made)
        with self.lock:
            self.told.add(shard)
            self.sampled += count
            self.progress.update(len(prompts) * self.n, count)
        return made.replace_schema_metadata({MADE_BY: json.dumps(self.sampler.made_by())})

    def report(self, shard: int, made_here: bool) -> None:
        """Count a shard that was there already, or that another process made."""
        with self.lock:
            if shard not in self.told:
                self.told.add(shard)
                self.progress.update(len(self.questions.prompts[self.prompts_of(shard)]) * self.n, 0, "from the store")

    def wait(self, message: str) -> None:
        """Say which process is waited for, unless it is this one in another thread."""
        if self.sampler.lanes == 1 or f":{os.getpid()}," not in message:
            self.progress.message(message)

    def prompts_of(self, shard: int) -> slice:
        """Which prompts a shard has."""
        size = self.sampler.config.prompts_per_shard
        return slice(shard * size, (shard + 1) * size)


def run_in_lanes(sampler: Sampler, threads: int, work: Callable[[], object]) -> None:
    """Do the work in some of the sampler's lanes; the first error stops all."""
    if threads == 1:
        work()
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            for done in as_completed([pool.submit(work) for _ in range(threads)]):
                done.result()
        except BaseException:
            sampler.stop()
            raise


def completions_table(
    sampler: Sampler,
    policy: Policy,
    prompts: Sequence[NDArray[np.int32]],
    n: int,
    seed: tuple[int, ...],
    stop: Sequence[str],
    first: int = 0,
) -> pa.Table:
    """n completions of each prompt as an Arrow table: problem, sample, tokens, text, finish, sampler_logp.

    seed: numbers that together name the randomness. first: the index of the first prompt.
    """
    import pyarrow as pa

    groups = sampler.sample(policy, [prompt.tolist() for prompt in prompts], n, seed, stop)
    flat = [(first + p, i, one) for p, group in enumerate(groups) for i, one in enumerate(group)]
    return pa.table(
        {
            "problem": pa.array([p for p, _, _ in flat], pa.int32()),
            "sample": pa.array([i for _, i, _ in flat], pa.int16()),
            "tokens": pa.array([one.tokens for _, _, one in flat], pa.list_(pa.int32())),
            "text": pa.array([policy.decode(one.tokens, stop) for _, _, one in flat], pa.string()),
            "finish": pa.array([one.finish for _, _, one in flat], pa.string()),
            "sampler_logp": pa.array([one.logprobs for _, _, one in flat], pa.list_(pa.float32())),
        }
    )


def token_count(columns: pa.Table) -> int:
    """Sampled tokens of a table of completions."""
    return int(Ragged(columns["tokens"]).lengths().sum())


def fingerprint(rows: Sequence[NDArray[np.integer]]) -> str:
    """A hash of rows of numbers and their boundaries."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(len(row).to_bytes(4, "little") + row.astype("<i4").tobytes())
    return digest.hexdigest()
