"""Completions that a vLLM engine draws: the request for them, and its answer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.models.policy import Policy
from topr_exp.sampling.completions import TokenIds
from topr_exp.sampling.engine import Engine
from topr_exp.sampling.sampler import Prompts, Sample, Sampler, SamplesByPrompt, Seed, seed_of
from topr_exp.sampling.top_logprobs import TopTokens


def request_completions(
    engine: Engine,
    sampler: Sampler,
    policy: Policy,
    prompts: Prompts,
    *,
    n: int,
    seed: Seed,
    stop: Sequence[str],
) -> SamplesByPrompt:
    """Have an engine draw n completions of each prompt by a sampler's settings, noting what the sampler notes."""
    config = sampler.config
    prompt_ids = [list(map(int, prompt)) for prompt in prompts]
    prompt_seeds = [seed_of(*seed, index) >> 1 for index in range(len(prompts))]  # room for seed + n
    answer = engine.ask(
        "generate",
        report=sampler.report,
        prompts=prompt_ids,
        seeds=prompt_seeds,
        n=n,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=min(config.top_k, policy.vocabulary),
        max_new_tokens=config.max_new_tokens,
        eos=policy.eos_ids,
        stop=list(stop),
        top_logprobs=top_count(sampler, policy),
        keeps_drawable=sampler.keeps_drawable,
    )
    return completions_of(answer, policy.vocabulary)


def top_count(sampler: Sampler, policy: Policy) -> int:
    """Return how many of the likeliest tokens a sampler notes at each place: at most the vocabulary."""
    return min(sampler.config.top_logprobs or 0, policy.vocabulary)


def completions_of(answer: dict[str, Any], vocabulary: int) -> SamplesByPrompt:
    """Return the completions of each prompt in an engine's answer; vocabulary: tokens that the model can draw."""
    groups = []
    for answered_group in answer["completions"]:
        groups.append([sample_of(completion, vocabulary) for completion in answered_group])
    return groups


def sample_of(completion: dict[str, Any], vocabulary: int) -> Sample:
    """Return a completion of an engine's answer, with what was noted of its tokens."""
    return Sample(
        completion["tokens"].tolist(),
        completion["logprobs"].tolist(),
        completion["finish"],
        drawable_ids=drawable_ids_of(completion),
        top_tokens=top_tokens_of(completion, vocabulary),
    )


def drawable_ids_of(completion: dict[str, Any]) -> list[list[int]]:
    """Return the tokens that could be drawn at each place of a completion; [] where they were not noted."""
    if "drawable_ids" not in completion:
        return []
    bounds = np.cumsum(completion["drawable_counts"])[:-1]
    ids_by_place = np.split(np.asarray(completion["drawable_ids"]), bounds)
    return [ids.tolist() for ids in ids_by_place]


def top_tokens_of(completion: dict[str, Any], vocabulary: int) -> list[TopTokens]:
    """Return the likeliest tokens at each place in the order of `likeliest_tokens`; [] where they were not noted."""
    if not completion["top_ids"]:
        return []
    shape = (len(completion["tokens"]), -1)
    ids = np.asarray(completion["top_ids"]).reshape(shape)
    logp = np.asarray(completion["top_logp"]).reshape(shape)
    if ids.shape[1] == vocabulary:  # noted in the order of the ids, which then go without saying
        logp_by_id = np.empty_like(logp)
        np.put_along_axis(logp_by_id, ids, logp, axis=1)
        return [TopTokens(logp_of_place, None) for logp_of_place in logp_by_id]
    ids = with_smallest_undrawable(ids, logp)
    order = np.lexsort((ids, -logp))  # by log-probability, then by id
    ordered_ids = np.take_along_axis(ids, order, axis=1)
    ordered_logp = np.take_along_axis(logp, order, axis=1)
    return list(map(TopTokens, ordered_logp, ordered_ids))


def with_smallest_undrawable(ids: TokenIds, logp: NDArray[np.float32]) -> TokenIds:
    """Replace tokens of log-probability −∞, of which vLLM gives any, by those with the smallest ids; ids: [T, k].

    Where a place has some, all tokens that could be drawn there are among the k. So ids below k suffice: at least as
    many of them could not be drawn as there are to replace.
    """
    is_drawable = np.isfinite(logp)  # [T, k] by column
    if is_drawable.all():
        return ids
    is_drawable_id = np.zeros(ids.shape, bool)  # [T, k] by id below k
    places, columns = np.nonzero(is_drawable & (ids < ids.shape[1]))
    is_drawable_id[places, ids[places, columns]] = True
    undrawable_ids = np.argsort(is_drawable_id, axis=1, kind="stable")  # False is first; behind them, drawable ones
    undrawable_columns_before = np.cumsum(~is_drawable, axis=1) - ~is_drawable
    replacements = np.take_along_axis(undrawable_ids, undrawable_columns_before, axis=1)
    return np.where(is_drawable, ids, replacements).astype(np.int32)
