"""Verification: the checksums of tables, and of all models, checkpoints and results below a folder."""

import os
from itertools import pairwise
from pathlib import Path

from topr_exp.runs.finished import MARK, NOT_SAVED, changed_results, keeps_no_model
from topr_exp.runtime.checksums import CHECKSUMS, find_damage
from topr_exp.store.catalog import find_tables
from topr_exp.store.layout import KEY_FILE
from topr_exp.store.source import Derivation
from topr_exp.store.table import MISSING, Store, Table, source_table
from topr_exp.types import TOPRError


def verify_table(table: Table) -> int:
    """Compute the checksums of a table's shards and print the outcome; returns how many are damaged."""
    try:
        derived = Table(table.folder, table.key, table.shards, derivation=intact_derivation(table), error=table.error)
        faults = [derived.fault(index, always=True) for index in range(table.shards)]
    except TOPRError as error:  # no permission
        print(f"NOT READ {error}")
        return 1
    damage = [table.error] if table.error else []
    for index, fault in enumerate(faults):
        if fault not in (None, MISSING):
            damage.append(f"{table.shard_file(index)}: {fault}")
    for line in damage:
        print(f"DAMAGED  {line}")
    if not damage:
        made_count = table.shards - faults.count(MISSING)
        print(f"sound    {table.name}: {made_count} of {table.shards} shards made, all checksums right")
    return len(damage)


def intact_derivation(table: Table) -> Derivation | None:
    """Return the rows and sources of a derived table's shards; None unless its source is intact in the same store."""
    source = source_table(table)
    if source is None:
        return None
    try:
        snapshot = source.snapshot()
    except TOPRError:  # the source's own verification reports it
        return None
    rows = [end - start for start, end in pairwise(snapshot.bounds)]
    return Derivation(tuple(rows), snapshot.source.parts())


def verify_folder(folder: Path) -> int:
    """Verify all models, checkpoints, tables and results of finished runs below a folder; returns the exit status."""
    unreadable: list[OSError] = []
    paths = []
    for parent, _, names in os.walk(folder, onerror=unreadable.append):
        paths += [Path(parent, name) for name in names]
    for error in unreadable:
        print(f"NOT READ {error.filename}: Permission denied")
    damage_count = len(unreadable)
    store_roots = set()
    weight_folders = set()
    runs = []
    for path in sorted(paths):
        if path.name == KEY_FILE and len(path.parts) > len(folder.parts) + 2:
            store_roots.add(path.parents[2])
        elif path.name == CHECKSUMS:
            weight_folders.add(path.parent)
        elif path.name == MARK:
            runs.append(path.parent)
    for root in sorted(store_roots):
        for table in find_tables(Store(root)):
            damage_count += verify_table(table)
    for run in runs:
        if keeps_no_model(run):
            print(f"no model {run}: {NOT_SAVED}")
        else:
            weight_folders.add(run / "model")
    for path in sorted(weight_folders):
        fault = find_damage(path)
        print(f"DAMAGED  {path}: {fault}" if fault else f"sound    {path}: all checksums right")
        damage_count += fault is not None
    for run in runs:
        damage_count += verify_results(run)
    counts = f"{len(weight_folders)} folders of weights, {len(store_roots)} stores, {len(runs)} finished runs"
    print(f"{folder}: {counts}; {damage_count} damaged")
    return int(damage_count > 0)


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
