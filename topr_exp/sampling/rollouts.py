"""Rollouts: n completions of each problem, sampled once and kept in the store for all runs that need the same."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import topr_exp
from topr_exp.config.model import SamplerConfig, VLLMConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.data.rollout_files import FINISHES, LOGPROB_ABOVE_ZERO
from topr_exp.models.policy import Policy
from topr_exp.runtime.checksums import file_digest
from topr_exp.runtime.files import find_module_file
from topr_exp.runtime.progress import Progress
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Sample, Sampler
from topr_exp.store import Ragged, Store
from topr_exp.store.completions import PROMPTS
from topr_exp.store.source import Derivation, Source
from topr_exp.types import TOPRError

VERSION = 2  # of the sampler's arithmetic and of what is stored; part of the key
MADE_BY = b"made_by"  # in a shard's metadata
KEPT = ("kept", "kept_sizes")  # columns of a sampler that `keeps_drawable`


@dataclass(frozen=True)
class Rollouts:
    """Completions of P prompts, in shards; usually n of each prompt, or as many as were imported."""

    name: str  # of the store's table, which keys of other tables refer to
    columns: pa.Table  # problem (the prompt's index), sample (which one of the prompt's), tokens, text, finish
    prompts: Sequence[NDArray[np.int32]]
    bounds: Sequence[int]  # the first row of each shard, then the number of rows
    sampled: int  # tokens that this process sampled for it
    sources: tuple[Source, ...] = ()  # the files that each shard's rows are in; none for what is in no store

    @property
    def derivation(self) -> Derivation:
        """What the shards of a table that is made of these must have."""
        return Derivation(tuple(np.diff(self.bounds).tolist()), self.sources)

    @property
    def rows(self) -> int:
        return self.bounds[-1]

    @property
    def made_by(self) -> dict[str, str]:
        """The program that drew the first of them, with versions and device; empty for what was imported."""
        return json.loads((self.columns.schema.metadata or {}).get(MADE_BY, b"{}"))

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

    @cached_property
    def kept(self) -> list[Ragged]:
        """Ids of the tokens that could be drawn, one set after the other, and the sets' sizes; none if not kept."""
        return [Ragged(self.columns[name]) for name in KEPT if name in self.columns.column_names]

    def texts(self, start: int, end: int) -> list[str]:
        """Some completions as text, special tokens left out."""
        return self.columns["text"].slice(start, end - start).to_pylist()


@dataclass(frozen=True)
class Completions:
    """Completions, the prompts that they answer, and log μ and rewards where these came with them."""

    rollouts: Rollouts
    questions: TokenizedProblems
    log_mu: Ragged | None = None
    rewards: NDArray[np.float64] | None = None  # [rows]


def open_sampler(
    config: SamplerConfig, scratch: Path, trust_remote_code: bool, *, beside_training: bool = False, keeps: bool = False
) -> closing[Sampler]:
    """The sampler that the settings name, closed at the end of the block.

    scratch: a folder of the run for engines' logs and weights. beside_training: the policy trains while it is open.
    keeps (transformers): with each token all that could be drawn in its place. ConfigError where a program is missing.
    """
    if isinstance(config, VLLMConfig):
        from topr_exp.sampling.vllm import VLLM

        return closing(VLLM(config, scratch, trust_remote_code, beside_training))
    module, _, own = config.name.partition(":")
    if not own:
        return closing(HFSampler(config, keeps_drawable=keeps))
    return closing(getattr(topr_exp.import_own(module), own)(config))


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
    shards = range(0, len(prompts), size)
    counts = [len(prompts[start : start + size]) * n for start in shards]
    key = rollouts_key(config, policy, questions, n, seed, sampler.keeps_drawable)
    table = store.table("rollouts", key, len(shards), Derivation(tuple(counts)))
    table.hold()
    sampler.prepare(policy, max(map(len, prompts)) + config.max_new_tokens)

    def make(shard: int) -> pa.Table:
        start, end = shard * size, (shard + 1) * size
        ids = [prompt.tolist() for prompt in prompts[start:end]]
        with progress.paused("the sampler starts"):
            sampler.start(policy, ids)
        with sampler.reporting(progress.advance):
            groups = sampler.sample(policy, ids, n, (seed, shard), questions.stop)
        if ":" in config.name:
            check_samples(groups, len(ids), n, config.name)
        made = table_of_samples(policy, groups, questions.stop, first=start)
        names = [problem.id for problem in questions.problems[start:end] for _ in range(n)]
        made = made.append_column("problem_id", pa.array(names, pa.string()))
        asked = [
            {"prompt": policy.text_of(prompt), "prompt_tokens": prompt.tolist(), "gold": problem.answer}
            for prompt, problem in zip(prompts[start:end], questions.problems[start:end], strict=True)
        ]
        return made.replace_schema_metadata({MADE_BY: json.dumps(sampler.made_by()), PROMPTS: json.dumps(asked)})

    with Progress(label, len(prompts) * n, "completions", "sampling", rate_unit="tokens") as progress:
        sampled = table.fill(make, progress, token_count)
    columns, bounds, source = table.snapshot()
    return Rollouts(table.name, columns, prompts, bounds, sampled, source.parts())


def rollouts_key(
    config: SamplerConfig, policy: Policy, questions: TokenizedProblems, n: int, seed: int, keeps: bool = False
) -> dict[str, Any]:
    """All that decides what is sampled: what the store finds the completions by."""
    own = find_module_file(config.name.partition(":")[0]) if ":" in config.name else None  # a sampler of the user's
    exact_head = isinstance(config, VLLMConfig) and policy.float32_head and not policy.full_precision
    return {
        "weights": policy.fingerprint,
        **policy.computes,
        **({"head": "float32"} if exact_head else {}),
        "prompts": fingerprint(questions.prompts),
        "problems": fingerprint([np.frombuffer(problem.id.encode(), np.uint8) for problem in questions.problems]),
        "n": n,
        "sampler": config.distribution(policy.vocabulary),
        **({"code": file_digest(own)} if own is not None else {}),
        **({"kept": True} if keeps else {}),
        "seed": seed,
        "stop": list(questions.stop),
        "prompts_per_shard": config.prompts_per_shard,  # decides which prompts share a random generator
        "version": VERSION,
    }


def check_samples(groups: list[list[Sample]], prompts: int, n: int, name: str) -> None:
    """Raise TOPRError unless a user's sampler gave n completions a prompt, each with a log-probability a token."""
    sizes = [len(group) for group in groups]
    if sizes != [n] * prompts:
        raise TOPRError(f"sampler.name={name} must return {n} completions for each of {prompts} prompts; got {sizes}")
    for sample in chain.from_iterable(groups):
        values = np.asarray(sample.logprobs, np.float64)
        if len(values) != len(sample.tokens):
            raise TOPRError(
                f"sampler.name={name} must return one log-probability per token; "
                f"got {len(values)} for {len(sample.tokens)} tokens"
            )
        if not (np.isfinite(values) & (values <= LOGPROB_ABOVE_ZERO)).all():
            wrong = values[~(np.isfinite(values) & (values <= LOGPROB_ABOVE_ZERO))][0]
            raise TOPRError(f"sampler.name={name} must return finite log-probabilities of at most 0; got {wrong:g}")
        if sample.finish not in FINISHES:
            raise TOPRError(f"sampler.name={name}: finish must be one of {', '.join(FINISHES)}; got {sample.finish!r}")


def table_of_samples(policy: Policy, groups: list[list[Sample]], stop: Sequence[str], first: int = 0) -> pa.Table:
    """Tabulate the completions of each prompt, with the columns `KEPT` where these have such sets.

    first: the index of the first prompt.
    """
    flat = [(first + p, i, one) for p, group in enumerate(groups) for i, one in enumerate(group)]
    made = pa.table(
        {
            "problem": pa.array([p for p, _, _ in flat], pa.int32()),
            "sample": pa.array([i for _, i, _ in flat], pa.int16()),
            "tokens": pa.array([one.tokens for _, _, one in flat], pa.list_(pa.int32())),
            "text": pa.array([policy.decode(one.tokens, stop) for _, _, one in flat], pa.string()),
            "finish": pa.array([one.finish for _, _, one in flat], pa.string()),
            "sampler_logp": pa.array([one.logprobs for _, _, one in flat], pa.list_(pa.float32())),
        }
    )
    if flat[0][2].drawable_ids:
        ids = [[*chain.from_iterable(one.drawable_ids)] for _, _, one in flat]
        for name, column in zip(KEPT, (ids, [[*map(len, one.drawable_ids)] for _, _, one in flat]), strict=True):
            made = made.append_column(name, pa.array(column, pa.list_(pa.int32())))
    return made


def token_count(columns: pa.Table) -> int:
    """Sampled tokens of a table of completions."""
    return int(Ragged(columns["tokens"]).lengths().sum())


def fingerprint(rows: Sequence[NDArray[np.integer]]) -> str:
    """A hash of rows of numbers and their boundaries."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(len(row).to_bytes(4, "little") + row.astype("<i4").tobytes())
    return digest.hexdigest()
