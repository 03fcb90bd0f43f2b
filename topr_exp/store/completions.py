"""Completions out of the store: JSON lines that can be imported again, or Parquet with a card, as TRL reads it.

docs/own_rollouts.md has the columns; one row a completion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.files import atomic_file, disk_errors, write_text
from topr_exp.store.table import KEY_FILE, MISSING_FILE, Store, Table
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("problem_id", "question", "gold", "prompt", "messages", "completion", "finish")
LISTS = ("prompt_tokens", "tokens", "logprobs")
COLUMNS = {name: name for name in (*TEXTS, *LISTS, "reward")} | {"completion": "text", "logprobs": "sampler_logp"}
LOGPROB_ABOVE_ZERO = 1e-4  # rounding of log 1 in bf16 or in another framework's kernel
PROMPTS = b"prompts"  # in a shard's metadata: text, token ids and gold of each of its prompts
CARD_FILE = "README.md"
CARD = """---
tags: [topr_exp, rollouts, reinforcement-learning]
---
# {title}

{rows:,} completions of language models to {prompts}, one a row, as topr_exp stored them. Licence: to be filled in by
whoever publishes it; that of the problems and of the model hold.

| column | |
|---|---|
{columns}

```python
datasets.load_dataset("parquet", data_files="{file}")
```

`topr_exp data.completions={file} data.reward=given` trains on it. Stored as {name}, made from:

```
{key}
```
"""
MEANINGS = {
    "problem_id": "which problem is answered; equal for the answers to one prompt",
    "question": "the problem, before any template",
    "gold": "the right answer",
    "prompt": "what the model was given: a text, or messages for its chat template",
    "messages": "the same as messages, in rows without a prompt that is text",
    "prompt_tokens": "the same as token ids",
    "completion": "the text",
    "tokens": "its token ids, with the end token where there was one",
    "logprobs": "each token's log-probability when it was drawn (natural logarithm)",
    "finish": "stop: ended by itself; length: cut off; stop_string: ended before a stop string",
    "verdict": "the grader's: correct, incorrect, or invalid, where no answer can be read",
    "reward": "the log's or the grader's number; where there is none, 1 for correct and -1 for any other",
}


def export_file(table: Table, path: Path) -> int:
    """Write a table of completions as JSON lines, or (FILE.parquet) as Parquet with a card; return the number of rows.

    Parquet has the prompts of sampled completions, and the verdicts on them that lie in the same store.
    Raises TOPRError when the table is not complete, holds no completions, or `path` or the card exists.
    """
    parquet = path.suffix == ".parquet"
    for each in (path, path.with_name(CARD_FILE))[: 1 + parquet]:
        if each.exists():
            raise TOPRError(f"{each} exists; give another name or remove it")
    if parquet:
        return export_parquet(table, path)
    import numpy as np

    rows = 0
    with disk_errors(f"write {path}"), atomic_file(path) as file:
        for index in range(table.shards):
            shard = public_columns(table, table.shard(index), prompts=False)
            rows += len(shard)
            for row in (row for batch in shard.to_batches(max_chunksize=1000) for row in batch.to_pylist()):
                if "logprobs" in row:  # each float32 with the fewest digits that give it back
                    row["logprobs"] = [float(str(value)) for value in np.array(row["logprobs"], np.float32)]
                present = {name: value for name, value in row.items() if value is not None}
                file.write((json.dumps(present, ensure_ascii=False) + "\n").encode())
        table.check_unchanged()
    return rows


def export_parquet(table: Table, path: Path) -> int:
    """Write the columns of `MEANINGS`, as far as they are there, and the card beside them."""
    from pyarrow.parquet import ParquetWriter

    verdicts, rows, prompts, columns = verdicts_on(table), 0, set[Any](), list[str]()
    with disk_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"write {path}"), atomic_file(path) as file:
        writer = None
        for index in range(table.shards):
            shard = public_columns(table, table.shard(index), prompts=True)
            if verdicts is not None:
                shard = with_verdicts(shard, verdicts.slice(rows, len(shard)))
            writer = writer or ParquetWriter(file, shard.schema)
            writer.write_table(shard)
            rows, columns = rows + len(shard), shard.column_names
            prompts |= {str(one) for one in shard["prompt" if "prompt" in columns else "problem_id"].to_pylist()}
        assert writer is not None
        writer.close()
        table.check_unchanged()
    card = CARD.format(
        title=path.stem,
        rows=rows,
        prompts=f"{len(prompts):,} prompts",
        columns="\n".join(f"| `{name}` | {MEANINGS[name]} |" for name in columns),
        file=path.name,
        name=table.name,
        key=json.dumps(table.key, indent=1, ensure_ascii=False),
    )
    write_text(path.with_name(CARD_FILE), card)
    return rows


def public_columns(table: Table, shard: pa.Table, prompts: bool) -> pa.Table:
    """A shard's columns of completions by the names of `MEANINGS`, messages as lists; TOPRError where there are none.

    prompts: with those of sampled completions.
    """
    import pyarrow as pa

    columns = {name: shard[column] for name, column in COLUMNS.items() if column in shard.column_names}
    if "completion" not in columns:
        raise TOPRError(f"{table.name} holds no completions (no column text)")
    if not ("problem_id" in columns or {"question", "gold"} <= columns.keys()):
        raise TOPRError(f"{table.name} has no column problem_id: its lines could not say which problem they answer")
    if prompts and "problem" in shard.column_names:
        stored = json.loads((shard.schema.metadata or {}).get(PROMPTS, b"null"))
        if stored is None:
            raise TOPRError(f"{table.name} was stored without its prompts; write JSON lines (FILE.jsonl)")
        place = shard["problem"].to_numpy() - shard["problem"][0].as_py()
        for name, type_ in (("prompt", pa.string()), ("prompt_tokens", pa.list_(pa.int32())), ("gold", pa.string())):
            columns[name] = pa.array([stored[at][name] for at in place], type_)
    if "messages" in columns:
        turns = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
        values = [None if one is None else json.loads(one) for one in columns.pop("messages").to_pylist()]
        columns["messages" if "prompt" in columns else "prompt"] = pa.array(values, turns)
    return pa.table({name: columns[name] for name in MEANINGS if name in columns})


def with_verdicts(shard: pa.Table, verdicts: pa.Table) -> pa.Table:
    import pyarrow as pa

    shard = shard.append_column("verdict", verdicts["verdict"])
    if "reward" not in shard.column_names:
        signs = [1.0 if one == "correct" else -1.0 for one in verdicts["verdict"].to_pylist()]
        given = verdicts["reward"] if "reward" in verdicts.column_names else pa.array(signs, pa.float64())
        shard = shard.append_column("reward", given)
    return shard


def verdicts_on(table: Table) -> pa.Table | None:
    """The newest whole verdicts on all rows of these completions."""
    store, found = Store(table.folder.parents[1]), []
    folder = store.root / "verdicts"
    with disk_errors(f"read {folder}"):
        keys = [path / KEY_FILE for path in folder.iterdir()] if folder.exists() else []
    for key in keys:
        try:
            verdicts = store.open(key.parent)
        except TOPRError as error:  # damaged, of whatever table
            if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, MISSING_FILE):
                raise
            continue
        of = str(verdicts.key.get("rollouts")).split(" ")[0]
        if of == table.name and not verdicts.missing() and verdicts.row_count() == table.row_count():
            found.append((key.stat().st_mtime, verdicts))
    return max(found, key=lambda each: each[0])[1].read() if found else None
