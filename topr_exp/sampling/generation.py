"""Sampling of n completions of each problem, kept in the store for all runs that need the same."""

import hashlib
import json
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topr_exp.config.model import SamplerConfig, VLLMConfig
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.checksums import file_digest
from topr_exp.runtime.files import find_module_file
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import plural, warn_once
from topr_exp.sampling.completions import DRAWABLE_COLUMNS, MADE_BY, Completions, StoredTables
from topr_exp.sampling.hf import HFSampler
from topr_exp.sampling.sampler import Prompts, Sample, Sampler, SamplesByPrompt, Seed, split_every
from topr_exp.sampling.top_logprobs import top_columns
from topr_exp.schema import class_path
from topr_exp.store import Ragged, Store
from topr_exp.store.completions import LOGPROB_ABOVE_ZERO, PROMPTS
from topr_exp.store.source import Sharding
from topr_exp.types import FINISHES, Problem, TOPRError

VERSION = 2  # of the sampler's arithmetic and of stored tables; part of the key
TOKEN_LIST = pa.list_(pa.int32())
SAMPLED_SCHEMA = pa.schema(
    {
        "problem": pa.int32(),
        "sample": pa.int16(),
        "tokens": TOKEN_LIST,
        "text": pa.string(),
        "finish": pa.string(),
        "sampler_logp": pa.list_(pa.float32()),
    }
)


def open_sampler(
    config: SamplerConfig,
    scratch: Path,
    trust_remote_code: bool,
    *,
    beside_training: bool = False,
    keeps_drawable: bool = False,
) -> closing[Sampler]:
    """Open the sampler that the settings name, until the end of the block.

    scratch: a folder of the run for engines' logs and weights. beside_training: the policy trains while it is open.
    keeps_drawable: note all tokens that could be drawn. ConfigError where a program is missing.
    """
    sampler: Sampler
    if isinstance(config, VLLMConfig):
        from topr_exp.sampling.vllm import VLLM

        sampler = VLLM(
            config, scratch, trust_remote_code, beside_training=beside_training, keeps_drawable=keeps_drawable
        )
    elif is_user_sampler(config):
        sampler = config.build_sampler()  # type: ignore[attr-defined]
    else:
        sampler = HFSampler(config, keeps_drawable=keeps_drawable)
    return closing(sampler)


def is_user_sampler(config: SamplerConfig) -> bool:
    """True for settings by `sampler._target_`."""
    return class_path(config) is not None


def sample_completions(
    sampler: Sampler,
    policy: Policy,
    questions: TokenizedProblems,
    n: int,
    *,
    seed: int,
    store: Store,
    label: str = "sampling",
) -> Completions:
    """Sample n completions of each prompt by shards, but for the shards that the store has.

    A shard is a function of the key and its index: it has its own random generator.
    """
    config = sampler.config
    prompts = questions.prompts
    shard_size = config.prompts_per_shard
    prompts_by_shard = split_every(prompts, shard_size)
    problems_by_shard = split_every(questions.problems, shard_size)
    key = sampling_key(config, policy, questions, n, seed=seed, keeps_drawable=sampler.keeps_drawable)
    sharding = Sharding(tuple(n * len(prompts_of_shard) for prompts_of_shard in prompts_by_shard))
    table = store.table("rollouts", key, len(prompts_by_shard), sharding)
    table.hold()
    sampler.prepare(policy, max(map(len, prompts)) + config.max_new_tokens)
    progress = Progress(label, len(prompts) * n, "completions", kind="sampling", rate_unit="tokens")

    def make_shard(shard: int) -> pa.Table:
        if shard == 0:  # which one of the processes makes
            warn_of_idle_processes(len(prompts_by_shard), shard_size)
        prompt_ids = [prompt.tolist() for prompt in prompts_by_shard[shard]]
        with progress.paused("the sampler starts"):
            sampler.start(policy, prompt_ids)
        with sampler.reporting(progress.advance):
            samples_by_prompt = draw_samples(sampler, policy, prompt_ids, n, (seed, shard), questions.stop)
        columns = table_of_samples(policy, samples_by_prompt, questions.stop, first_problem=shard * shard_size)
        return with_origin(columns, sampler, policy, problems_by_shard[shard], prompt_ids)

    with progress:
        tokens_sampled = table.fill(make_shard, progress, token_count)
    snapshot = table.snapshot()
    stored = StoredTables(table.name, snapshot.sharding, tokens_sampled)
    return Completions(questions.problems, prompts, snapshot.columns, stored)


def warn_of_idle_processes(shard_count: int, shard_size: int) -> None:
    """Warn where a run has more processes than shards to sample. shard_size: `sampler.prompts_per_shard`."""
    process_count = distributed.world_size()
    if shard_count < process_count:
        warn_once(  # not again at each evaluation in training
            f"{process_count - shard_count} of {process_count} processes have nothing to sample: "
            f"sampler.prompts_per_shard={shard_size} makes {plural(shard_count, 'shard')}",
            of_any_process=True,
        )


def sampling_key(
    config: SamplerConfig,
    policy: Policy,
    questions: TokenizedProblems,
    n: int,
    *,
    seed: int,
    keeps_drawable: bool,
) -> dict[str, Any]:
    """Build the store's key of sampled completions: all settings, weights and prompts that decide them."""
    problem_ids = [np.frombuffer(problem.id.encode(), np.uint8) for problem in questions.problems]
    key = {
        "weights": policy.fingerprint,
        **policy.numerics_key,
        "prompts": fingerprint(questions.prompts),
        "problems": fingerprint(problem_ids),
        "n": n,
        "sampler": config.distribution_key(policy.vocabulary),
        "seed": seed,
        "stop": list(questions.stop),
        "prompts_per_shard": config.prompts_per_shard,  # decides which prompts share a random generator
        "version": VERSION,
    }
    if isinstance(config, VLLMConfig) and not policy.full_precision:
        key["head"] = "float32"
    if is_user_sampler(config):
        source_file = find_module_file(type(config).__module__)
        if source_file is not None:
            key["code"] = file_digest(source_file)
    if keeps_drawable:
        key["kept"] = True
    return key


def draw_samples(
    sampler: Sampler, policy: Policy, prompts: Prompts, n: int, seed: Seed, stop: Sequence[str]
) -> SamplesByPrompt:
    """Call `Sampler.sample`; TOPRError where a user's sampler gives what can't be trained on."""
    samples_by_prompt = sampler.sample(policy, prompts, n, seed, stop)
    if is_user_sampler(sampler.config):
        check_samples(samples_by_prompt, len(prompts), n, name=sampler.config.name, vocabulary=policy.vocabulary)
    return samples_by_prompt


def check_samples(samples_by_prompt: SamplesByPrompt, prompt_count: int, n: int, *, name: str, vocabulary: int) -> None:
    """Raise TOPRError unless a user's sampler gave n completions a prompt, each with a log-probability a token.

    vocabulary: number of the model's tokens.
    """
    sizes = [len(samples) for samples in samples_by_prompt]
    if sizes != [n] * prompt_count:
        raise TOPRError(f"sampler={name} must return {n} completions for each of {prompt_count} prompts; got {sizes}")
    for sample in chain.from_iterable(samples_by_prompt):
        check_sample(sample, name, vocabulary)


def check_sample(sample: Sample, name: str, vocabulary: int) -> None:
    """Raise TOPRError unless a completion of a user's sampler has tokens, each with a log-probability, and a finish."""
    must_return = f"sampler={name} must return"
    if len(sample.tokens) == 0:
        raise TOPRError(f"{must_return} one token or more for a completion (the end is one); got none")
    tokens = np.asarray(sample.tokens, np.float64)
    is_known = (tokens >= 0) & (tokens < vocabulary) & (tokens == np.floor(tokens))
    if not is_known.all():
        unknown = tokens[~is_known][0]
        raise TOPRError(f"{must_return} tokens from 0 to {vocabulary - 1}; got {unknown:.10g}")
    logprobs = np.asarray(sample.logprobs, np.float64)
    if len(logprobs) != len(tokens):
        raise TOPRError(f"{must_return} one log-probability per token; got {len(logprobs)} for {len(tokens)} tokens")
    is_valid = np.isfinite(logprobs) & (logprobs <= LOGPROB_ABOVE_ZERO)
    if not is_valid.all():
        invalid = logprobs[~is_valid][0]
        raise TOPRError(f"{must_return} finite log-probabilities of at most 0; got {invalid:g}")
    if sample.finish not in FINISHES:
        raise TOPRError(f"sampler={name}: finish must be one of {', '.join(FINISHES)}; got {sample.finish!r}")


def table_of_samples(
    policy: Policy, samples_by_prompt: SamplesByPrompt, stop: Sequence[str], first_problem: int = 0
) -> pa.Table:
    """Tabulate the completions of consecutive problems, with all that the sampler notes beside them."""
    records = []
    for problem_index, samples in enumerate(samples_by_prompt, first_problem):
        for sample_index, sample in enumerate(samples):
            record = {
                "problem": problem_index,
                "sample": sample_index,
                "tokens": sample.tokens,
                "text": policy.decode(sample.tokens, stop),
                "finish": sample.finish,
                "sampler_logp": sample.logprobs,
            }
            records.append(record)
    table = pa.Table.from_pylist(records, SAMPLED_SCHEMA)
    samples = [*chain.from_iterable(samples_by_prompt)]
    columns: dict[str, pa.Array] = {}
    if samples[0].top_tokens:
        columns |= top_columns([sample.top_tokens for sample in samples])
    if samples[0].drawable_ids:
        columns |= drawable_columns(samples)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def with_origin(
    table: pa.Table, sampler: Sampler, policy: Policy, problems: Sequence[Problem], prompts: Prompts
) -> pa.Table:
    """Add the ids of the problems, their prompts and the sampler, which readers of the store alone need."""
    samples_per_problem = len(table) // len(problems)
    problem_ids: list[str] = []
    stored_prompts = []
    for prompt_ids, problem in zip(prompts, problems, strict=True):
        problem_ids += [problem.id] * samples_per_problem
        text = policy.text_of(np.asarray(prompt_ids, np.int32))
        stored_prompts.append({"prompt": text, "prompt_tokens": prompt_ids, "gold": problem.answer})
    metadata = {MADE_BY: json.dumps(sampler.made_by()), PROMPTS: json.dumps(stored_prompts)}
    table = table.append_column("problem_id", pa.array(problem_ids, pa.string()))
    return table.replace_schema_metadata(metadata)


def drawable_columns(samples: Sequence[Sample]) -> dict[str, pa.Array]:
    """Tabulate the tokens that could be drawn at the places of each completion."""
    ids = [[*chain.from_iterable(sample.drawable_ids)] for sample in samples]
    set_sizes = [[*map(len, sample.drawable_ids)] for sample in samples]
    columns = {}
    for name, values in zip(DRAWABLE_COLUMNS, (ids, set_sizes), strict=True):
        columns[name] = pa.array(values, TOKEN_LIST)
    return columns


def token_count(table: pa.Table) -> int:
    """Count the sampled tokens of a table of completions."""
    return int(Ragged(table["tokens"]).lengths().sum())


def fingerprint(rows: Sequence[NDArray[np.integer]]) -> str:
    """Hash rows of numbers and their boundaries."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(len(row).to_bytes(4, "little"))
        digest.update(row.astype("<i4").tobytes())
    return digest.hexdigest()
