"""`python -m topr_exp.store`: list, verify and prune a store; import and export completions.

Exit status: 0; 1 for damage that `verify` found or an operation that failed; 2 for a wrong option.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from topr_exp.runs.finished import DONE_FILE, NOT_SAVED, changed_results, keeps_no_model
from topr_exp.runtime.checksums import CHECKSUMS, find_damage
from topr_exp.runtime.exit_status import CommandParser, exit_status, user_path
from topr_exp.runtime.files import folder_size
from topr_exp.runtime.terminal import plural, warn
from topr_exp.store.catalog import find_table, find_tables, matching_tables
from topr_exp.store.layout import KEY_FILE
from topr_exp.store.pruning import Selection, prune_tables
from topr_exp.store.table import Store
from topr_exp.store.table_lines import print_tables, tables_and_size
from topr_exp.store.verification import verify_table
from topr_exp.types import TOPRError

PRUNE = "remove tables that match all options, and tables derived from them; without --yes only list them"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    return exit_status(lambda: int(options.run(Store(options.root), options) or 0))


def parser() -> CommandParser:
    """Return the parser of the command line; each command sets `run`."""
    top = CommandParser(prog="python -m topr_exp.store", description=(__doc__ or "").split("\n\n")[0])
    top.add_argument("--root", type=user_path, default=Path("outputs/store"), help="the store (default: outputs/store)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    key_help = "kind/hash, as `list` prints it, or a unique prefix"

    def add(name: str, run: Callable[[Store, argparse.Namespace], int | None], summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary)
        command.set_defaults(run=run, refuse=command.error)
        return command

    add("list", list_tables, "one line per table")
    command = add("describe", describe, "a table's line, columns and whole key")
    command.add_argument("key", metavar="KEY", help=key_help)
    command = add("verify", verify, "check every checksum; exit status 1 if something is damaged")
    command.add_argument("key", metavar="KEY|FOLDER", nargs="?", help=f"{key_help}; or a folder of runs")
    command = add("prune", prune, PRUNE)
    command.add_argument("--kind", help="needed for imported tables (or --key), which no run can make again")
    command.add_argument("--older-than", type=days, metavar="DAYS", help="unused for this long")
    command.add_argument("--key", help=key_help)
    command.add_argument("--yes", action="store_true", help="really remove")
    command = add("export", export, "write a table of completions as JSON lines, or as Parquet with a data card")
    command.add_argument("key", metavar="KEY", help=key_help)
    command.add_argument("file", metavar="FILE.jsonl|FILE.parquet", type=user_path)
    import_command = add("import", import_, "store completions made elsewhere (docs/rollouts.md has the format)")
    inspect_command = add(
        "inspect", inspect, "describe a log of completions and the losses that can use it; stores nothing"
    )
    for command in (import_command, inspect_command):
        command.add_argument("file", metavar="FILE", help="a file, a folder or hub:NAME, as data.completions takes it")
        command.add_argument(
            "settings", metavar="KEY=VALUE", nargs="*", help="a run's settings, such as 'data.columns={reward: acc}'"
        )
    return top


def days(text: str) -> int:
    """Parse a number of days, from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of days, 0 or more; got {text}")
    return int(text)


def list_tables(store: Store, options: argparse.Namespace) -> None:
    tables = find_tables(store)
    print_tables(tables)
    if tables:
        byte_counts = [folder_size(table.folder) for table in tables]
        print(f"{tables_and_size(byte_counts)} in {store.root}")
    else:
        print(f"{store.root} holds no tables")


def describe(store: Store, options: argparse.Namespace) -> None:
    table = find_table(store, options.key)
    print_tables([table])
    columns = "none yet"
    for index in range(table.shards):
        if table.shard_path(index).exists():
            columns = ", ".join(f"{column.name} {column.type}" for column in table.shard(index).schema)
            break
    print(f"columns: {columns}")
    print(json.dumps(table.key, indent=2, ensure_ascii=False))


def verify(store: Store, options: argparse.Namespace) -> int:
    if options.key and Path(options.key).is_dir():
        return verify_folder(Path(options.key))
    tables = matching_tables(find_tables(store), options.key)
    damage_count = sum(map(verify_table, tables))
    if damage_count:
        print(f"{damage_count} damaged; the next run that needs a damaged shard makes it again")
    return int(damage_count > 0)


def verify_folder(folder: Path) -> int:
    """Verify all models, checkpoints, tables and results of finished runs below a folder; returns the exit status."""
    paths, unreadable = walk_files(folder)
    for error in unreadable:
        print(f"NOT READ {error.filename}: Permission denied")
    store_roots = set()
    weight_folders = set()
    runs = []
    for path in paths:
        if path.name == KEY_FILE and len(path.parts) > len(folder.parts) + 2:  # ROOT/KIND/HASH/KEY_FILE
            store_roots.add(path.parents[2])
        elif path.name == CHECKSUMS:
            weight_folders.add(path.parent)
        elif path.name == DONE_FILE:
            runs.append(path.parent)

    damage_count = len(unreadable)
    for root in sorted(store_roots):
        damage_count += sum(map(verify_table, find_tables(Store(root))))
    for run in runs:
        if keeps_no_model(run):
            print(f"no model {run}: {NOT_SAVED}")
        else:
            weight_folders.add(run / "model")
    damage_count += sum(map(verify_weights, sorted(weight_folders)))
    damage_count += sum(map(verify_results, runs))
    models = plural(len(weight_folders), "model")
    stores = plural(len(store_roots), "store")
    finished_runs = plural(len(runs), "finished run")
    print(f"{folder}: {models}, {stores}, {finished_runs}; {damage_count} damaged")
    return int(damage_count > 0)


def walk_files(folder: Path) -> tuple[list[Path], list[OSError]]:
    """List the files below a folder, sorted, and the errors of folders that cannot be read."""
    paths: list[Path] = []
    unreadable: list[OSError] = []
    for parent, _, names in os.walk(folder, onerror=unreadable.append):
        paths += [Path(parent, name) for name in names]
    return sorted(paths), unreadable


def verify_weights(folder: Path) -> int:
    """Compare weights with their checksums and print the outcome; returns 1 for damage."""
    fault = find_damage(folder)
    if fault is None:
        print(f"sound    {folder}: all checksums right")
        return 0
    print(f"DAMAGED  {folder}: {fault}")
    return 1


def verify_results(run: Path) -> int:
    """Compare the results of a finished run with their checksums and print the outcome; returns how many changed."""
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
    selection = Selection(options.kind, options.older_than, options.key)
    if selection == Selection():
        options.refuse("say what to remove: --kind, --older-than or --key")
    prune_tables(store, selection, really=options.yes)


def export(store: Store, options: argparse.Namespace) -> None:
    from topr_exp.store.completions import export_file

    table = find_table(store, options.key)
    print(f"{export_file(table, options.file):,} completions of {table.name} in {options.file}")


def import_(store: Store, options: argparse.Namespace) -> None:
    from topr_exp.imported.log import import_rows, open_reader
    from topr_exp.store.completions import COLUMNS, LISTS

    reader = open_reader(options.file, options.settings)
    table, rows_made = import_rows(store, reader)
    if reader.unread:
        warn(f"nothing reads the columns {', '.join(sorted(reader.unread))} of {options.file}")
    if reader.skipped:
        warn(f"{plural(len(reader.skipped), 'malformed row')} left out: {reader.skipped[0]}")
    column_names = table.shard(0).column_names
    list_names = [name for name in LISTS if COLUMNS[name] in column_names]
    content = " and ".join(list_names) or "text only"
    note = "" if rows_made else " (was there already)"
    print(f"{table.name}: {table.row_count():,} completions, {content}{note}")


def inspect(store: Store, options: argparse.Namespace) -> None:
    """Print a log's description, with the model, rewards and losses that the settings name."""
    from topr_exp.imported.log_report import inspect_log

    for name, text in inspect_log(options.file, options.settings).items():
        print(f"{name:<11} {text}")


if __name__ == "__main__":
    sys.exit(main())
