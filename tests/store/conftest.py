"""What several tests of the store start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.store.store_workers import SHARDS, open_table, shard
from tests.store.watching import PROCESSES, contents


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a table that one process filled, which nothing stopped."""
    table = open_table(tmp_path_factory.mktemp("undisturbed"))
    assert table.fill(shard) == SHARDS
    return contents(table.folder)


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
