"""Which tables a run uses and which runs use a table, and what goes when a run or a table goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.store_workers import shard
from topr_exp.runtime import leases
from topr_exp.store import Store, catalog
from topr_exp.store.__main__ import main
from topr_exp.store.users import TABLES, SharedStore, tables_of, users

Command = Callable[..., list[str]]


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two runs that share completions and verdicts; each has scored them with a reference of its own."""
    for name, reference in (("one", "a"), ("two", "b")):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        store = SharedStore(tmp_path / "store", run)
        rollouts = store.table("rollouts", {"weights": "w"}, 1)
        rollouts.fill(shard)
        store.table("verdicts", {"rollouts": rollouts.name}, 1).fill(shard)
        store.table("logprobs", {"rollouts": rollouts.name, "weights": reference}, 1).fill(shard)
    return tmp_path


@pytest.fixture
def command(outputs: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> list[str]:
        assert main(["--root", str(outputs / "store"), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def names(outputs: Path) -> set[str]:
    return {entry.name for entry in catalog.entries(Store(outputs / "store"))}


def test_both_ways(outputs: Path, command: Command) -> None:
    store = Store(outputs / "store")
    assert len(names(outputs)) == 4
    using = users(catalog.entries(store), store)
    for name in ("one", "two"):
        run = outputs / "runs" / name
        assert len(tables_of(run)) == 3
        assert {table for table, found in using.items() if run in found} == tables_of(run)
        assert {line.split()[0] for line in command("list", "--run", str(run))[1:-1]} == tables_of(run)
    assert "runs     runs/one, runs/two" in command("describe", "rollouts")
    (own,) = tables_of(outputs / "runs" / "two") - tables_of(outputs / "runs" / "one")
    assert "runs     runs/two" in command("describe", own)


def test_what_was_made_from_a_table_goes_with_it(outputs: Path, command: Command) -> None:
    other = Store(outputs / "store").table("rollouts", {"weights": "other"}, 1)
    other.fill(shard)
    (rollouts,) = [name for name in names(outputs) if name.startswith("rollouts/") and name != other.name]
    lines = command("prune", "--key", rollouts)
    assert sum("would go" in line for line in lines) == 4
    assert lines[0].endswith("used by runs/one, runs/two")
    assert lines[-1].startswith("4 tables, ")
    assert len(names(outputs)) == 5
    command("prune", "--key", rollouts, "--yes")
    assert names(outputs) == {other.name}


def test_what_was_made_from_what_was_made_goes_too(outputs: Path, command: Command) -> None:
    (verdicts,) = [name for name in names(outputs) if name.startswith("verdicts/")]
    (rollouts,) = [name for name in names(outputs) if name.startswith("rollouts/")]
    Store(outputs / "store").table("votes", {"verdicts": f"{verdicts} as read by y"}, 1).fill(shard)
    command("prune", "--key", rollouts, "--yes")
    assert names(outputs) == set()


def test_nothing_goes_while_a_process_works_on_what_was_made_from_it(outputs: Path, command: Command) -> None:
    (verdicts,) = (outputs / "store" / "verdicts").iterdir()
    claim = leases.acquire(verdicts / "shard-00000.claim")
    assert isinstance(claim, leases.Lease)
    before = names(outputs)
    with claim:
        first, *_ = command("prune", "--kind", "rollouts", "--yes")
    assert first.startswith("kept     rollouts/")
    assert names(outputs) == before


def test_what_only_a_deleted_run_used_goes(outputs: Path, command: Command) -> None:
    assert command("prune", "--unused")[-1].startswith("0 tables")
    kept, own = (tables_of(outputs / "runs" / name) for name in ("one", "two"))
    shutil.rmtree(outputs / "runs" / "two")
    (first, last) = command("prune", "--unused", "--yes")
    assert first.startswith(f"removed  {next(iter(own - kept))}")
    assert first.endswith("used by no run")
    assert last.startswith("removed 1 table, ")
    assert names(outputs) == kept


def test_what_was_imported_is_not_taken_for_unused(outputs: Path, command: Command) -> None:
    """It can't be made again, and stands there before any run has used it."""
    table = Store(outputs / "store").table("imported", {"content": "abc"}, 1)
    table.fill(shard)
    assert command("prune", "--unused")[-1].startswith("0 tables")
    assert command("prune", "--unused", "--kind", "imported", "--yes")[-1].startswith("removed 1 table")


def test_runs_that_noted_nothing_are_known_by_their_files(outputs: Path) -> None:
    """Those made before, and evaluations: what they name, and all that was made from it."""
    store, run = Store(outputs / "store"), outputs / "runs" / "one"
    (rollouts,) = [name for name in names(outputs) if name.startswith("rollouts/")]
    (run / TABLES).unlink()
    (run / "iteration-1").mkdir()
    (run / "iteration-1" / "sources.json").write_text(
        json.dumps({"store": "x", "rollouts": f"{rollouts} as read by y"})
    )
    assert tables_of(run) == {rollouts}
    assert all(run in found for found in users(catalog.entries(store), store).values())
    evaluation = outputs / "evaluations" / "tiny"
    evaluation.mkdir(parents=True)
    place = str(store.root / rollouts)
    for name, text in (("eval.json", {"figures": {"rollouts": place}}), ("eval.jsonl", {"rollouts": place})):
        (evaluation / name).write_text(json.dumps(text))
        assert tables_of(evaluation) == {rollouts}
        (evaluation / name).unlink()


def test_a_lent_table_is_taken_only_whole(tmp_path: Path) -> None:
    lender, run = Store(tmp_path / "lender"), tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    whole, half = {"weights": "w"}, {"weights": "half"}
    lender.table("rollouts", whole, 2).fill(shard)
    with pytest.raises(ZeroDivisionError):
        lender.table("rollouts", half, 2).fill(lambda index: shard(index // (1 - index)))
    store = SharedStore(tmp_path / "store", run, lender)
    lent, made = store.table("rollouts", whole, 2), store.table("rollouts", half, 2)
    assert store.place(lent.name) == lent.folder == lender.root / lent.name
    assert store.place(made.name) == made.folder == store.root / made.name
    assert (lent.fill(shard), made.fill(shard)) == (0, 2)
    assert tables_of(run) == {made.name}
