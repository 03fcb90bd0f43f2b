"""Graders that many tests share; a user's graders are found as a module beside the command is."""

import copy
import sys
from pathlib import Path

import pytest

from tests.conftest import values_of
from topr_exp.grading import Grader

FOLDER = str(Path(__file__).parent)


@pytest.fixture(scope="session", autouse=True)
def own_graders_are_importable():
    sys.path.insert(0, FOLDER)
    yield
    sys.path.remove(FOLDER)


@pytest.fixture(scope="session")
def grader():
    with Grader("math", workers=2, deadline=20.0) as grader:
        yield grader


@pytest.fixture(scope="session")
def obedient(own_graders_are_importable):
    """A user's grader that does what the completion says."""
    with Grader("own_graders.obedient", workers=1, deadline=60.0, threshold=0.5) as grader:
        yield grader


@pytest.fixture
def graded(obedient):
    """The same with graded rewards, on the same workers."""
    obedient.start()
    grader = copy.copy(obedient)
    grader.graded = True
    return grader


def boxed(answer):
    return rf"\boxed{{{answer}}}"


def verdicts_on(grader, pairs):
    return values_of(grader.grade(pairs), "verdict")


def decisions(grader, pairs):
    """Verdicts, each with what decided it."""
    return [(outcome.verdict, outcome.path) for outcome in grader.grade(pairs)]


def worker_pids(grader):
    """Process ids of the server and the workers; none before they are needed."""
    pool = grader._pool
    if pool is None or not pool.usable:
        return []
    return [pool._server.pid, *values_of(pool._workers, "pid")]
