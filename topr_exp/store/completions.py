"""Export of completions: JSON lines that can be imported again, or Parquet with a card, as TRL reads it.

docs/rollouts.md has the columns; one row per completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.runtime.files import atomic_file, disk_errors, write_text
from topr_exp.store.layout import KEY_FILE
from topr_exp.store.table import Table, open_if_intact
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("problem_id", "question", "gold", "prompt", "messages", "completion", "finish")
LISTS = ("prompt_tokens", "tokens", "logprobs")
# Columns of the store by their public names; without what samplers note beside the tokens, which no import reads.
COLUMNS = {name: name for name in (*TEXTS, *LISTS, "reward")} | {"completion": "text", "logprobs": "sampler_logp"}
LOGPROB_ABOVE_ZERO = 1e-4  # rounding of log 1 in bf16 or in another framework's kernel
PROMPTS = b"prompts"  # in a shard's metadata: text, token ids and gold of each of its prompts
BATCH_ROWS = 1000
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
    "problem_id": "which problem is answered; equal for the completions of one prompt",
    "question": "the problem, before any template",
    "gold": "the correct answer",
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
    """Write a table of completions as JSON lines, or (FILE.parquet) as Parquet with a card; returns the number of rows.

    Parquet has the prompts of sampled completions, and the verdicts on them that lie in the same store.
    Raises TOPRError when the table is not complete, holds no completions, or `path` or the card exists.
    """
    is_parquet = path.suffix == ".parquet"
    outputs = [path, path.with_name(CARD_FILE)] if is_parquet else [path]
    for output in outputs:
        if output.exists():
            raise TOPRError(f"{output} exists; give another name or remove it")
    if is_parquet:
        return export_parquet(table, path)
    return export_lines(table, path)


def export_lines(table: Table, path: Path) -> int:
    """Write a table of completions as JSON lines; returns the number of rows."""
    row_count = 0
    with disk_errors(f"write {path}"), atomic_file(path) as file:
        for index in range(table.shards):
            shard = public_columns(table, table.shard(index), with_prompts=False)
            row_count += len(shard)
            for row in iterate_rows(shard):
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        table.store.check_unchanged()
    return row_count


def iterate_rows(shard: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows without their nulls; log-probabilities as the shortest numbers that give the float32 back."""
    import numpy as np

    for batch in shard.to_batches(max_chunksize=BATCH_ROWS):
        for row in batch.to_pylist():
            if "logprobs" in row:
                logprobs = np.array(row["logprobs"], np.float32)
                row["logprobs"] = [float(str(value)) for value in logprobs]
            yield {name: value for name, value in row.items() if value is not None}


def export_parquet(table: Table, path: Path) -> int:
    """Write the columns of `MEANINGS` that a table has, and the card beside them; returns the number of rows."""
    from pyarrow.parquet import ParquetWriter

    verdict_table = verdicts_on(table)
    row_count = 0
    prompts: set[str] = set()
    column_names: list[str] = []
    with disk_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"write {path}"), atomic_file(path) as file:
        writer = None
        for index in range(table.shards):
            stored_shard = table.shard(index)
            shard = public_columns(table, stored_shard, with_prompts=True)
            if verdict_table is not None:
                shard = with_verdicts(shard, verdict_table.shard(index))
                shard = with_golds(shard, stored_shard, verdict_table.key.get("golds"))
            if writer is None:
                writer = ParquetWriter(file, shard.schema)
            writer.write_table(shard)
            row_count += len(shard)
            column_names = shard.column_names
            prompt_column = "prompt" if "prompt" in column_names else "problem_id"
            prompts.update(map(str, shard[prompt_column].to_pylist()))
        assert writer is not None
        writer.close()
        table.store.check_unchanged()
    write_card(table, path, column_names, row_count=row_count, prompt_count=len(prompts))
    return row_count


def write_card(table: Table, path: Path, column_names: Sequence[str], *, row_count: int, prompt_count: int) -> None:
    """Write the card of an exported table beside its file `path`."""
    column_lines = [f"| `{name}` | {MEANINGS[name]} |" for name in column_names]
    card = CARD.format(
        title=path.stem,
        rows=row_count,
        prompts=f"{prompt_count:,} prompts",
        columns="\n".join(column_lines),
        file=path.name,
        name=table.name,
        key=json.dumps(table.key, indent=1, ensure_ascii=False),
    )
    write_text(path.with_name(CARD_FILE), card)


def public_columns(table: Table, shard: pa.Table, *, with_prompts: bool) -> pa.Table:
    """Return a shard's columns under the names of `MEANINGS`, messages as lists; TOPRError without completions.

    with_prompts: with the prompts of sampled completions, which are in the shard's metadata.
    """
    import pyarrow as pa

    columns = {name: shard[column] for name, column in COLUMNS.items() if column in shard.column_names}
    if "completion" not in columns:
        raise TOPRError(f"{table.name} holds no completions (no column text)")
    if not ("problem_id" in columns or {"question", "gold"} <= columns.keys()):
        raise TOPRError(f"{table.name} has no column problem_id: its lines could not say which problem they answer")
    if with_prompts and "problem" in shard.column_names:
        columns |= prompt_columns(shard)
    if "messages" in columns:
        messages_type = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
        messages = []
        for text in columns.pop("messages").to_pylist():
            messages.append(None if text is None else json.loads(text))
        name = "messages" if "prompt" in columns else "prompt"
        columns[name] = pa.array(messages, messages_type)
    return pa.table({name: columns[name] for name in MEANINGS if name in columns})


def prompt_columns(shard: pa.Table) -> dict[str, pa.Array]:
    """Return the prompts of sampled completions, as columns."""
    import pyarrow as pa

    prompts = json.loads(shard.schema.metadata[PROMPTS])
    first_problem = shard["problem"][0].as_py()  # a shard has consecutive problems
    prompt_indices = shard["problem"].to_numpy() - first_problem
    columns = {}
    for name, column_type in (
        ("prompt", pa.string()),
        ("prompt_tokens", pa.list_(pa.int32())),
        ("gold", pa.string()),
    ):
        columns[name] = pa.array([prompts[index][name] for index in prompt_indices], column_type)
    return columns


def with_verdicts(shard: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Append the verdicts on a shard's rows, and the grader's rewards (1 and -1 without any) if it has no rewards."""
    import pyarrow as pa

    shard = shard.append_column("verdict", verdicts["verdict"])
    if "reward" in shard.column_names:
        return shard
    if "reward" in verdicts.column_names:
        rewards = verdicts["reward"]
    else:
        signs = [1.0 if verdict == "correct" else -1.0 for verdict in verdicts["verdict"].to_pylist()]
        rewards = pa.array(signs, pa.float64())
    return shard.append_column("reward", rewards)


def with_golds(shard: pa.Table, stored_shard: pa.Table, golds: list[str] | None) -> pa.Table:
    """Put the golds of the verdicts in place of those that the problems had when they were sampled."""
    import pyarrow as pa

    if golds is None or "problem" not in stored_shard.column_names:  # an imported one has its own
        return shard
    golds_of_rows = [golds[index] for index in stored_shard["problem"].to_pylist()]
    gold_column = shard.column_names.index("gold")
    return shard.set_column(gold_column, "gold", pa.array(golds_of_rows, pa.string()))


def verdicts_on(table: Table) -> Table | None:
    """Return the newest complete verdicts on all rows of these completions; None if there are none."""
    store = table.store
    folder = store.root / "verdicts"
    with disk_errors(f"read {folder}"):
        key_files = [path / KEY_FILE for path in folder.iterdir()] if folder.exists() else []
    sharding = table.snapshot().sharding
    verdicts_by_time = {}
    for key_file in key_files:
        stored_verdicts = open_if_intact(store, key_file.parent)
        if stored_verdicts is None:
            continue
        if stored_verdicts.source_name != table.name or stored_verdicts.shards != table.shards:
            continue
        verdicts = stored_verdicts.with_sharding(sharding)  # on these rows, and made of this version of them
        if not verdicts.missing():
            verdicts_by_time[key_file.stat().st_mtime] = verdicts
    if not verdicts_by_time:
        return None
    return verdicts_by_time[max(verdicts_by_time)]
