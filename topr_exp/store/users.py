"""Which runs use which tables of a store: a run notes every table that it asks for, in `tables.json` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from topr_exp.runtime import distributed
from topr_exp.runtime.files import write_json
from topr_exp.store.catalog import Entry
from topr_exp.store.table import KEY_FILE, Store, Table

TABLES = "tables.json"
# Runs and evaluations made before they noted their tables name completions and verdicts in these.
NAMING = ("eval.jsonl", "eval.json", "iteration-*/sources.json")


class SharedStore(Store):
    """The store that runs share, as one of them asks it: `run` notes what it uses.

    lender: another store, of which a table that is whole is taken instead of being made once more.
    """

    def __init__(self, root: Path | str, run: Path, lender: Store | None = None) -> None:
        super().__init__(root)
        self.run, self.lender, self.lent = run, lender, set[str]()

    def table(self, kind: str, key: Mapping[str, Any], shards: int) -> Table:
        if self.lender is not None:
            theirs = self.lender.table(kind, key, shards)
            if (theirs.folder / KEY_FILE).exists() and theirs.complete():
                self.lent.add(theirs.name)
                return theirs
        table = super().table(kind, key, shards)
        note_table(self.run, table.name)
        return table

    def open(self, folder: Path) -> Table:
        table = super().open(folder)
        note_table(self.run, table.name)
        return table

    def place(self, name: str) -> Path:
        return self.lender.place(name) if self.lender is not None and name in self.lent else super().place(name)


def note_table(run: Path, name: str) -> None:
    """Note that a run uses a table; one of its processes does."""
    if distributed.is_main_process() and name not in (noted := noted_tables(run) or set()):
        write_json(run / TABLES, sorted({*noted, name}))


def noted_tables(run: Path) -> set[str] | None:
    """What a run has noted; None where it noted nothing."""
    try:
        return set(json.loads((run / TABLES).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def runs_beside(store: Store) -> dict[Path, set[str]]:
    """The folders of runs and evaluations in the store's output folder, and the names of the tables that each uses."""
    folders = sorted(path for path in store.root.parent.glob("*/*") if path.is_dir() and path.parent != store.root)
    return {path: names for path in folders if (names := tables_of(path))}


def tables_of(run: Path) -> set[str]:
    """The tables that a run asked for, and those that its files name, since older runs noted nothing."""
    named = {name for pattern in NAMING for path in run.glob(pattern) for name in named_in(path)}
    return named | (noted_tables(run) or set())


def named_in(path: Path) -> Iterator[str]:
    """kind/hash of the tables that are named as `rollouts` or `verdicts` anywhere in a file of JSON."""
    try:
        text = path.read_text(encoding="utf-8")
        values = [json.loads(line) for line in (text.splitlines() if path.suffix == ".jsonl" else [text])]
    except (OSError, ValueError):
        return
    while values:
        value = values.pop()
        if isinstance(value, list):
            values += value
        elif isinstance(value, dict):
            for key, member in value.items():
                if key in ("rollouts", "verdicts") and isinstance(member, str):
                    yield "/".join(Path(member).parts[-2:]).split(" ", 1)[0]
                values.append(member)


def users(entries: list[Entry], store: Store, only: Path | None = None) -> dict[str, list[Path]]:
    """The runs that use each table, of all beside the store or one alone.

    A run that noted nothing may have used all that was made from the tables that its files name.
    """
    using: dict[str, list[Path]] = {entry.name: [] for entry in entries}
    for run, names in (runs_beside(store) if only is None else {only: tables_of(only)}).items():
        if noted_tables(run) is None:
            names = names | {below.name for name in names for below in hanging(name, entries)}
        for name in names & using.keys():
            using[name].append(run)
    return using


def named(runs: list[Path], store: Store, before: str = "") -> str:
    """Some runs by their folders' names; "" for none."""
    shown = [str(run.relative_to(store.root.parent)) for run in runs[:3]]
    more = [f"{len(runs) - 3} more"] if len(runs) > 3 else []
    return before + ", ".join(shown + more) if runs else ""


def imported(entry: Entry) -> bool:
    """Whether a table holds what was made elsewhere, which no run can make again."""
    return entry.table is not None and "content" in entry.table.key


def hanging(name: str, entries: Iterable[Entry]) -> list[Entry]:
    """The tables that were made from this one (the verdicts on its completions, their log-probabilities)."""
    found = [entry for entry in entries if entry.table is not None and name in parents(entry.table.key)]
    return found + [below for entry in found for below in hanging(entry.name, entries)]


def parents(key: Mapping[str, Any]) -> set[str]:
    """The tables that a key names; one that was read in a certain way has a name that goes on after its own."""
    return {value.split(" ", 1)[0] for value in key.values() if isinstance(value, str)}
