"""Tables that several tests of the store start from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PROCESSES
from tests.store.store_workers import open_table, shard
from topr_exp.store import Store, Table
from topr_exp.store.__main__ import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A complete table in the store tmp_path/store."""
    table = open_table(tmp_path / "store")
    table.fill(shard)
    return table


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Call the store's command line: exit status, standard output and error."""

    def run(*arguments: str, root: Path = tmp_path / "store") -> tuple[int, str, str]:
        status = main(["--root", str(root), *arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Completions with verdicts on them, scored with two references; beside it what a run leaves."""
    store = Store(tmp_path / "store")
    rollouts = store.table("rollouts", {"weights": "w"}, 1)
    rollouts.fill(shard)
    store.table("verdicts", {"rollouts": rollouts.name}, 1).fill(shard)
    for reference in ("a", "b"):
        store.table("logprobs", {"rollouts": rollouts.name, "weights": reference}, 1).fill(shard)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "summary.json").write_text("{}")
    return store


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Start worker processes; none outlives the test."""
    started = []

    def run(target: Callable[..., None], *arguments: Any) -> Any:
        process = PROCESSES.Process(target=target, args=arguments)
        process.start()
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.join()
