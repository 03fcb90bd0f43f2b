"""Completions as JSON lines: how those made elsewhere come into the store, and how the store's go out.

One object a line:

    problem_id | question and gold    which problem is answered: its id in the data set, or the problem itself
    completion                        the text
    tokens      (optional)            the sampled token ids, an end-of-sequence token included when there was one
    logprobs    (optional)            log-probability of each token when it was sampled, natural logarithm
    finish      (optional)            stop (ended by itself), length (cut off) or stop_string

`tokens` and `logprobs` stand in every line or in none. Other members are passed over and named once.
Columns of the table: problem_id, question, gold, text, finish (each null where a line has none), and tokens
(list<int32>), sampler_logp (list<float32>) where the file has them. One row a line, in the file's order.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from topr_exp.runtime.files import DIGEST_BYTES, disk_errors, whole_file
from topr_exp.runtime.jsonfiles import strict_object
from topr_exp.store.table import Store, Table
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_SHARD = 10_000
TEXTS = ("problem_id", "question", "gold", "completion", "finish")
LISTS = ("tokens", "logprobs")
COLUMNS = {"completion": "text", "logprobs": "sampler_logp"}  # where a member's column has another name
FINISHES = ("stop", "length", "stop_string")
LOGPROB_ABOVE_ZERO = 1e-4  # rounding of log 1 in bf16 or in another framework's kernel
LOGPROB_LEAST = -1e30  # below lies what float32 turns into an infinity
MAX_TOKEN = 2**31 - 1


@dataclass
class Scan:
    """Findings of one pass over a file."""

    digest: str = ""  # of the whole file
    rows: int = 0
    lists: frozenset[str] = frozenset()  # which of LISTS the lines have
    passed_over: Counter[str] = field(default_factory=Counter)  # members that nothing reads: number of lines


def import_file(store: Store, path: Path, kind: str = "imported") -> tuple[Table, Scan, int]:
    """Store a file of completions as a table whose key is the file's content; also: the scan, shards made.

    Nothing is written when a line is malformed: TOPRError "file:line: what is wrong".
    """
    shards, rows = list["pa.Table"](), list[dict[str, Any]]()

    def keep(row: dict[str, Any]) -> None:
        if len(rows) == ROWS_PER_SHARD:
            shards.append(as_table(rows))
            rows.clear()
        rows.append(row)

    with disk_errors(f"read {path}"):
        scan = scan_file(path, keep)
    shards.append(as_table(rows))
    key = {"content": scan.digest, "rows": scan.rows, "rows_per_shard": ROWS_PER_SHARD}
    table = store.table(kind, key, len(shards))
    return table, scan, table.fill(shards.__getitem__)


def scan_file(path: Path, see: Callable[[dict[str, Any]], None] = lambda row: None) -> Scan:
    """Check every line; `see` is shown each line's object and may refuse it. Empty lines are passed over."""
    scan, whole = Scan(), hashlib.blake2b(digest_size=DIGEST_BYTES)
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            whole.update(line)
            if not line.strip():
                continue
            row = parse_line(f"{path}:{number}", line)
            present = frozenset(name for name in LISTS if name in row)
            if scan.rows == 0:
                scan.lists = present
            elif present != scan.lists:
                name = min(present ^ scan.lists)
                differs = "lacks" if name in scan.lists else "has"
                raise TOPRError(f"{path}:{number}: {differs} {name}, unlike the lines before; all lines or none")
            scan.passed_over.update(set(row) - {*TEXTS, *LISTS})
            see(row)
            scan.rows += 1
    if not scan.rows:
        raise TOPRError(f"{path} holds no completions")
    scan.digest = whole.hexdigest()
    return scan


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Checked lines as columns."""
    import pyarrow as pa

    columns = {COLUMNS.get(name, name): pa.array([row.get(name) for row in rows], pa.string()) for name in TEXTS}
    types = {"tokens": pa.list_(pa.int32()), "logprobs": pa.list_(pa.float32())}
    for name in (name for name in LISTS if name in rows[0]):
        columns[COLUMNS.get(name, name)] = pa.array([row[name] for row in rows], types[name])
    return pa.table(columns)


def parse_line(where: str, line: bytes) -> dict[str, Any]:
    """The checked object of a line; TOPRError that begins with `where`."""
    row = strict_object(where, line)
    try:
        check(row)
    except TOPRError as error:
        raise TOPRError(f"{where}: {error}") from None
    return row


def check(row: dict[str, Any]) -> None:
    """Raise TOPRError when a line's object is no completion; members that are null count as absent."""
    for name in TEXTS:
        value = row.get(name)
        if value is None:
            row.pop(name, None)
        elif not isinstance(value, str):
            raise TOPRError(f"{name} must be text; got {type(value).__name__}")
    if "completion" not in row:
        raise TOPRError("completion is missing")
    if not ("problem_id" in row or ("question" in row and "gold" in row)):
        raise TOPRError("problem_id is missing, and question and gold are not both there instead")
    if row.get("finish", "stop") not in FINISHES:
        raise TOPRError(f"finish must be one of {', '.join(FINISHES)}; got {row['finish']!r}")
    for name in LISTS:
        if row.get(name) is None:
            row.pop(name, None)
    if "tokens" in row:
        _check_tokens(row["tokens"])
    if "logprobs" in row:
        _check_logprobs(row["logprobs"], row.get("tokens"))


def _check_tokens(tokens: Any) -> None:
    if not isinstance(tokens, list) or not tokens or set(map(type, tokens)) != {int}:
        raise TOPRError("tokens must be a list of token ids, at least one")
    if min(tokens) < 0 or max(tokens) > MAX_TOKEN:
        raise TOPRError(f"token ids lie between 0 and {MAX_TOKEN}; got {min(tokens)} to {max(tokens)}")


def _check_logprobs(logprobs: Any, tokens: list[int] | None) -> None:
    if not isinstance(logprobs, list) or not set(map(type, logprobs)) <= {int, float}:
        raise TOPRError("logprobs must be a list of numbers")
    if tokens is None:
        raise TOPRError("logprobs without tokens: nothing says which tokens they belong to")
    if len(logprobs) != len(tokens):
        raise TOPRError(f"{len(logprobs)} logprobs for {len(tokens)} tokens")
    if not all(LOGPROB_LEAST <= value <= LOGPROB_ABOVE_ZERO for value in logprobs):  # false for NaN too
        raise TOPRError("logprobs must be finite and at most 0 (natural logarithms of probabilities)")


def export_file(table: Table, path: Path) -> int:
    """Write a table of completions as such a file; return the number of lines.

    Raises TOPRError when the table is not complete, holds no completions, or `path` exists.
    """
    if path.exists():
        raise TOPRError(f"{path} exists; give another name or remove it")
    with disk_errors(f"write {path}"), whole_file(path) as file:
        return sum(_write_lines(table, index, file) for index in range(table.shards))


def _write_lines(table: Table, index: int, file: BinaryIO) -> int:
    shard = table.shard(index)
    names = set(shard.column_names)
    if "text" not in names:
        raise TOPRError(f"{table.name} holds no completions (no column text)")
    if not ("problem_id" in names or {"question", "gold"} <= names):
        raise TOPRError(f"{table.name} has no column problem_id: its lines could not say which problem they answer")
    texts = {name: COLUMNS.get(name, name) for name in TEXTS if COLUMNS.get(name, name) in names}
    lists = {name: COLUMNS.get(name, name) for name in LISTS if COLUMNS.get(name, name) in names}
    for batch in shard.to_batches(max_chunksize=1000):
        columns = {name: batch[column].to_pylist() for name, column in texts.items()}
        numbers = {name: [_list_text(row.values) for row in batch[column]] for name, column in lists.items()}
        for row in range(batch.num_rows):
            present = {name: column[row] for name, column in columns.items() if column[row] is not None}
            text = json.dumps(present, ensure_ascii=False)[:-1]
            text += "".join(f', "{name}": {column[row]}' for name, column in numbers.items())
            file.write(text.encode() + b"}\n")
    return int(shard.num_rows)


def _list_text(values: pa.Array) -> str:
    """Numbers as a JSON list, each float32 with the fewest digits that give it back."""
    return "[" + ", ".join(map(str, values.to_numpy(zero_copy_only=False))) + "]"


def unknown_problem(source: str, number: int, name: str | None) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: completion {number} answers problem_id {name!r}, which is not among the training "
        "problems (data.train_problems=null takes all); or give question and gold"
    )


def empty_completion(source: str, number: int) -> TOPRError:
    return TOPRError(f"data.completions={source}: completion {number} is empty")


def unknown_token(source: str, number: int, token: int, vocabulary: int) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: completion {number} has token id {token}, the model has {vocabulary}; leave out "
        "`tokens` to have the text tokenized"
    )


def missing_column(source: str, name: str) -> TOPRError:
    return TOPRError(
        f"data.completions={source}: a table without {name}; write it to a file (python -m topr_exp.store export) and "
        "give that"
    )
