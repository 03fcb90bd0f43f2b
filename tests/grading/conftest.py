"""Graders that many tests share; a user's graders are found as a module beside the command is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from topr_exp.grading import Grader


@pytest.fixture(scope="session", autouse=True)
def own_graders_are_importable() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader("math", workers=2, deadline=20.0) as grader:
        yield grader


@pytest.fixture(scope="session")
def obedient(own_graders_are_importable: None) -> Iterator[Grader]:
    with Grader("own_graders.obedient", workers=1, deadline=60.0) as grader:
        yield grader


def worker_pids(grader: Grader) -> list[int]:
    """Process ids of the server and the workers; empty while none were needed."""
    pool = grader._pool
    return [pool._server.pid, *(worker.pid for worker in pool._workers)] if pool is not None and pool.usable else []
