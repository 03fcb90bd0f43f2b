"""Schedulers for tests of sweeps: a fake one, and Slurm with programs in the place of its commands."""

import pytest

from tests.sweeps.fake_scheduler import FakeScheduler
from tests.sweeps.slurm_programs import SlurmPrograms
from topr_exp.sweeps.registry import SCHEDULERS


@pytest.fixture
def scheduler(monkeypatch):
    """The scheduler of `cluster=slurm`."""
    fake = FakeScheduler()
    monkeypatch.setitem(SCHEDULERS, "slurm", fake)
    return fake


@pytest.fixture
def programs(tmp_path, variables):
    folder = tmp_path / "bin"
    variables["PATH"] = f"{folder}:/usr/bin:/bin"
    return SlurmPrograms(folder)
