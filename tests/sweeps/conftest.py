"""A fake scheduler in the place of Slurm."""

import pytest

from tests.sweeps.fake_scheduler import FakeScheduler
from topr_exp.sweeps.registry import SCHEDULERS


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> FakeScheduler:
    """The scheduler of `cluster=slurm`."""
    fake = FakeScheduler()
    monkeypatch.setitem(SCHEDULERS, "slurm", fake)
    return fake
