"""Completions made elsewhere (any model, any framework) in the place of sampled ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.compute import fill_null

from topr_exp.config.data import DataConfig
from topr_exp.data import rollout_files
from topr_exp.data.prompts import Prompter, tokenize_prompts
from topr_exp.models.policy import Policy
from topr_exp.runtime.terminal import plural, warn
from topr_exp.sampling.completions import Completions, StoredTables
from topr_exp.sampling.generation import fingerprint
from topr_exp.schema import first_line
from topr_exp.store import Ragged, Store
from topr_exp.store.source import Source
from topr_exp.types import Problem, TOPRError


@dataclass(frozen=True)
class ImportedLog:
    """A log of completions as it was read, before a tokenizer saw it."""

    name: str  # of the store's table
    columns: pa.Table
    read: str  # which columns were read as what
    source: Source


def open_log(data: DataConfig, store: Store) -> ImportedLog:
    """The rows of `data.completions`: a file or folder or hub:NAME, imported on the way, or a store's table.

    Raises TOPRError (one line) for a table that is not there, and for the first row that is malformed.
    """
    source = str(data.completions)
    if rollout_files.source_files(source) or source.startswith(rollout_files.HUB) or Path(source).is_dir():
        reader = rollout_files.RolloutReader(source, data.columns, data.skip_malformed)
        table, _ = rollout_files.import_rows(store, reader)
        read = [role if role == name else f"{role} from {name}" for role, name in reader.found.items()]
        read += [f"not read: {', '.join(sorted(reader.unread))}"] if reader.unread else []
        read += [f"{len(reader.skipped)} malformed rows left out: {reader.skipped[0]}"] if reader.skipped else []
    elif source.startswith(rollout_files.IMPORTED) and (store.root / source / "key.json").is_file():
        table, read = store.open(store.root / source), []
    else:
        raise TOPRError(f"data.completions={source}: {rollout_files.NO_LOG.format(store.root)}")
    table.hold()
    columns, _, read_from = table.snapshot()
    if data.reward == "given" and "reward" not in columns.column_names:
        named = "" if data.columns else "; data.columns={reward: NAME} names one, {reward: NAME+NAME} adds up several"
        raise TOPRError(f"data.reward=given: {source} has no column of rewards{named} ({'; '.join(read)})")
    return ImportedLog(table.name, columns, "; ".join(read), read_from)


def load_imported(
    data: DataConfig, log: ImportedLog, problems: list[Problem], prompter: Prompter, policy: Policy, whole: int | None
) -> Completions:
    """Encode a log, with its prompts and the log-probabilities and rewards that came with it.

    A row brings its prompt (token ids, messages for the model's chat template, or text as it is), or a `question` for
    the run's own template, or answers one of `problems` by its `problem_id`. Text without `tokens` is tokenized, with
    an end token unless `finish` or `data.completion_limit` says it was cut off. whole: only groups of so many.
    TOPRError for an unknown problem id, no gold to grade by, too long a prompt, no tokens, or ids that the model lacks.
    """
    source, columns = str(data.completions), log.columns
    columns = columns.append_column("row", pa.array(range(len(columns)), pa.int32()))  # of the log
    limit = data.completion_limit
    answered, index, given = match_problems(columns, problems, source, data.reward != "given")
    prompts = {place: encode_prompt(kind, value, policy, data.chat_options) for place, (kind, value) in given.items()}
    questions = tokenize_prompts(answered, prompter, policy, 1, prompts)
    if questions.too_long:
        raise TOPRError(f"data.completions={source}: {questions.too_long} prompts are longer than the model's context")
    if "tokens" not in columns.column_names:
        columns = columns.append_column("tokens", tokenize_completions(columns, policy, limit))
    if limit is not None:
        cut_off = [len(row) >= limit and row[-1] not in policy.eos_ids for row in Ragged(columns["tokens"])]
        columns = fill_nulls(columns, "finish", ["length" if each else "stop" for each in cut_off])
    if columns["text"].null_count:
        columns = fill_nulls(columns, "text", [policy.decode(row.tolist()) for row in Ragged(columns["tokens"])])
    # What is scored depends on the prompts and the tokenizer too; both are in the name that keys other tables.
    name = f"{log.name} as read by {policy.fingerprint} after {fingerprint(questions.prompts)}"
    if bad := token_faults(Ragged(columns["tokens"]), questions.prompts, index, policy):
        row, why = next(iter(bad.items()))
        told = f"data.completions={source}: completion {row + 1} {why}"
        if not data.skip_malformed or len(bad) == len(columns):
            raise TOPRError(told)
        warn(f"{plural(len(bad), 'malformed completion')} left out: {told}")
        good = ~np.isin(np.arange(len(columns)), [*bad])
        columns, index, name = columns.filter(pa.array(good)), index[good], f"{name} without malformed ones"
    columns = columns.append_column("problem", pa.array(index, pa.int32()))
    columns = columns.append_column("sample", pa.array(index_in_group(index), pa.int32()))
    if limit is not None:
        name += f" cut off at {limit}"
    if whole is not None:
        sizes = np.bincount(index)
        columns, name = columns.filter(pa.array(sizes[index] == whole)), f"{name} in groups of {whole}"
        if not len(columns):
            counts = ", ".join(map(str, np.unique(sizes)))
            raise TOPRError(f"data.n={whole}: no prompt of {source} has so many completions; they have {counts}")
    bounds = [*range(0, len(columns), rollout_files.ROWS_PER_SHARD), len(columns)]
    if "sampler_logp" in columns.column_names:
        columns = columns.append_column("mu_logp", columns["sampler_logp"])
    sources = (log.source,) * (len(bounds) - 1)  # its rows may be in several of the files
    return Completions(questions.problems, questions.prompts, columns, StoredTables(name, bounds, sources))


def match_problems(
    columns: pa.Table, problems: list[Problem], source: str, graded: bool
) -> tuple[list[Problem], NDArray[np.int32], dict[int, tuple[str, Any]]]:
    """The problems that a table's rows answer, in the order in which they occur, each row's, and prompts brought along.

    graded: a gold is needed. A prompt is its kind and its value, by the problem's place.
    """
    known = {problem.id: problem for problem in problems}
    answered: dict[tuple[Any, ...], int] = {}
    found: list[Problem] = []
    given: dict[int, tuple[str, Any]] = {}
    index = np.zeros(len(columns), dtype=np.int32)
    names = sorted({*columns.column_names} - {"text", "finish", "tokens", "sampler_logp", "row"})
    rows = (one for batch in columns.select(names).to_batches() for one in batch.to_pylist())
    for row, one in enumerate(rows):
        name: Any = one.get("problem_id")
        gold = one.get("gold")
        kind = rollout_files.kind_of_prompt(f"data.completions={source}: completion {row + 1}", one, known, graded)
        if kind not in (None, "question") and gold is None and name in known:
            gold = known[name].answer
        value: Any = one[kind] if kind is not None else None
        key = (name,) if kind is None else (name or "", tuple(value) if kind == "prompt_tokens" else value, gold)
        if key not in answered:
            place = answered[key] = len(found)
            if kind is None:
                found.append(known[name])
            else:
                text = one.get("question") or one.get("prompt") or one.get("messages") or " ".join(map(str, value))
                fields = known[name].fields if name in known else {}
                found.append(Problem(name or f"imported/{place:06d}", text, gold or "", fields=fields))
                if kind != "question":
                    given[place] = kind, value
        index[row] = answered[key]
    return found, index, given


def fill_nulls(columns: pa.Table, name: str, texts: list[str]) -> pa.Table:
    filled = fill_null(columns[name].combine_chunks(), pa.array(texts, pa.string()))
    return columns.set_column(columns.column_names.index(name), name, filled)


def encode_prompt(
    kind: str, value: Any, policy: Policy, chat_options: Mapping[str, Any] | None = None
) -> NDArray[np.int32]:
    """A prompt that a log brought, as token ids; chat_options: variables of the model's chat template."""
    if kind == "prompt_tokens":
        return np.array(value, dtype=np.int32)
    if kind == "messages":
        if getattr(policy.tokenizer, "chat_template", None) is None:
            raise TOPRError("data.completions: the prompts are messages, and the model has no chat template")
        try:
            messages = json.loads(value)
            value = policy.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **(chat_options or {})
            )
        except Exception as error:  # a template is a program of the model's
            refused = f"data.completions: the model's chat template refuses the messages {value:.80}"
            raise TOPRError(f"{refused} ({first_line(error)})") from None
    return policy.encode(value, chat=kind == "messages")


def index_in_group(index: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each row, how many rows before it have the same value, which is 0 or more."""
    order, sizes = np.argsort(index, kind="stable"), np.bincount(index)
    places = np.empty(len(index), np.int32)
    places[order] = np.arange(len(index)) - (np.cumsum(sizes) - sizes)[index[order]]
    return places


def tokenize_completions(columns: pa.Table, policy: Policy, limit: int | None = None) -> Any:
    """The texts as token ids, ended by an end-of-sequence token where the completion ended by itself.

    limit: tokens from which on a text without `finish` did not.
    """
    eos = [policy.tokenizer.eos_token_id] if policy.tokenizer.eos_token_id is not None else []

    def ending(ids: list[int], finish: str | None) -> list[int]:
        cut_off = finish not in (None, "stop") or (finish is None and limit is not None and len(ids) >= limit)
        return [] if cut_off or ids[-1:] == eos else eos

    chunks = []
    for batch in columns.select(["text", "finish"]).to_batches(max_chunksize=1000):
        texts, finishes = batch["text"].to_pylist(), batch["finish"].to_pylist()
        ids = policy.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        rows = [[*row, *ending(row, finish)] for row, finish in zip(ids, finishes, strict=True)]
        chunks.append(pa.array(rows, pa.list_(pa.int32())))
    return pa.chunked_array(chunks, pa.list_(pa.int32()))


def token_faults(tokens: Ragged, prompts: Any, index: NDArray[np.int32], policy: Policy) -> dict[int, str]:
    """Rows that can't be scored, with the reason."""
    found = {}
    for row, (ids, problem) in enumerate(zip(tokens, index.tolist(), strict=True)):
        token = max(int(ids.max(initial=0)), int(prompts[problem].max(initial=0)))
        length = len(prompts[problem]) + len(ids)
        if not len(ids):
            found[row] = "is empty"
        elif token >= policy.vocabulary:
            which = f"token id {token}, the model has {policy.vocabulary}"
            found[row] = f"has {which}; leave out `tokens` to have the text tokenized"
        elif length > policy.context:
            found[row] = f"and its prompt have {length} tokens, the model's context is {policy.context}"
    return found
