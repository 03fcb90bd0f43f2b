"""A log of completions before it is trained on: what is in it, what it lacks, and which losses can use it."""

import dataclasses
import tempfile
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.groups import unit_of
from topr_exp.config.load import load
from topr_exp.config.settings import Config
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import Prompter, build_prompter
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runs.cut_off import warn_of_imported
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.given_logprobs import check_given_logprobs
from topr_exp.sampling.imported import ImportedLog, load_imported, match_problems, open_log, tokenize_completions
from topr_exp.store import Ragged, Store
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.metrics import effective_sample_size
from topr_exp.types import Problem, TOPRError

SCORED = 64  # completions, evenly spread, whose log-probabilities are compared with the model's


def load_log(
    config: Config, train: list[Problem], prompter: Prompter, policy: Policy, store: Store
) -> tuple[Completions, dict[str, str]]:
    """Load the completions that a run imports, and rows on them for its header."""
    log = open_log(config.data, store)
    groups = config.optim.whole_groups or unit_of(config.algo.needs) == "groups"
    whole = config.data.n if groups else None
    found = load_imported(config.data, log, train, prompter, policy, whole)
    if config.mu == "sampler" and not found.has("mu_logp"):
        raise TOPRError(f"mu=sampler: {config.data.completions} has no log-probabilities of its tokens")
    alone = int((np.bincount(found.problem_index) == 1).sum())
    if alone and "group_rewards" in config.algo.needs and config.compose.mix is None:
        raise TOPRError(
            f"algo={config.algo.name} compares the completions of a prompt: {alone} of {len(found.prompts)} "
            f"prompts of {config.data.completions} have a single one"
        )
    return found, report(config, log, found, policy)


def report(config: Config, log: ImportedLog, found: Completions, policy: Policy) -> dict[str, str]:
    """Rows for a run's header; warns of many completions that were cut off."""
    algo = config.algo
    rows = {
        "columns": log.read,
        **count(found.table, found.problem_index, config.data.threshold),
        **ends(found, policy),
        **encoded_again(log, policy),
    }
    if config.mu == "none" and unit_of(algo.needs) == "pairs":
        rows["log μ"] = f"of the weights at the start, the reference of {algo.name}"
    elif config.mu_model is not None:
        rows["log μ"] = f"scored by {config.mu_model}"
    elif config.mu != "none" and found.has("mu_logp"):
        check_given_logprobs(found.table, found.problem_index, str(config.data.completions))
        rows["log μ"] = f"as it came with the log; {distance(found, policy, config.optim.score_batch_size)}"
    elif config.mu != "none":
        rows["log μ"] = f"scored by {config.model.name}, which is taken for the model that drew them (mu_model=NAME)"
    return rows


def inspect_log(source: str, settings: Sequence[str]) -> dict[str, str]:
    """The same of a log that nobody trains on, with the settings of a run; without `model=NAME` what needs none."""
    quoted = source.replace("'", r"\'")
    composer = Composer(parse_arguments([*settings, f"data.completions='{quoted}'"]))
    config = load(next(composed for _, composed in composer.jobs(composer.base())))
    with tempfile.TemporaryDirectory() as folder:
        log = open_log(config.data, Store(folder))
        if not any(text.startswith("model") for text in settings):
            named = [Problem(name, name, "") for name in log.columns["problem_id"].unique().to_pylist() if name]
            _, problem, _ = match_problems(log.columns, named, source, graded=False)
            if "sampler_logp" in log.columns.column_names:
                check_given_logprobs(log.columns, problem, source)
            return {"columns": log.read, **count(log.columns, problem, config.data.threshold)}
        policy = load_policy(config.model, config.cluster.device)
        data = dataclasses.replace(config.data, reward="given")  # no gold is needed
        asked = load_problems(config.data).train, build_prompter(config.data)
        return report(config, log, load_imported(data, log, *asked, policy, None), policy)


def count(columns: pa.Table, problem: NDArray[np.integer], threshold: float) -> dict[str, str]:
    """Completions, prompts and rewards, and the losses that can use them."""
    sizes = np.unique(problem, return_counts=True)[1]
    each = f"{sizes[0]}" if len(set(sizes.tolist())) == 1 else f"{sizes.min()} to {sizes.max()}"
    rows = {"log": f"{len(columns):,} completions of {len(sizes):,} prompts, {each} of each"}
    losses = ["of single completions"]
    if "reward" in columns.column_names:
        reward = columns["reward"].to_numpy()
        positive = reward >= threshold
        rows["rewards"] = f"{reward.min():g} to {reward.max():g}, mean {reward.mean():.3g}; "
        rows["rewards"] += f"{100 * positive.mean():.1f} % at least data.threshold={threshold:g}"
        _, group = np.unique(problem, return_inverse=True)
        correct = np.bincount(group, weights=positive)
        both = int(((correct > 0) & (correct < sizes)).sum())
        losses += [f"of pairs ({both} prompts have both kinds)"] if both else []
    values, counts = np.unique(sizes[sizes > 1], return_counts=True)
    if len(values):
        losses.append(f"of groups with data.n={values[counts.argmax()]} ({counts.max()} prompts)")
    return rows | {"losses": ", ".join(losses)}


def ends(found: Completions, policy: Policy) -> dict[str, str]:
    """How the completions end."""
    tokens, cut_off, lengths = found.tokens, found.is_truncated, found.tokens.lengths()
    ended = np.array([row[-1] in policy.eos_ids for row in tokens])
    told = f"{100 * ended.mean():.1f} % with an end token, {100 * cut_off.mean():.1f} % cut off"
    if cut_off.any():
        told += f" at {lengths[cut_off].min()} to {lengths[cut_off].max()} tokens"
    elif found.table["finish"].null_count and (at := int((lengths - ended == (lengths - ended).max()).sum())) > 1:
        longest = int((lengths - ended).max())
        told += f"; {at} have {longest} tokens: if that was the limit, set data.completion_limit={longest}"
    warn_of_imported(cut_off)
    return {"ends": told}


def encoded_again(log: ImportedLog, policy: Policy) -> dict[str, str]:
    """How many texts don't give the token ids that were logged beside them; nothing where one of both is missing."""
    if "tokens" not in log.columns.column_names or log.columns["text"].null_count:
        return {}
    pairs = zip(Ragged(tokenize_completions(log.columns, policy)), Ragged(log.columns["tokens"]), strict=True)
    other = 0
    for pair in pairs:
        ours, theirs = (ids[:-1] if len(ids) and ids[-1] in policy.eos_ids else ids for ids in pair)
        other += not np.array_equal(ours, theirs)
    return {"texts": f"{other} of {len(log.columns)} don't give the logged token ids when they are encoded again"}


def distance(found: Completions, policy: Policy, batch_size: int) -> str:
    """How far the given log-probabilities, or the sampler's, are from the model's, on some of the completions."""
    log_mu = found.lists("sampler_logp")
    rows = np.unique(np.linspace(0, len(found) - 1, SCORED).round().astype(int)).tolist()
    scored = log_probabilities(policy, found, rows, batch_size)["logp"].to_pylist()
    gaps = [np.array(ours, np.float64) - log_mu[row] for row, ours in zip(rows, scored, strict=True)]
    ess = effective_sample_size(torch.tensor([gap.sum() for gap in gaps]))
    each = np.abs(np.concatenate(gaps)).mean()
    return f"|log π − log μ| is {each:.2g} a token on {len(rows)} of them, the effective sample size {100 * ess:.0f} %"
