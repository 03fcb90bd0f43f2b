"""Completions as JSON lines: how those made elsewhere come into the store, and how the store's go out.

docs/store.md has the format of a line. Columns of the table: problem_id, question, gold, text, finish (each null where
a line has none), and tokens (list<int32>), sampler_logp (list<float32>) where the file has them. One row a line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.files import disk_errors, file_digest, whole_file
from topr_exp.runtime.jsonfiles import strict_object
from topr_exp.store.table import Store, Table
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

ROWS_PER_SHARD = 10_000
TEXTS = ("problem_id", "question", "gold", "completion", "finish")
LISTS = ("tokens", "logprobs")
COLUMNS = {name: name for name in (*TEXTS, *LISTS)} | {"completion": "text", "logprobs": "sampler_logp"}
FINISHES = ("stop", "length", "stop_string")
LOGPROB_ABOVE_ZERO = 1e-4  # rounding of log 1 in bf16 or in another framework's kernel
LOGPROB_LEAST = -1e30  # below lies what float32 turns into an infinity
MAX_TOKEN = 2**31 - 1


def import_file(store: Store, path: Path) -> tuple[Table, int]:
    """Store a file of completions as a table whose key is the file's content; return the number of shards made too.

    Nothing is written when a line is malformed: TOPRError "file:line: what is wrong".
    """
    shards, rows, unread = list["pa.Table"](), list[dict[str, Any]](), set[str]()
    for row in read_lines(path):
        if len(rows) == ROWS_PER_SHARD:
            shards.append(as_table(rows))
            rows.clear()
        rows.append(row)
        unread |= row.keys() - COLUMNS.keys()
    if unread:
        log.warning("nothing reads the members %s of %s", ", ".join(sorted(unread)), path)
    key = {"content": file_digest(path), "rows": ROWS_PER_SHARD * len(shards) + len(rows), "per_shard": ROWS_PER_SHARD}
    shards.append(as_table(rows))
    table = store.table("imported", key, len(shards))
    return table, table.fill(shards.__getitem__)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The checked lines of a file of completions; empty ones are passed over."""
    lists: set[str] | None = None  # which of LISTS the lines have
    with disk_errors(f"read {path}"), open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = parse_line(f"{path}:{number}", line)
            present = row.keys() & LISTS
            lists = present if lists is None else lists
            if name := min(present ^ lists, default=None):
                differs = "lacks" if name in lists else "has"
                raise TOPRError(f"{path}:{number}: {differs} {name}, unlike the lines before; all lines or none")
            yield row
    if lists is None:
        raise TOPRError(f"{path} holds no completions")


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Checked lines as columns."""
    import pyarrow as pa

    types = {"tokens": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32())}
    names = [*TEXTS, *(name for name in LISTS if name in rows[0])]
    columns = {name: pa.array([row.get(name) for row in rows], types.get(name, pa.string())) for name in names}
    return pa.table({COLUMNS[name]: column for name, column in columns.items()})


def parse_line(where: str, line: bytes) -> dict[str, Any]:
    """The checked object of a line, without members that are null; TOPRError that begins with `where`."""
    row = strict_object(where, line)
    row = {name: value for name, value in row.items() if value is not None}
    if fault := next(faults(row), None):
        raise TOPRError(f"{where}: {fault}")
    return row


def faults(row: dict[str, Any]) -> Iterator[str]:
    """Why a line's object is no completion; each fault assumes that there is none before it."""
    for name in TEXTS:
        if not isinstance(row.get(name, ""), str):
            yield f"{name} must be text; got {type(row[name]).__name__}"
    if "completion" not in row:
        yield "completion is missing"
    if not ("problem_id" in row or {"question", "gold"} <= row.keys()):
        yield "problem_id is missing, and question and gold are not both there instead"
    if row.get("finish", "stop") not in FINISHES:
        yield f"finish must be one of {', '.join(FINISHES)}; got {row['finish']!r}"
    tokens, logprobs = row.get("tokens", [0]), row.get("logprobs")
    if not isinstance(tokens, list) or set(map(type, tokens)) != {int}:
        yield "tokens must be a list of token ids, at least one"
    if min(tokens) < 0 or max(tokens) > MAX_TOKEN:
        yield f"token ids lie between 0 and {MAX_TOKEN}; got {min(tokens)} to {max(tokens)}"
    if logprobs is None:
        return
    if not isinstance(logprobs, list) or not set(map(type, logprobs)) <= {int, float}:
        yield "logprobs must be a list of numbers"
    if "tokens" not in row:
        yield "logprobs without tokens: nothing says which tokens they belong to"
    if len(logprobs) != len(tokens):
        yield f"{len(logprobs)} logprobs for {len(tokens)} tokens"
    if not all(LOGPROB_LEAST <= value <= LOGPROB_ABOVE_ZERO for value in logprobs):  # false for NaN too
        yield "logprobs must be finite and at most 0 (natural logarithms of probabilities)"


def export_file(table: Table, path: Path) -> int:
    """Write a table of completions as such a file; return the number of lines.

    Raises TOPRError when the table is not complete, holds no completions, or `path` exists.
    """
    if path.exists():
        raise TOPRError(f"{path} exists; give another name or remove it")
    rows = 0
    with disk_errors(f"write {path}"), whole_file(path) as file:
        for index in range(table.shards):
            for line in lines_of(table, index):
                file.write(line.encode())
                rows += 1
    return rows


def lines_of(table: Table, index: int) -> Iterator[str]:
    """The lines of a shard; each float32 with the fewest digits that give it back."""
    shard = table.shard(index)
    names = {name: column for name, column in COLUMNS.items() if column in shard.column_names}
    if "completion" not in names:
        raise TOPRError(f"{table.name} holds no completions (no column text)")
    if not ("problem_id" in names or {"question", "gold"} <= names.keys()):
        raise TOPRError(f"{table.name} has no column problem_id: its lines could not say which problem they answer")
    for batch in shard.to_batches(max_chunksize=1000):
        texts = {name: batch[names[name]].to_pylist() for name in TEXTS if name in names}
        lists = {name: [row.values.to_numpy() for row in batch[names[name]]] for name in LISTS if name in names}
        for row in range(batch.num_rows):
            present = {name: column[row] for name, column in texts.items() if column[row] is not None}
            numbers = "".join(f', "{name}": [{", ".join(map(str, column[row]))}]' for name, column in lists.items())
            yield f"{json.dumps(present, ensure_ascii=False)[:-1]}{numbers}}}\n"


def unknown_problem(source: str, number: int, name: str | None) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: completion {number} answers problem_id {name!r}, which is not among the training "
        "problems (data.train_problems=null takes all); or give question and gold"
    )
