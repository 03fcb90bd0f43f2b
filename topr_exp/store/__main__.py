"""`python -m topr_exp.store`: list, verify and prune a store; import and export completions.

Exit status: 0; 1 for damage that `verify` found or an operation that failed; 2 for a wrong option.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from topr_exp.runs.finished import MARK, NOT_SAVED, bytes_of_models, changed_results, keeps_no_model
from topr_exp.runtime import locks
from topr_exp.runtime.checksums import CHECKSUMS, find_damage
from topr_exp.runtime.exit_status import CommandParser, exit_status
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.terminal import plural, readable_size, warn
from topr_exp.store.source import Derivation
from topr_exp.store.table import (
    HASHES,
    KEY_FILE,
    KINDS,
    MARKER,
    MISSING,
    SHARD,
    Store,
    Table,
    foreign_entries,
    source_table,
)
from topr_exp.types import TOPRError

FOR_EVER = "can't be made again  "
PRUNE = "remove tables that match all options, and tables derived from them; without --yes only list them"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: int(options.run(Store(options.root), options) or 0))


def parser() -> CommandParser:
    """The command line; each command sets `run`."""
    top = CommandParser(prog="python -m topr_exp.store", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--root", type=Path, default=Path("outputs/store"), help="the store (default: outputs/store)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    table = "kind/hash, as `list` prints it, or a unique prefix"

    def add(name: str, run: Callable[[Store, argparse.Namespace], int | None], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.set_defaults(run=run, refuse=command.error)
        return command

    add("list", list_tables, "one line per table")
    add("describe", describe, "a table's line, columns and whole key").add_argument("key", metavar="KEY", help=table)
    command = add("verify", verify, "check every checksum; exit status 1 if something is damaged")
    command.add_argument("key", metavar="KEY|FOLDER", nargs="?", help=f"{table}; or a folder of runs")
    command = add("prune", prune, PRUNE)
    command.add_argument("--kind", help="needed for imported tables (or --key), which no run can make again")
    command.add_argument("--older-than", type=days, metavar="DAYS", help="unused for this long")
    command.add_argument("--key", help=table)
    command.add_argument("--yes", action="store_true", help="really remove")
    command = add("export", export, "write a table of completions as JSON lines, or as Parquet with a data card")
    command.add_argument("key", metavar="KEY", help=table)
    command.add_argument("file", metavar="FILE.jsonl|FILE.parquet", type=Path)
    command = add("import", import_, "store completions made elsewhere (docs/own_rollouts.md has the format)")
    command.add_argument("file", metavar="FILE")
    command = add("inspect", inspect, "describe a log of completions and the losses that can use it; stores nothing")
    command.add_argument("file", metavar="FILE", help="a file, a folder or hub:NAME, as data.completions takes it")
    command.add_argument(
        "settings", metavar="KEY=VALUE", nargs="*", help="a run's settings, such as data.columns={reward: acc}"
    )
    return top


# ---- finding tables by what is on the disk alone


def find_tables(store: Store) -> list[Table]:
    """All tables by name, damaged ones too; TOPRError when there is no store, or none that may be read."""
    if not store.root.is_dir():
        raise TOPRError(f"{store.root} is no store: there is no such folder")
    found, unseen = [], False
    with disk_errors(f"read {store.root}"):
        places = [path for path in sorted(store.root.iterdir()) if KINDS.fullmatch(path.name) and path.is_dir()]
    for place in places:  # kinds, after them their folders
        try:
            if place.parent == store.root:
                places += sorted(place.iterdir())
            elif table := table_in(store, place):
                found.append(table)
        except PermissionError as error:
            warn(f"cannot read {error.filename}: Permission denied; what is in it is left out")
            unseen = True
    if unseen and not found:
        raise TOPRError(f"this user may read no table of {store.root}")
    return found


def days(text: str) -> int:
    """A number of days, from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of days, 0 or more; got {text}")
    return int(text)


def table_in(store: Store, folder: Path) -> Table | None:
    """The table in a folder, if it is one: its key has the hash that names it, or it holds a damaged table alone."""
    if not HASHES.fullmatch(folder.name) or folder.is_symlink() or not folder.is_dir():
        return None
    try:
        return store.open(folder)
    except TOPRError as error:
        if isinstance(error.__cause__, PermissionError):
            raise error.__cause__ from None
        names = [path.name for path in folder.iterdir()]
        ours = names and all(name.startswith((KEY_FILE, SHARD)) for name in names)
        return Table(folder, {}, 0, str(error)) if ours else None


def matching(known: list[Table], text: str | None) -> list[Table]:
    """The one table whose kind/hash or hash begins with `text`, or (None) all; TOPRError where it is not one."""
    if text is None:
        return known
    found = [table for table in known if table.name.startswith(text) or table.folder.name.startswith(text)]
    found = [table for table in found if text in (table.name, table.folder.name)] or found
    if not found:
        raise TOPRError(f"no table is called {text}; `list` shows what there is")
    if len(found) > 1:
        raise TOPRError(f"{text} could be {', '.join(table.name for table in found)}")
    return found


def find_table(store: Store, text: str) -> Table:
    """The one table whose name begins with `text`; TOPRError where it is damaged, too."""
    (table,) = matching(find_tables(store), text)
    if table.error:
        raise TOPRError(table.error)
    return table


def made_from(name: str, known: list[Table]) -> list[Table]:
    """The tables that were made from this one (the verdicts on its completions, their log-probabilities).

    Their keys name it; the name of one that was read in a certain way goes on after its own.
    """
    keys = {table: [value for value in table.key.values() if isinstance(value, str)] for table in known}
    found = [table for table, texts in keys.items() if name in {text.split(" ", 1)[0] for text in texts}]
    return found + [below for table in found for below in made_from(table.name, known)]


def days_unused(table: Table) -> float:
    """Days since a run last asked for a table, which touches its key.json."""
    key_file = table.folder / KEY_FILE
    return max(0.0, time.time() - (key_file if key_file.exists() else table.folder).stat().st_mtime) / 86_400


def size_of(table: Table) -> int:
    """Bytes of all files in a table's folder and below."""
    total = 0
    for path in table.folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary of a process at work
            total += path.lstat().st_size
    return total


def makers(*tables: Table) -> str:
    """host:pid of the processes at work on some tables."""
    owners = [locks.living_owner(path) for table in tables for path in table.folder.glob(f"{SHARD}*{locks.SUFFIX}")]
    return ", ".join(sorted({str(owner) for owner in owners if owner}))


def list_tables(store: Store, options: argparse.Namespace) -> None:
    print_tables(found := find_tables(store))
    print(f"{total(map(size_of, found))} in {store.root}" if found else f"{store.root} holds no tables")
    for sweep, sizes in sizes_of_models(store.root.parent).items():
        runs = plural(len(sizes), "run")
        print(f"models of {runs}, {readable_size(sum(sizes))} in {sweep}; checkpoint.save_model=false keeps none")


def sizes_of_models(output_dir: Path) -> dict[Path, list[int]]:
    """The bytes of each run's models by the folder of their sweep, of the runs beside a store."""
    sizes: dict[Path, list[int]] = {}
    for mark in sorted(output_dir.glob("*/*/state.json")):
        run = mark.parent
        if count := bytes_of_models(run):
            sizes.setdefault(run.parent, []).append(count)
    return sizes


def print_tables(found: list[Table]) -> None:
    lines = [("TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY"), *map(line_of, found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *numbers, told in lines if found else []:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)]
        print("  ".join([name.ljust(widths[0]), *cells, told]).rstrip())


def describe(store: Store, options: argparse.Namespace) -> None:
    table = find_table(store, options.key)
    print_tables([table])
    made = next((index for index in range(table.shards) if table.shard_file(index).exists()), None)
    columns = [] if made is None else [f"{column.name} {column.type}" for column in table.shard(made).schema]
    print(f"columns: {', '.join(columns) or 'none yet'}")
    print(json.dumps(table.key, indent=2, ensure_ascii=False))


def line_of(table: Table) -> tuple[str, ...]:
    """What `list` prints of a table."""
    made = sum(table.shard_file(index).exists() for index in range(table.shards))  # whole or not
    shards = f"{made} of {table.shards}" if made < table.shards else str(made)
    rows, shards = ("?", "?") if table.error else (counted_rows(table), shards)
    plain = [f"{name}={cut(str(each), 14)}" for name, each in table.key.items() if not isinstance(each, dict | list)]
    told = FOR_EVER * (table.kind == "imported") + (table.error or cut(" ".join(plain), 100))
    return table.name, rows, shards, megabytes(size_of(table)), f"{days_unused(table):.0f} d", told


def counted_rows(table: Table) -> str:
    """The number of rows as `list` prints it."""
    try:
        return f"{table.row_count():,}"
    except TOPRError as error:
        warn(str(error))
        return "?"


def verify(store: Store, options: argparse.Namespace) -> int:
    if options.key and Path(options.key).is_dir():
        return verify_folder(Path(options.key))
    bad = sum(map(verify_table, matching(find_tables(store), options.key)))
    if bad:
        print(f"{bad} damaged; the next run that needs a damaged shard makes it again")
    return int(bad > 0)


def verify_table(table: Table) -> int:
    """Compute the checksums of a table, print what was found, return how many are wrong."""
    try:
        table.derivation = known_derivation(table)
        faults = {index: table.fault(index, always=True) for index in range(table.shards)}
    except TOPRError as error:  # no permission
        print(f"NOT READ {error}")
        return 1
    damaged = [f"{table.shard_file(index)}: {fault}" for index, fault in faults.items() if fault not in (None, MISSING)]
    damaged = [table.error] if table.error else damaged
    whole = table.shards - list(faults.values()).count(MISSING)
    sound = f"sound    {table.name}: {whole} of {table.shards} shards made, all checksums right"
    print("\n".join(f"DAMAGED  {told}" for told in damaged) or sound)
    return len(damaged)


def known_derivation(table: Table) -> Derivation | None:
    """What a derived table's shards must have, as far as its source lies whole in the same store, and all of it."""
    source = source_table(table)
    if source is None:
        return None
    try:
        _, bounds, files = source.snapshot()
    except TOPRError:  # what is wrong with it is said of it
        return None
    rows = [end - start for start, end in pairwise(bounds)]
    return Derivation(tuple(rows), files.parts())


def verify_folder(folder: Path) -> int:
    """The same of all below a folder: models, checkpoints, tables and the results of finished runs."""
    unseen: list[OSError] = []
    below = [Path(parent, name) for parent, _, names in os.walk(folder, onerror=unseen.append) for name in names]
    for error in unseen:
        print(f"NOT READ {error.filename}: Permission denied")
    stores = {path.parents[2] for path in below if path.name == KEY_FILE and len(path.parts) > len(folder.parts) + 2}
    bad = len(unseen) + sum(verify_table(table) for root in sorted(stores) for table in find_tables(Store(root)))
    weights = {path.parent for path in below if path.name == CHECKSUMS}
    runs = sorted(path.parent for path in below if path.name == MARK)
    without = {run for run in runs if keeps_no_model(run)}
    weights |= {run / "model" for run in runs if run not in without}
    for run in sorted(without):
        print(f"no model {run}: {NOT_SAVED}")
    for path in sorted(weights):
        fault = find_damage(path)
        print(f"DAMAGED  {path}: {fault}" if fault else f"sound    {path}: all checksums right")
        bad += fault is not None
    bad += sum(map(verify_results, runs))
    counts = f"{len(weights)} folders of weights, {len(stores)} stores, {len(runs)} finished runs"
    print(f"{folder}: {counts}; {bad} damaged")
    return int(bad > 0)


def verify_results(run: Path) -> int:
    """Compare the results of a finished run with their checksums, print what was found, return how many changed."""
    try:
        faults = changed_results(run)
    except TOPRError as error:
        print(f"NOT READ {error}")
        return 1
    if faults is None:
        print(f"no sums  {run}: finished by a version that kept no checksums of results")
        return 0
    for fault in faults:
        print(f"DAMAGED  {run}: {fault}")
    if not faults:
        print(f"sound    {run}: all results right")
    return len(faults)


def prune(store: Store, options: argparse.Namespace) -> None:
    if options.kind is None and options.older_than is None and options.key is None:
        options.refuse("say what to remove: --kind, --older-than or --key")
    known = find_tables(store)
    if not (store.root / MARKER).exists():
        raise TOPRError(
            f"{store.root} has no file {MARKER}, which marks a store; the next run that uses the store writes it, or "
            f"`touch {store.root / MARKER}`; nothing is removed before"
        )
    if others := foreign_entries(store.root):
        raise TOPRError(f"{store.root} holds {', '.join(others[:3])}, which a store does not; nothing is removed")
    gone: dict[str, int] = {}  # name -> bytes
    for table in [table for table in matching(known, options.key) if fits(table, options)]:
        part = [one for one in [table, *made_from(table.name, known)] if one.name not in gone]
        if at_work := makers(*part):
            print(f"kept     {table.name}: {at_work} is at work on it or on what was made from it")
            continue
        with ExitStack() as locked:
            if read := locked_by_others(part, locked):
                print(f"kept     {table.name}: a process reads {read}")
                continue
            for one in reversed(part):  # a table that is made again must not meet what was made from the old one
                gone[one.name] = size_of(one)
                if options.yes:
                    remove(one)
                verb, note = "removed " if options.yes else "would go", FOR_EVER * (one.kind == "imported")
                print(f"{verb} {one.name}  {megabytes(gone[one.name])}  {note}".rstrip())
    told = total(gone.values())
    print(f"removed {told}" if options.yes else f"{told} would be removed; add --yes to do it")


def locked_by_others(tables: list[Table], locked: ExitStack) -> str | None:
    """Lock tables alone, until `locked` ends; the name of the first that another process reads, None for none."""
    for table in tables:
        path = table.folder / KEY_FILE
        with disk_errors(f"lock {path}"):
            if not path.exists():  # damaged: nobody reads it
                continue
            lock = locks.exclude(path)
        if lock is None:
            return table.name
        locked.enter_context(lock)
    return None


def fits(table: Table, options: argparse.Namespace) -> bool:
    """Check that `prune` was asked for a table; TOPRError for a damaged one that --key doesn't name in full."""
    if table.error and options.key != table.name:
        if options.key is not None:
            raise TOPRError(f"{table.error}: prune --key {table.name}")
        return False
    asked_for = options.key is not None or table.kind != "imported" or options.kind is not None
    young = options.older_than is not None and days_unused(table) < options.older_than
    return asked_for and options.kind in (None, table.kind) and not young


def remove(table: Table) -> None:
    """Delete a table, its key last: a part of one is a table all along."""
    with disk_errors(f"remove {table.folder}"):
        for path in table.folder.glob(f"{SHARD}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(table.folder)


def export(store: Store, options: argparse.Namespace) -> None:
    from topr_exp.store.completions import export_file

    table = find_table(store, options.key)
    print(f"{export_file(table, options.file):,} completions of {table.name} in {options.file}")


def import_(store: Store, options: argparse.Namespace) -> None:
    from topr_exp.imported.log import import_rows
    from topr_exp.imported.reader import RolloutReader
    from topr_exp.store.completions import COLUMNS, LISTS

    reader = RolloutReader(options.file)
    table, made = import_rows(store, reader)
    if reader.unread:
        warn(f"nothing reads the columns {', '.join(sorted(reader.unread))} of {options.file}")
    has = " and ".join(name for name in LISTS if COLUMNS[name] in table.shard(0).column_names) or "text only"
    print(f"{table.name}: {table.row_count():,} completions, {has}{'' if made else ' (was there already)'}")


def inspect(store: Store, options: argparse.Namespace) -> None:
    """Print what a run's header says of a log, with the model, rewards and losses that the settings name."""
    from topr_exp.imported.log_report import inspect_log

    for name, text in inspect_log(options.file, options.settings).items():
        print(f"{name:<11} {text}")


def total(sizes: Iterable[int]) -> str:
    """The number of tables with these sizes, and their sum."""
    listed = list(sizes)
    return f"{len(listed)} table{'s' * (len(listed) != 1)}, {megabytes(sum(listed))}"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
