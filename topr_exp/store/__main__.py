"""`python -m topr_exp.store`: what is in a store, whether it is sound, and completions in and out.

Exit status: 0; 1 for damage that `verify` found or an operation that failed; 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from topr_exp.runtime.exit_status import exit_status, print_warning, show_log
from topr_exp.runtime.files import CHECKSUMS, find_damage
from topr_exp.runtime.jsonfiles import read_lines
from topr_exp.store import catalog
from topr_exp.store.table import MISSING, Store, Table
from topr_exp.types import TOPRError

FOR_EVER = "can't be made again  "
PRUNE = "remove tables that fit all that is given, with what was made from them; without --yes only say so"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    show_log(logging.INFO)
    return exit_status(lambda: int(options.run(Store(options.root), options)))


def parser() -> argparse.ArgumentParser:
    """The command line; each command sets `run`."""
    top = argparse.ArgumentParser(prog="python -m topr_exp.store", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--root", type=Path, default=Path("outputs/store"), help="default: outputs/store")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    table = "kind/hash, as `list` prints it; a beginning that fits one table is enough"

    def add(name: str, run: Callable[[Store, argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.set_defaults(run=run, refuse=command.error)
        return command

    add("list", list_tables, "one line a table")
    add("describe", describe, "a table's whole key, columns and shards").add_argument("key", metavar="KEY", help=table)
    command = add("verify", verify, "compute every checksum; exit status 1 when something is damaged")
    command.add_argument("key", metavar="KEY|FOLDER", nargs="?", help=f"{table}; or a run's folder, or any above some")
    command = add("regrade", regrade, "grade again the completions whose workers were killed or too slow")
    command.add_argument("key", metavar="KEY", nargs="?", help=f"{table}; default: all verdicts")
    command.add_argument("--grader", metavar="NAME", help="a grader of your own, of verdicts that it gave")
    command = add("prune", prune, PRUNE)
    command.add_argument(
        "--kind", help="of this kind; imported ones only go by `imported` or --key: no run makes them again"
    )
    command.add_argument("--older-than", type=days, metavar="DAYS", help="that no run has asked for since")
    command.add_argument("--key", help=table)
    command.add_argument("--yes", action="store_true", help="remove them")
    command = add("export", export, "write a table of completions as JSON lines")
    command.add_argument("key", metavar="KEY", help=table)
    command.add_argument("file", metavar="FILE.jsonl", type=Path)
    command = add("import", import_, "store completions made elsewhere (docs/store.md has the format)")
    command.add_argument("file", metavar="FILE.jsonl", type=Path)
    command.add_argument("--kind", default="imported", help="default: imported")
    return top


def days(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise ValueError(text)
    return number


def list_tables(store: Store, options: argparse.Namespace) -> int:
    found = catalog.tables(store)
    if not found:
        print(f"{store.root} holds no tables")
        return 0
    lines = [("TABLE", "ROWS", "SHARDS", "SIZE", "UNUSED", "KEY")]
    for table in found:
        rows, shards, lacking = f"{table.bounds()[-1]:,}", f"{table.shards}", len(absent(table))
        if lacking:
            shards = f"{table.shards - lacking} of {table.shards}"
        if table.error:
            rows = shards = "?"
        told = FOR_EVER * table.imported + (table.error or short(table.key))
        lines.append(
            (table.name, rows, shards, human_bytes(catalog.size(table)), f"{catalog.days_unused(table):.0f} d", told)
        )
    print_columns(lines, right={1, 2, 3, 4})
    total = human_bytes(sum(map(catalog.size, found)))
    print(f"{len(found)} {'table' if len(found) == 1 else 'tables'}, {total} in {store.root}")
    return 0


def describe(store: Store, options: argparse.Namespace) -> int:
    table = catalog.find(store, options.key)
    missing = absent(table)
    made = [index for index in range(table.shards) if index not in missing]
    columns = [f"{column.name} {column.type}" for index in made[:1] for column in table.shard(index).schema]
    rows = f"{table.bounds()[-1]:,} in {len(made)} of {table.shards} shards, {human_bytes(catalog.size(table))}"
    lines = [
        ("table", table.name),
        ("folder", str(table.folder)),
        ("rows", rows),
        ("unused", f"{catalog.days_unused(table):.1f} days"),
        ("columns", ", ".join(columns) or "none yet"),
    ]
    if missing:
        lines.append(("missing", "shards " + ", ".join(map(str, missing))))
    if makers := catalog.makers(table):
        lines.append(("at work", ", ".join(makers)))
    print_columns(lines)
    print("key")
    print(json.dumps(table.key, indent=2, ensure_ascii=False))
    return 0


def absent(table: Table) -> list[int]:
    """The shards without a file, whole or not."""
    return [index for index in range(table.shards) if not table.shard_file(index).exists()]


def verify(store: Store, options: argparse.Namespace) -> int:
    if options.key and Path(options.key).is_dir():
        return verify_folder(Path(options.key))
    found = catalog.tables(store)
    bad = sum(map(verify_table, [catalog.find(store, options.key, found)] if options.key else found))
    if bad:
        print(f"{bad} damaged; the next run that needs a damaged shard makes it again")
    return 1 if bad else 0


def verify_table(table: Table) -> int:
    """Compute the checksums of a table, print what was found, return how many are wrong."""
    if table.error:
        print(f"DAMAGED  {table.error}")
        return 1
    try:
        faults = {index: table.fault(index, always=True) for index in range(table.shards)}
    except TOPRError as error:  # no permission
        print(f"NOT READ {error}")
        return 1
    damaged = {index: fault for index, fault in faults.items() if fault not in (None, MISSING)}
    for index, fault in damaged.items():
        print(f"DAMAGED  {table.shard_file(index)}: {fault}")
    whole = sum(fault is None for fault in faults.values())
    if not damaged:
        print(f"sound    {table.name}: {whole} of {table.shards} shards made, all checksums right")
    return len(damaged)


def verify_folder(folder: Path) -> int:
    """The same of all below a folder: models and checkpoints, tables, and whether JSON can be read."""
    unseen: list[OSError] = []
    below = [Path(parent, name) for parent, _, names in os.walk(folder, onerror=unseen.append) for name in names]
    for error in unseen:
        print(f"NOT READ {error.filename}: no permission")
    stores = {path.parents[2] for path in below if path.name == "key.json" and len(path.parts) > len(folder.parts) + 2}
    bad = len(unseen) + sum(verify_table(table) for root in sorted(stores) for table in catalog.tables(Store(root)))
    carried = {path.parent for path in below if path.name == CHECKSUMS}
    carried |= {path.parent / "model" for path in below if path.name == "DONE"}  # of a finished run
    for each in sorted(carried):
        fault = find_damage(each)
        print(f"DAMAGED  {each}: {fault}" if fault else f"sound    {each}: all checksums right")
        bad += fault is not None
    inside = {*carried, *stores}
    texts = [path for path in sorted(below) if ".json" in path.name and inside.isdisjoint(path.parents)]
    unread = [path for path in texts if not is_json(path)]
    for path in unread:
        print(f"DAMAGED  {path}: no JSON, or nothing in it")
    bad += len(unread)
    print(
        f"{folder}: {len(carried)} folders of weights, {len(stores)} stores, {len(texts)} files of JSON; {bad} damaged"
    )
    return 1 if bad else 0


def is_json(path: Path) -> bool:
    """Check that a whole file can be read, and is not empty."""
    if path.suffix == ".jsonl":
        return read_lines(path)[1] == 0
    try:
        return path.suffix != ".json" or bool(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):
        return False


def regrade(store: Store, options: argparse.Namespace) -> int:
    from topr_exp.grading.verdicts import regrade_table

    found = catalog.tables(store)
    found = [catalog.find(store, options.key, found)] if options.key else found
    verdicts = [table for table in found if table.kind == "verdicts" and not table.imported]
    if options.key and not verdicts:
        raise TOPRError(f"{found[0].name} holds no verdicts")
    bad = total = 0
    for table in verdicts:
        try:
            if table.error:
                raise TOPRError(table.error)
            cut_off, still = regrade_table(table, store, options.grader)
        except TOPRError as error:
            print(f"NOT GRADED  {table.name}: {error}")
            bad += 1
            continue
        total += cut_off
        if cut_off:
            print(f"{cut_off - still} of {cut_off} cut-off completions of {table.name} are decided now")
    if not bad and not total:
        print(f"no completion was cut off, of {len(verdicts)} tables of verdicts in {store.root}")
    return 1 if bad else 0


def prune(store: Store, options: argparse.Namespace) -> int:
    if options.kind is None and options.older_than is None and options.key is None:
        options.refuse("say what to remove: --kind, --older-than or --key")
    known = catalog.tables(store)
    catalog.refuse_no_store(store.root)
    found = [catalog.find(store, options.key, known)] if options.key else known
    removed, freed = set[str](), 0
    for table in [table for table in found if fits(table, options)]:
        part = [one for one in [table, *catalog.hanging(table.name, known)] if one.name not in removed]
        if makers := sorted({maker for one in part for maker in catalog.makers(one)}):
            print(f"kept     {table.name}: {', '.join(makers)} is at work on it or on what was made from it")
            continue
        for one in part:
            size = catalog.size(one)
            if options.yes:
                catalog.remove(one)
            verb = "removed " if options.yes else "would go"
            print(f"{verb} {one.name}  {human_bytes(size)}  {FOR_EVER * one.imported}".rstrip())
            removed.add(one.name)
            freed += size
    if options.yes:
        catalog.sweep(store)
    tables = f"{len(removed)} {'table' if len(removed) == 1 else 'tables'}, {human_bytes(freed)}"
    print(f"removed {tables}" if options.yes else f"{tables} would be removed; add --yes to do it")
    return 0


def fits(table: Table, options: argparse.Namespace) -> bool:
    """Check that `prune` was asked for a table; TOPRError for a damaged one that --key doesn't name in full."""
    if table.error and options.key != table.name:
        if options.key is not None:
            raise TOPRError(f"{table.error}: prune --key {table.name}")
        return False
    asked_for = options.key is not None or not table.imported or options.kind == table.kind == "imported"
    young = options.older_than is not None and catalog.days_unused(table) < options.older_than
    return asked_for and options.kind in (None, table.kind) and not young


def export(store: Store, options: argparse.Namespace) -> int:
    from topr_exp.store.completions import export_file

    table = catalog.find(store, options.key)
    rows = export_file(table, options.file)
    print(f"{rows:,} completions of {table.name} in {options.file}, {human_bytes(options.file.stat().st_size)}")
    return 0


def import_(store: Store, options: argparse.Namespace) -> int:
    from topr_exp.store.completions import import_file

    table, scan, made = import_file(store, options.file, options.kind)
    for name, count in scan.passed_over.most_common():
        print_warning(f"nothing reads the member {name} ({count:,} lines)")
    has = " and ".join(sorted(scan.lists, reverse=True)) or "text only"
    state = "" if made else " (was there already)"
    print(f"{table.name}: {scan.rows:,} completions, {has}{state}")
    return 0


def print_columns(lines: Sequence[tuple[str, ...]], right: Set[int] = frozenset()) -> None:
    """Aligned columns two spaces apart; the last one is as long as it is."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def human_bytes(count: float) -> str:
    """1234567 -> 1.2 MB (powers of 1000, as disks are sold)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def short(key: Mapping[str, Any], width: int = 100) -> str:
    """A key in one line: its plain members, long values (hashes) and then the whole cut."""
    plain = {name: str(value) for name, value in key.items() if not isinstance(value, (dict, list))}
    return cut(" ".join(f"{name}={cut(value, 14)}" for name, value in plain.items()), width)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
