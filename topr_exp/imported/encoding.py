"""A log's prompts and completions as token ids of a model."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.compute import coalesce

from topr_exp.config.data import DataConfig
from topr_exp.data.prompts import (
    TokenizedProblems,
    apply_chat_template,
    build_prompter,
    refuse_missing_fields,
    tokenize_all,
    tokens_behind_answer,
)
from topr_exp.imported.log import ROWS_PER_SHARD, ImportedLog
from topr_exp.imported.rows import kind_of_prompt
from topr_exp.models.policy import Policy
from topr_exp.runtime.terminal import plural, warn
from topr_exp.sampling.completions import Completions, ProblemIndex, StoredTables, TokenIds, index_in_group
from topr_exp.sampling.generation import fingerprint
from topr_exp.sampling.sampler import split_every
from topr_exp.store import Ragged
from topr_exp.store.source import Sharding
from topr_exp.types import Problem, TOPRError

# Columns that say nothing of the prompt.
COMPLETION_COLUMNS = {"text", "finish", "tokens", "sampler_logp", "row"}
ROWS_AT_A_TIME = 1000  # as Python objects


LoggedPrompt = tuple[str, Any]  # a prompt's kind and value: prompt_tokens, messages as JSON or prompt (a text)


class PromptKey(NamedTuple):
    """What rows of one problem have in common; the id alone where a row brings no prompt."""

    problem_id: str
    prompt: Any
    gold: str | None


@dataclass(frozen=True)
class MatchedRows:
    """The problems that a log's rows answer."""

    problems: list[Problem]  # [P] in the order in which they occur
    problem_index: ProblemIndex  # of each row
    prompts: dict[int, LoggedPrompt]  # by problem, where the log brought the prompt


def encode_log(
    log: ImportedLog,
    data: DataConfig,
    policy: Policy,
    *,
    problems: Sequence[Problem],
    group_size: int | None = None,
) -> Completions:
    """Encode a log for a model, with the log-probabilities and rewards that came with it.

    A row brings its prompt (token ids, messages for the model's chat template, or a text), or a `question` for the
    run's own template, or answers one of `problems` by its `problem_id`. Text without `tokens` is tokenized, with an
    end token unless `finish` or `data.completion_limit` says it was cut off. group_size: leave out prompts with another
    number of completions. TOPRError for an unknown problem id, no gold to grade by, too long a prompt, no tokens, or
    ids that the model lacks.
    """
    source = str(data.completions)
    row_numbers = pa.array(range(len(log.columns)), pa.int32())
    columns = log.columns.append_column("row", row_numbers)  # in the log, whatever is left out below
    matched = match_problems(columns, problems, source, is_graded=data.reward != "given")
    problems_to_render = [problem for index, problem in enumerate(matched.problems) if index not in matched.prompts]
    refuse_missing_fields(build_prompter(data).template, [*problems_to_render, *problems])
    questions = encode_prompts(matched, data, policy)
    end_token = end_token_of(columns, data, policy)
    columns = fill_missing_columns(columns, policy, data.completion_limit, end_token)
    columns = columns.append_column("problem", pa.array(matched.problem_index, pa.int32()))
    faults = token_faults(Ragged(columns["tokens"]), questions.prompts, matched.problem_index, policy)
    if faults:
        refuse_or_warn(faults, len(columns), data)
        columns = without_rows(columns, faults)
    problem_index = columns["problem"].to_numpy()
    columns = columns.append_column("sample", pa.array(index_in_group(problem_index), pa.int32()))
    if group_size is not None:
        columns = keep_full_groups(columns, problem_index, group_size, source)
    if "sampler_logp" in columns.column_names:
        columns = columns.append_column("mu_logp", columns["sampler_logp"])

    # Scores depend on the prompts and the tokenizer too; both are in the name that keys other tables.
    name = f"{log.name} as read by {policy.fingerprint} after {fingerprint(questions.prompts)}"
    if faults:
        name += " without malformed ones"
    is_tokenized_here = "tokens" not in log.columns.column_names
    if is_tokenized_here and end_token != policy.tokenizer.eos_token_id:
        name += f" ended by {end_token}"
    if data.completion_limit is not None:
        name += f" cut off at {data.completion_limit}"
    if group_size is not None:
        name += f" in groups of {group_size}"
    shard_sizes = tuple(map(len, split_every(range(len(columns)), ROWS_PER_SHARD)))
    sources = (log.source,) * len(shard_sizes)  # a shard's rows may be in several of the files
    stored = StoredTables(name, Sharding(shard_sizes, sources))
    return Completions(questions.problems, questions.prompts, columns, stored)


# ---- prompts


def match_problems(columns: pa.Table, problems: Sequence[Problem], source: str, *, is_graded: bool) -> MatchedRows:
    """Find the problem that each row of a log answers: one of `problems`, or one that the row brings.

    is_graded: a gold is needed.
    """
    known_problems = {problem.id: problem for problem in problems}
    index_by_key: dict[PromptKey, int] = {}
    matched = MatchedRows([], np.zeros(len(columns), dtype=np.int32), {})
    for row_index, row in enumerate(prompt_rows(columns)):
        where = f"data.completions={source}: completion {row_index + 1}"
        kind = kind_of_prompt(where, row, problem_ids=known_problems, is_graded=is_graded)
        problem_id = row.get("problem_id") or ""
        known_problem = known_problems.get(problem_id)
        key = key_of_prompt(row, problem_id, kind=kind, known_problem=known_problem)
        new_index = len(matched.problems)
        index = index_by_key.setdefault(key, new_index)
        matched.problem_index[row_index] = index
        is_new = index == new_index
        if not is_new:
            continue
        if kind is None:
            assert known_problem is not None
            matched.problems.append(known_problem)
        else:
            problem = logged_problem(row, index, gold=key.gold or "", known_problem=known_problem)
            matched.problems.append(problem)
            if kind != "question":
                matched.prompts[index] = kind, row[kind]
    return matched


def key_of_prompt(
    row: Mapping[str, Any], problem_id: str, *, kind: str | None, known_problem: Problem | None
) -> PromptKey:
    """Return what rows of one problem have in common; kind: of the row's prompt, known_problem: the run's of its id."""
    if kind is None:
        return PromptKey(problem_id, prompt=None, gold=None)
    prompt = tuple(row[kind]) if kind == "prompt_tokens" else row[kind]
    gold = row.get("gold")
    if gold is None and kind != "question" and known_problem is not None:
        gold = known_problem.answer
    return PromptKey(problem_id, prompt, gold)


def prompt_rows(columns: pa.Table) -> Iterator[dict[str, Any]]:
    """Iterate over the columns that tell a row's prompt, row by row."""
    names = sorted(set(columns.column_names) - COMPLETION_COLUMNS)
    for batch in columns.select(names).to_batches(max_chunksize=ROWS_AT_A_TIME):
        yield from batch.to_pylist()


def logged_problem(row: Mapping[str, Any], index: int, *, gold: str, known_problem: Problem | None) -> Problem:
    """Make the problem of a prompt that a log brought; known_problem: the run's of the same id."""
    question = row.get("question") or row.get("prompt") or row.get("messages")
    if not question:
        question = " ".join(map(str, row["prompt_tokens"]))
    problem_id = row.get("problem_id") or f"imported/{index:06d}"
    if known_problem is None:
        return Problem(problem_id, question, gold)
    return Problem(problem_id, question, gold, fields=known_problem.fields)


def encode_prompts(matched: MatchedRows, data: DataConfig, policy: Policy) -> TokenizedProblems:
    """Encode the prompts of the matched problems."""
    if data.chat:
        warn_of_plain_texts(matched.prompts.values(), data, policy)
    encoded_prompts = {}
    for index, prompt in matched.prompts.items():
        encoded_prompts[index] = encode_prompt(prompt, policy, data.chat_options)
    return tokenize_all(matched.problems, build_prompter(data), policy, encoded_prompts)


def warn_of_plain_texts(prompts: Iterable[LoggedPrompt], data: DataConfig, policy: Policy) -> None:
    """Warn of prompts for a chat model that are texts without any special token, as veRL decodes them."""
    special_tokens = policy.tokenizer.all_special_tokens
    count = 0
    for kind, value in prompts:
        if kind == "prompt" and not any(token in value for token in special_tokens):
            count += 1
    if count:
        warn(
            f"data.completions={data.completions}: {plural(count, 'prompt')} without the special tokens of a chat "
            "model (data.chat=true); texts are taken as they are, and veRL leaves these tokens out of them"
        )


def encode_prompt(prompt: LoggedPrompt, policy: Policy, chat_options: Mapping[str, Any] | None) -> TokenIds:
    """Encode a logged prompt; chat_options: variables of the model's chat template."""
    kind, value = prompt
    if kind == "prompt_tokens":
        return np.array(value, dtype=np.int32)
    if kind != "messages":
        return policy.encode(value)
    if getattr(policy.tokenizer, "chat_template", None) is None:
        raise TOPRError("data.completions: the prompts are messages, and the model has no chat template")
    fault = f"data.completions: the model's chat template refuses the messages {value:.80}"
    text = apply_chat_template(policy.tokenizer, json.loads(value), chat_options or {}, fault=fault)
    return policy.encode(text, chat=True)


# ---- completions


def end_token_of(columns: pa.Table, data: DataConfig, policy: Policy) -> int | None:
    """Return the token that ended a log's completions: in chat form the one that the chat template puts there.

    The tokenizer's end token may be another one: Gemma 3's is <eos>, where <end_of_turn> ends an answer; Phi-3's too.
    """
    tokenizer = policy.tokenizer
    if data.chat or "messages" in columns.column_names:
        for token in tokens_behind_answer(tokenizer, data.chat_options or {}):
            if token in policy.eos_ids:
                return token
    return tokenizer.eos_token_id


def fill_missing_columns(columns: pa.Table, policy: Policy, limit: int | None, end_token: int | None) -> pa.Table:
    """Fill in tokens, texts and finishes where the log has none.

    limit: number of tokens at which completions were cut off; None: unknown, and finishes stay as they are.
    """
    if "tokens" not in columns.column_names:
        columns = columns.append_column("tokens", tokenize_completions(columns, policy, end_token, limit))
    tokens = Ragged(columns["tokens"])
    if limit is not None:
        finishes = []
        for ids in tokens:
            is_truncated = len(ids) >= limit and ids[-1] not in policy.eos_ids
            finishes.append("length" if is_truncated else "stop")
        columns = fill_nulls(columns, "finish", finishes)
    if columns["text"].null_count:
        texts = [policy.decode(ids.tolist()) for ids in tokens]
        columns = fill_nulls(columns, "text", texts)
    return columns


def fill_nulls(columns: pa.Table, name: str, texts: list[str]) -> pa.Table:
    """Put `texts` where the column `name` holds null."""
    texts_column = coalesce(columns[name], pa.array(texts, pa.string()))
    return columns.set_column(columns.column_names.index(name), name, texts_column)


def tokenize_completions(
    columns: pa.Table, policy: Policy, end_token: int | None, limit: int | None = None
) -> pa.ChunkedArray:
    """Encode the texts, with an end token where the completion ended by itself.

    limit: number of tokens from which on a text without `finish` counts as cut off.
    """
    ids_type = pa.list_(pa.int32())
    chunks = []
    for batch in columns.select(["text", "finish"]).to_batches(max_chunksize=ROWS_AT_A_TIME):
        texts = batch["text"].to_pylist()
        finishes = batch["finish"].to_pylist()
        encoded_texts = policy.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for ids, finish in zip(encoded_texts, finishes, strict=True):
            if finish is None:
                has_ended = limit is None or len(ids) < limit
            else:
                has_ended = finish == "stop"
            has_end_token = bool(ids) and ids[-1] in policy.eos_ids
            if has_ended and not has_end_token and end_token is not None:
                ids.append(end_token)
        chunks.append(pa.array(encoded_texts, ids_type))
    return pa.chunked_array(chunks, ids_type)


def token_faults(
    tokens: Ragged, prompts: Sequence[TokenIds], problem_index: ProblemIndex, policy: Policy
) -> dict[int, str]:
    """Say by row why a completion can't be scored, to follow its number."""
    faults = {}
    for row, (ids, problem) in enumerate(zip(tokens, problem_index.tolist(), strict=True)):
        prompt = prompts[problem]
        largest_id = max(ids.max(initial=0), prompt.max(initial=0))
        length = len(prompt) + len(ids)
        if not len(ids):
            faults[row] = "is empty"
        elif largest_id >= policy.vocabulary:
            difference = f"token id {largest_id}, the model has {policy.vocabulary}"
            faults[row] = f"has {difference}; leave out `tokens` to have the text tokenized"
        elif length > policy.context:
            faults[row] = f"and its prompt have {length} tokens, the model's context is {policy.context}"
        elif is_padded(prompt, ids, policy):
            faults[row] = "or its prompt is padded; log their ids without end or padding tokens beside the first"
    return faults


def is_padded(prompt: TokenIds, completion: TokenIds, policy: Policy) -> bool:
    """Check for a prompt that is padded on the left, or a completion that is after its end token."""
    fillers = {*policy.eos_ids, policy.tokenizer.pad_token_id}
    text_end = len(completion)
    while text_end and completion[text_end - 1] in fillers:
        text_end -= 1
    final_fillers = completion[text_end:]
    ends_padded = len(final_fillers) > 1 and final_fillers[0] in policy.eos_ids
    begins_padded = len(prompt) > 1 and fillers.issuperset(prompt[:2].tolist())
    return ends_padded or begins_padded


def refuse_or_warn(faults: Mapping[int, str], row_count: int, data: DataConfig) -> None:
    """Raise TOPRError for rows that can't be scored; warn where `data.skip_malformed` leaves them out."""
    first_row = min(faults)
    fault = f"data.completions={data.completions}: completion {first_row + 1} {faults[first_row]}"
    if not data.skip_malformed or len(faults) == row_count:
        raise TOPRError(fault)
    warn(f"{plural(len(faults), 'malformed completion')} left out: {fault}")


def without_rows(columns: pa.Table, rows: Iterable[int]) -> pa.Table:
    is_kept = np.full(len(columns), True)
    is_kept[list(rows)] = False
    return columns.filter(pa.array(is_kept))


def keep_full_groups(columns: pa.Table, problem_index: ProblemIndex, group_size: int, source: str) -> pa.Table:
    """Select the rows of prompts with exactly `group_size` completions; TOPRError where there is none."""
    sizes = np.bincount(problem_index)  # by problem
    is_in_full_group = sizes[problem_index] == group_size  # by row
    groups = columns.filter(pa.array(is_in_full_group))
    if not len(groups):
        counts = ", ".join(map(str, np.unique(sizes)))
        raise TOPRError(f"data.n={group_size}: no prompt of {source} has so many completions; they have {counts}")
    return groups
