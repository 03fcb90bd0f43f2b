"""Completions made elsewhere, read from JSON lines, Parquet, a saved `datasets` folder or the hub.

Rows become one form, a completion each: a prompt (text), messages (JSON), prompt_tokens or the run's own question or
problem_id; completion, tokens, logprobs, reward, gold and finish where they are there. Columns: docs/own_rollouts.md.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import LARGEST_REWARD, Columns
from topr_exp.data.problems import as_text
from topr_exp.data.traces import trace_rows
from topr_exp.data.user_lines import numbered_lines, strict_object
from topr_exp.runtime.checksums import cached_digest
from topr_exp.runtime.files import disk_errors
from topr_exp.schema import plain
from topr_exp.store import Store, Table
from topr_exp.store.completions import COLUMNS, LISTS, TEXTS
from topr_exp.store.source import Derivation
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

HUB = "hub:"
IMPORTED = "imported/"  # of a store's tables
NO_LOG = "neither a file nor an imported table of {}; `python -m topr_exp.store export` writes another table to a file"
ROWS_PER_SHARD = 10_000
# Ours first, then those of TRL, veRL, prime-rl, verifiers and OpenAI's messages.
NAMES = {
    "prompt": ("prompt", "input", "messages"),
    "completion": ("completion", "output", "response"),
    "reward": ("reward", "score", "rewards"),
    "logprobs": ("logprobs", "output_logprobs", "completion_logprobs"),
    "tokens": ("tokens", "output_tokens", "completion_ids", "completion_token_ids"),
    "prompt_tokens": ("prompt_tokens", "input_tokens", "prompt_ids", "prompt_token_ids"),
    "question": ("question",),
    "gold": ("gold", "answer", "gts", "ground_truth"),
    "problem_id": ("problem_id", "example_id", "prompt_id"),
    "finish": ("finish", "finish_reason", "is_truncated", "truncated"),
}
FIRST_FORM = {"question", "gold", "problem_id", "completion", "finish", "tokens", "logprobs"}  # read so from the first
KINDS = ("prompt_tokens", "messages", "prompt", "question")  # of prompts, the most exact first
OF_COMPLETION = ("completion", "tokens", "logprobs", "reward", "finish")
ALL_OR_NONE = (*LISTS, "reward")  # either all rows have one or none has
FINISHES = ("stop", "length", "stop_string")
LOGPROB_ABOVE_ZERO = 1e-4  # rounding of log 1 in bf16 or in another framework's kernel
LOGPROB_LEAST = -1e30  # below lies what float32 turns into an infinity
MAX_TOKEN = 2**31 - 1
MOST_UNPACKED = 1 << 30  # bytes of a Parquet file that is LARGEST_EXPANSION times smaller
LARGEST_EXPANSION = 1000
PARQUET_ROWS = 100  # that are unpacked at once


@dataclass
class RolloutReader:
    """The completions of a file, a folder or a data set of the hub, checked row by row.

    Raises TOPRError "FILE:LINE: COLUMN ...", or "FILE: row N: ..." where it has no lines.
    """

    source: str
    columns: Columns | None = None
    skip_malformed: bool = False
    found: dict[str, str] = field(default_factory=dict)  # role -> the column that was read
    unread: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)  # what is wrong with the rows that were left out
    names: tuple[str, ...] = ()  # the columns of the newest row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        prompts: dict[str, str] = {}  # of an id
        has: set[str] | None = None
        for where, raw in raw_rows(self.source):
            try:
                whole = strict_object(where, raw) if isinstance(raw, bytes) else raw
                parts = trace_rows(whole) if {"nodes", "traces"} & whole.keys() else [whole]
                rows, asked = [self.checked(one) for part in parts for one in self.unlisted(part)], has
                for row in rows:
                    present = row.keys() & {*ALL_OR_NONE}
                    asked = present if asked is None else asked
                    if name := min(present ^ asked, default=None):
                        raise ValueError(self.unlike(name, has_it=name not in asked))
                    name, prompt = row.get("problem_id"), prompt_of(row)
                    if name is not None and prompt and prompts.setdefault(name, prompt) != prompt:
                        raise ValueError(f"{self.label('problem_id')} {name} has another prompt before")
            except (ValueError, TOPRError) as error:
                told = str(error) if isinstance(error, TOPRError) else f"{where}: {error}"
                if not self.skip_malformed:
                    raise TOPRError(told) from None
                self.skipped.append(told)
            else:
                has = asked
                yield from rows
        if has is None:
            raise TOPRError(self.skipped[0] if self.skipped else f"{self.source} holds no completions")

    def label(self, name: str) -> str:
        """The column that a part of a row was read from."""
        return self.found.get("prompt" if name == "messages" else name, name)

    def unlike(self, name: str, *, has_it: bool) -> str:
        """Say that a row has a value that the rows before lack, or the other way round."""
        label = self.label(name)
        if has_it:
            return f"has {label}, unlike the rows before; all rows or none"
        empty = label in self.names or "+" in label
        state = f"{label} is empty (null, or pandas' NaN)" if empty else f"lacks {label}"
        return f"{state}, unlike the rows before; all rows or none (data.skip_malformed=true leaves such rows out)"

    def ways(self, role: str) -> str:
        """Name the columns of the newest row, and the setting that says which of them is what."""
        empty = [name for name in NAMES[role] if name in self.names]
        if empty:
            return f"{empty[0]} is empty (null)"
        if not self.names:
            return "the row has no columns"
        return f"the columns are {', '.join(self.names)}; data.columns={{{role}: NAME}} names one"

    def unlisted(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The values by role of each completion in a row, which may be a prompt's with lists."""
        self.names = tuple(row)
        chosen = roles_of(self.names, tuple(name for name, value in row.items() if value is not None), self.columns)
        self.found |= chosen
        values = {role: row[name] if name in row else added_up(row, name) for role, name in chosen.items()}
        self.unread |= row.keys() - {*chosen.values(), *chosen.get("reward", "").split("+")}
        first: Any = values.get("completion", values.get("tokens"))
        several = isinstance(first, list) and bool(first)
        if not several or not all(isinstance(one, (str, list) if "completion" in values else list) for one in first):
            yield values
            return
        lists = {role: values.pop(role) for role in OF_COMPLETION if role in values}
        for role, value in lists.items():
            if not isinstance(value, list) or len(value) != len(first):
                given = f"{len(value)} values" if isinstance(value, list) else "one value"
                raise ValueError(f"{chosen[role]} has {given} for {len(first)} completions")
        for each in zip(*lists.values(), strict=True):
            yield values | {role: value for role, value in zip(lists, each, strict=True) if value is not None}

    def checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """One completion in its form; ValueError where it is none."""
        row = dict(row)
        for role, ids in (("prompt", "prompt_tokens"), ("completion", "tokens")):
            value = row.get(role)
            if isinstance(value, list) and value and type(value[0]) is int:
                row.setdefault(ids, row.pop(role))
            elif isinstance(value, dict):
                row[role] = [value]
        if type(row.get("problem_id")) in (int, float):
            row["problem_id"] = as_text(row["problem_id"])
        if row.get("gold") is not None:
            row["gold"] = as_text(row["gold"])  # lists and objects as JSON
        if isinstance(row.get("reward"), bool):
            row["reward"] = float(row["reward"])
        if isinstance(row.get("finish"), bool):
            row["finish"] = "length" if row["finish"] else "stop"
        step, row = row.pop("step", None), take_turns(row)
        if fault := next(self.faults(row), None):
            raise ValueError(fault)
        if "reward" in row:
            row["reward"] = float(row["reward"])  # Arrow takes whole numbers of 64 bits alone
        if "logprobs" in row:
            row["logprobs"] = [float(value) for value in row["logprobs"]]
        if step is not None:
            digest = hashlib.sha256(str(prompt_of(row)).encode()).hexdigest()
            row["problem_id"] = f"step {as_text(step)}, {digest[:16]}"
        return row

    def faults(self, row: dict[str, Any]) -> Iterator[str]:
        """Why a row is no completion; each fault assumes that there is none before it."""
        for name in TEXTS:
            if not isinstance(row.get(name, ""), str):
                value: Any = row[name]
                kind = "NaN, as pandas writes an empty cell" if value != value else type(value).__name__
                yield f"{self.label(name)} must be text; got {kind}"
        if not {"completion", "tokens"} & row.keys():
            yield f"completion is missing; {self.ways('completion')}"
        if "problem_id" not in row and prompt_of(row) is None:
            missing = "problem_id is missing, and question and gold are not both there instead, nor a prompt"
            yield f"{missing}; {self.ways('prompt')}"
        if row.get("finish", "stop") not in FINISHES:
            yield f"{self.label('finish')} must be one of {', '.join(FINISHES)}; got {row['finish']!r}"
        reward = row.get("reward", 0)
        if type(reward) not in (int, float) or not abs(reward) <= LARGEST_REWARD:  # false for NaN too
            yield f"{self.label('reward')} must be a finite number; got {reward!r:.80}"
        for name in ("prompt_tokens", "tokens"):
            ids = row.get(name, [0])
            if not isinstance(ids, list) or {*map(type, ids)} != {int} or min(ids) < 0 or max(ids) > MAX_TOKEN:
                yield f"{self.label(name)} must be token ids from 0 to {MAX_TOKEN}, at least one; got {ids!r:.80}"
        values, label, tokens = row.get("logprobs", []), self.label("logprobs"), self.label("tokens")
        if "logprobs" in row and "tokens" not in row:
            yield f"{label} without {tokens}: nothing says which tokens they belong to"
        numbers = isinstance(values, list) and {*map(type, values)} <= {int, float}
        if not numbers or not all(LOGPROB_LEAST <= value <= LOGPROB_ABOVE_ZERO for value in values):  # NaN too
            yield f"{label} must be finite numbers of at most 0 (natural logarithms of probabilities)"
        if "logprobs" in row and len(values) != len(row["tokens"]):
            yield f"{len(values)} {label} for {len(row['tokens'])} {tokens}"


@functools.lru_cache
def roles_of(names: tuple[str, ...], there: tuple[str, ...], columns: Columns | None) -> dict[str, str]:
    """The column of each role, as the settings name it, or else the first known name; there: those that hold a value.

    ValueError for a column that the settings name and that a row doesn't have.
    """
    named = {role: name for role, name in (plain(columns) if columns else {}).items() if name is not None}
    for role, name in named.items():
        if name not in names and not (role == "reward" and {*name.split("+")} <= {*names}):
            raise ValueError(f"data.columns.{role}={name}: no such column; it has {', '.join(names)}")
    free = [name for name in there if name not in named.values()]
    found = {role: name for role, known in NAMES.items() for name in reversed(known) if name in free} | named
    rest = [name for name in names if name not in {"step", "advantage", *found.values()}]
    if "reward" not in found and {"step", "advantage"} <= {*free} and len(rest) == 1:
        found["reward"] = rest[0]  # TRL names a reward after the function that gave it; of several it logs no sum
    found = {role: name for role, name in found.items() if name in there or "+" in name}
    if "problem_id" not in found and "step" in free and ("advantage" in free or {"input", "output"} <= {*free}):
        found["step"] = "step"  # of TRL and veRL: a prompt of another epoch makes another group
    return found


def added_up(row: Mapping[str, Any], names: str) -> float | None:
    """The sum of several columns of rewards; what is missing or NaN counts nothing, as in TRL."""
    values = [row[name] for name in names.split("+") if row[name] is not None]
    if bad := [value for value in values if not isinstance(value, (int, float))]:
        raise ValueError(f"data.columns.reward={names}: {bad[0]!r:.80} is no number")
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else None


def prompt_of(row: Mapping[str, Any]) -> str | None:
    """The prompt that a row brings, with its kind; None: it names a problem of the run's."""
    kind = next((kind for kind in KINDS if row.get(kind) is not None), None)
    if kind == "question" and row.get("gold") is None and row.get("reward") is None:
        kind = None
    return None if kind is None else f"{kind} {row[kind]}"


def kind_of_prompt(where: str, row: Mapping[str, Any], known: Collection[str] | None, graded: bool) -> str | None:
    """The kind of prompt that a row brings; None: it answers a problem of the run's.

    known: the ids of the run's problems; None: unknown. Raises TOPRError for another id, or no gold in a graded row.
    """
    kind = next((kind for kind in KINDS if row.get(kind) is not None), None)
    if kind == "question" and row.get("gold") is None and graded:
        kind = None  # an id's question, for people to read
    name = row.get("problem_id")
    if kind is None and known is not None and name not in known:
        raise TOPRError(
            f"{where} answers problem_id {name!r}, which is not among the training problems (data.train_problems=null "
            "takes all); or give question and gold"
        )
    if row.get("gold") is None and graded and known is not None and name not in known:
        raise TOPRError(
            f"{where} has no gold to grade it by; data.reward=given trains on the rewards of the log, "
            "data.columns={gold: NAME} names a column of right answers"
        )
    return kind


def take_turns(row: dict[str, Any]) -> dict[str, Any]:
    """Put messages into a row's form: the last answer is the completion, all before it the prompt, or ValueError."""
    prompt, answer = row.get("prompt"), row.get("completion")
    turns = [turn for part in (prompt, answer) if isinstance(part, list) for turn in part]
    said = [turn_of(turn) for turn in turns]
    if not said:
        return row
    if "tokens" not in row and any(turns[-1].get(name) for name in ("reasoning_content", "reasoning")):
        raise ValueError("the last message's reasoning stands apart from its text, and no token ids say how it went on")
    row = {name: value for name, value in row.items() if name not in ("prompt", "completion")}
    if isinstance(answer, str):
        row["completion"] = answer
    elif said[-1]["role"] == "assistant":
        row["completion"] = said.pop()["content"]
    elif "tokens" not in row:
        raise ValueError("the last message is not the assistant's, and there is no completion beside it")
    if isinstance(prompt, str):
        if said:
            raise ValueError("messages follow a prompt that is text")
        row["prompt"] = prompt
    elif said:
        row["messages"] = json.dumps(said, ensure_ascii=False)
    return row


def turn_of(turn: Any) -> dict[str, str]:
    """The role and the text of a message; ValueError for tools and for what is no text."""
    said = turn if isinstance(turn, dict) else {}
    if said.get("tool_calls") or said.get("role") == "tool":
        raise ValueError("a message calls a tool; completions with tool calls are not trained on")
    parts: Any = said.get("content") if isinstance(said.get("content"), list) else [{"text": said.get("content")}]
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in (said.get("role"), *texts)):
        raise ValueError("a message must have a role and a content that is text")
    return {"role": said["role"], "content": "".join(texts)}


def source_files(source: str) -> list[Path]:
    """The files of a source on this machine, in their order; none for the hub's or a table of the store."""
    path = Path(source)
    kinds = ("**/*",) if is_saved(path) else ("*.parquet", "*.jsonl", "*.json")
    found = [path] if path.is_file() else [each for kind in kinds for each in path.glob(kind) if each.is_file()]
    return sorted(found, key=lambda each: (len(each.name), each.name, each.parts))  # 2.jsonl before 10.jsonl


def is_saved(path: Path) -> bool:
    """True for a folder that `datasets` saved."""
    return (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()


def raw_rows(source: str) -> Iterator[tuple[str, bytes | dict[str, Any]]]:
    """The rows of a source, lines as they are, each with its place; TOPRError for what can't be read."""
    path, saved = Path(source), source.startswith(HUB) or is_saved(Path(source))
    files = [path] if saved else source_files(source) or [path]
    if files == [path] and path.is_dir() and not saved:
        raise TOPRError(f"{source} holds no .parquet, .jsonl or .json files")
    for path in files:
        if saved or path.suffix == ".parquet":
            rows = saved_rows(source) if saved else parquet_rows(path)
            yield from ((f"{path}: row {number}", row) for number, row in enumerate(rows, start=1))
        else:
            yield from ((f"{path}:{number}", line) for number, line in numbered_lines(path))


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with disk_errors(f"read {path}"):
            file, unpacked = ParquetFile(path), 0
            groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
            refuse_expansion(path, sum(group.total_byte_size for group in groups))
            for batch in file.iter_batches(batch_size=PARQUET_ROWS):
                unpacked += batch.nbytes
                refuse_expansion(path, unpacked)
                yield from batch.to_pylist()
    except MemoryError:
        raise TOPRError(f"{path}: it unpacks to more than there is memory") from None
    except (ArrowException, UnicodeError) as error:
        raise TOPRError(f"{path}: not a whole Parquet file ({' '.join(str(error).split())})") from None


def refuse_expansion(path: Path, unpacked: int) -> None:
    """Raise TOPRError for a file that unpacks to so many bytes, and is far too small for them."""
    size = path.stat().st_size
    if unpacked > max(MOST_UNPACKED, LARGEST_EXPANSION * size):
        raise TOPRError(
            f"{path}: its {size:,} bytes unpack to {unpacked / 1e9:.1f} GB or more; allowed are "
            f"{LARGEST_EXPANSION} times as many as it has, or {MOST_UNPACKED / 1e9:.1f} GB"
        )


def saved_rows(source: str) -> Any:
    """A data set that `datasets` saved, or of the hub; of several splits the one called train."""
    import datasets

    try:
        hub = source.startswith(HUB)
        found = datasets.load_dataset(source.removeprefix(HUB)) if hub else datasets.load_from_disk(source)
        return found["train"] if isinstance(found, datasets.DatasetDict) else found
    except Exception as error:  # datasets raises many types
        raise TOPRError(f"data.completions={source}: {' '.join(str(error).split())}") from None


def import_rows(store: Store, reader: RolloutReader) -> tuple[Table, int]:
    """Store what a reader yields as a table whose key is its content; return how many rows are new, too.

    Nothing is written when a row is malformed.
    """
    rows = iter(reader)
    shards = [as_table(some) for some in iter(lambda: list(islice(rows, ROWS_PER_SHARD)), [])]
    unused = [name for name in ("prompt", "messages") if all(each[name].null_count == len(each) for each in shards)]
    shards = [each.drop_columns(unused) for each in shards]
    with disk_errors(f"read {reader.source}"):
        digests = [cached_digest(path) for path in source_files(reader.source)]
    if reader.source.startswith(HUB):
        digests = [str(saved_rows(reader.source)._fingerprint)]
    content = digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
    key = {"content": content, "rows": sum(map(len, shards)), "per_shard": ROWS_PER_SHARD}
    if others := {role: name for role, name in reader.found.items() if role != name or role not in FIRST_FORM}:
        key["read_as"] = sorted(f"{role}={name}" for role, name in others.items())
    table = store.table("imported", key, len(shards), Derivation(tuple(map(len, shards))))
    return table, table.fill(shards.__getitem__)


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Checked rows as the columns that are stored."""
    import pyarrow as pa

    ids = pa.list_(pa.int32())
    types = {"tokens": ids, "prompt_tokens": ids, "logprobs": pa.list_(pa.float32()), "reward": pa.float64()}
    names = [*TEXTS, *(name for name in ("tokens", "logprobs", "prompt_tokens", "reward") if name in rows[0])]
    columns = {name: pa.array([row.get(name) for row in rows], types.get(name, pa.string())) for name in names}
    return pa.table({COLUMNS.get(name, name): column for name, column in columns.items()})
