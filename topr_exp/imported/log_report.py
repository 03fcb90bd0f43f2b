"""A description of a log before it is trained on: its content, its gaps, and the losses that can use it."""

import dataclasses
import tempfile
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.groups import unit_of
from topr_exp.config.load import load
from topr_exp.config.settings import Config
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.imported.encoding import encode_log, match_problems, tokenize_completions
from topr_exp.imported.given_logprobs import check_given_logprobs
from topr_exp.imported.log import ImportedLog, open_log
from topr_exp.imported.overlap import warn_of_test_questions
from topr_exp.imported.reader import without_logprobs
from topr_exp.models.loading import refuse_other_logits
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runtime import distributed
from topr_exp.sampling.completions import Completions, ProblemIndex
from topr_exp.sampling.cut_off import warn_of_imported
from topr_exp.store import Ragged, Store
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.metrics import effective_sample_size
from topr_exp.types import Problem, TOPRError

COMPARED_ROWS = 64  # completions, evenly spread, whose log-probabilities are compared with the model's


def load_log(config: Config, sets: ProblemSets, policy: Policy, store: Store) -> tuple[Completions, dict[str, str]]:
    """Load the completions that a run imports, and rows on them for its header."""
    log = open_log(config.data, store)
    needs_groups = config.optim.whole_groups or unit_of(config.algo.needs) == "groups"
    group_size = config.data.n if needs_groups else None
    completions = encode_log(log, config.data, policy, problems=sets.train, group_size=group_size)
    if config.mu == "sampler" and not completions.has("mu_logp"):
        raise without_logprobs(config.data)
    if "group_rewards" in config.algo.needs and config.compose.mix is None:
        refuse_single_completions(completions, config)
    if distributed.is_main_process():
        warn_of_test_questions(completions, sets.test, config.data, policy)
    return completions, describe_log(config, log, completions, policy)


def refuse_single_completions(completions: Completions, config: Config) -> None:
    """Raise TOPRError where a prompt has a single completion, which a loss on groups can't compare."""
    single = (np.bincount(completions.problem_index) == 1).sum()
    if single:
        raise TOPRError(
            f"algo={config.algo.name} compares the completions of a prompt: {single} of {len(completions.prompts)} "
            f"prompts of {config.data.completions} have a single one"
        )


def inspect_log(source: str, settings: Sequence[str]) -> dict[str, str]:
    """Describe a log without training on it, by the settings of a run; without `model=NAME` what needs no model."""
    quoted_source = source.replace("'", r"\'")  # in quotes: Hydra would read the commas and brackets of a path
    composer = Composer(parse_arguments([*settings, f"data.completions='{quoted_source}'"]))
    _, composed = next(composer.jobs())
    config = load(composed)
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(config.data, Store(folder))
        if not any(text.startswith("model") for text in settings):
            return describe_without_model(config, log)
        policy = load_policy(config.model, config.cluster.device)
        refuse_other_logits(policy.model)
        problems = load_problems(config.data).train
        data = dataclasses.replace(config.data, reward="given")  # no gold is needed
        completions = encode_log(log, data, policy, problems=problems)
        return describe_log(config, log, completions, policy)


def describe_without_model(config: Config, log: ImportedLog) -> dict[str, str]:
    """Describe what needs no tokenizer of a log; every problem id counts as known."""
    source = str(config.data.completions)
    columns = log.columns
    problem_ids = columns["problem_id"].unique().to_pylist()
    problems = [Problem(problem_id, problem_id, "") for problem_id in problem_ids if problem_id]
    problem_index = match_problems(columns, problems, source, is_graded=False).problem_index
    if "sampler_logp" in columns.column_names:
        check_given_logprobs(columns, problem_index, source)
    counts = describe_counts(columns, problem_index, config.data.threshold)
    return {"columns": log.description, **counts}


def describe_log(config: Config, log: ImportedLog, completions: Completions, policy: Policy) -> dict[str, str]:
    """Describe a log for a run's header; warns of many completions that were cut off."""
    rows = {
        "columns": log.description,
        **describe_counts(completions.table, completions.problem_index, config.data.threshold),
        "ends": describe_ends(completions, policy),
    }
    warn_of_imported(completions.is_truncated)
    has_tokens_and_texts = "tokens" in log.columns.column_names and not log.columns["text"].null_count
    if has_tokens_and_texts and distributed.is_main_process():  # which alone prints it: minutes for a large log
        rows["texts"] = describe_tokenization(log, policy)
    log_mu_text = describe_log_mu(config, completions, policy)
    if log_mu_text is not None:
        rows["log μ"] = log_mu_text
    return rows


def describe_log_mu(config: Config, completions: Completions, policy: Policy) -> str | None:
    """Say where log μ comes from; None where the loss reads none. TOPRError for given ones that are fill values."""
    if config.mu == "none" and unit_of(config.algo.needs) == "pairs":
        return f"of the weights at the start, the reference of {config.algo.name}"
    if config.mu_path is not None:
        return f"scored by {config.mu_path}"
    if config.mu == "none":
        return None
    if not completions.has("mu_logp"):
        return f"scored by {config.model.name}, which is taken for the model that drew them (mu=NAME)"
    check_given_logprobs(completions.table, completions.problem_index, str(config.data.completions))
    gap = describe_logprob_gap(completions, policy, config.optim.score_batch_size)
    return f"as it came with the log; {gap}"


def describe_counts(columns: pa.Table, problem_index: ProblemIndex, threshold: float) -> dict[str, str]:
    """Describe the numbers of completions, prompts and rewards, and the losses that can use them."""
    _, group_index, sizes = np.unique(problem_index, return_inverse=True, return_counts=True)
    smallest = sizes.min()
    largest = sizes.max()
    size_range = f"{smallest} to {largest}"
    if smallest == largest:
        size_range = f"{largest}"
    rows = {"log": f"{len(columns):,} completions of {len(sizes):,} prompts, {size_range} of each"}
    repeats = count_repeats(columns, group_index)
    if repeats:
        rows["repeats"] = f"{repeats:,} of the prompts, with the completions of an earlier step once more"
    correct_counts = None
    if "reward" in columns.column_names:
        rewards = columns["reward"].to_numpy()
        is_correct = rewards >= threshold
        rows["rewards"] = (
            f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.3g}; "
            f"{100 * is_correct.mean():.1f} % at least data.threshold={threshold:g}"
        )
        correct_counts = np.bincount(group_index, weights=is_correct)
    rows["losses"] = describe_losses(sizes, correct_counts)
    return rows


def describe_losses(sizes: NDArray[np.integer], correct_counts: NDArray[np.number] | None) -> str:
    """Name the losses that can use a log, by the completions of each prompt, and the correct ones, [P]."""
    losses = ["of single completions"]
    if correct_counts is not None:
        is_mixed = (correct_counts > 0) & (correct_counts < sizes)
        if is_mixed.any():
            losses.append(f"of pairs ({is_mixed.sum()} prompts have both kinds)")
    group_sizes, prompt_counts = np.unique(sizes[sizes > 1], return_counts=True)
    if len(group_sizes):
        commonest = prompt_counts.argmax()
        losses.append(f"of groups with data.n={group_sizes[commonest]} ({prompt_counts[commonest]} prompts)")
    return ", ".join(losses)


def count_repeats(columns: pa.Table, group_index: NDArray[np.integer]) -> int:
    """Count the groups of two or more completions that repeat those of the same prompt at an earlier step.

    TRL logs a batch at each step, also where several steps train on it (num_iterations, steps_per_generation).
    """
    table = columns.select(["problem_id", "text"]).append_column("group", pa.array(group_index))
    is_of_step = pc.starts_with(table["problem_id"], "step ").fill_null(False)  # as `imported.rows` names problems
    prompts: dict[int, str] = {}  # by group
    text_hashes: dict[int, list[int]] = {}  # of a group's completions
    for batch in table.filter(is_of_step).to_batches():
        for row in batch.to_pylist():
            _, _, prompt = row["problem_id"].partition(", ")  # behind the step
            prompts[row["group"]] = prompt
            text_hashes.setdefault(row["group"], []).append(hash(row["text"]))
    contents = []
    for group, hashes in text_hashes.items():
        if len(hashes) > 1:
            contents.append((prompts[group], *hashes))
    return len(contents) - len(set(contents))


def describe_ends(completions: Completions, policy: Policy) -> str:
    """Say how the completions end."""
    lengths = completions.tokens.lengths()
    is_truncated = completions.is_truncated
    has_end_token = np.array([ids[-1] in policy.eos_ids for ids in completions.tokens])
    text = f"{100 * has_end_token.mean():.1f} % with an end token, {100 * is_truncated.mean():.1f} % cut off"
    if is_truncated.any():
        cut_lengths = lengths[is_truncated]
        return f"{text} at {cut_lengths.min()} to {cut_lengths.max()} tokens"
    text_lengths = lengths - has_end_token
    longest = text_lengths.max()
    longest_count = (text_lengths == longest).sum()
    if completions.table["finish"].null_count and longest_count > 1:
        text += f"; {longest_count} have {longest} tokens: if that was the limit, set data.completion_limit={longest}"
    return text


def describe_tokenization(log: ImportedLog, policy: Policy) -> str:
    """Say how many texts don't give the token ids that were logged beside them."""
    encoded_texts = Ragged(tokenize_completions(log.columns, policy, end_token=None))
    logged_tokens = Ragged(log.columns["tokens"])
    different = 0
    for encoded_ids, logged_ids in zip(encoded_texts, logged_tokens, strict=True):
        if not np.array_equal(without_end(encoded_ids, policy), without_end(logged_ids, policy)):
            different += 1
    return f"{different} of {len(logged_tokens)} don't give the logged token ids when they are encoded again"


def without_end(ids: NDArray[np.integer], policy: Policy) -> NDArray[np.integer]:
    """Leave out an end token."""
    if len(ids) and ids[-1] in policy.eos_ids:
        return ids[:-1]
    return ids


def describe_logprob_gap(completions: Completions, policy: Policy, batch_size: int) -> str:
    """Say how far the given log-probabilities are from the model's, on some of the completions."""
    log_mu = completions.lists("sampler_logp")
    positions = np.linspace(0, len(completions) - 1, COMPARED_ROWS)
    rows = np.unique(positions.round().astype(int)).tolist()
    log_pi = log_probabilities(policy, completions, rows, batch_size).to_pylist()
    gaps = []  # log π − log μ of the tokens, an array a completion
    for row, token_log_pi in zip(rows, log_pi, strict=True):
        gaps.append(np.array(token_log_pi, np.float64) - log_mu[row])
    sequence_gaps = torch.tensor([gap.sum() for gap in gaps])
    ess = effective_sample_size(sequence_gaps)
    token_gaps = np.concatenate(gaps)
    token_gap = np.abs(token_gaps).mean()
    return (
        f"|log π − log μ| is {token_gap:.2g} a token on {len(rows)} of them, "
        f"the effective sample size {100 * ess:.0f} %"
    )
