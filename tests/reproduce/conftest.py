"""A run that is really there, for what figures read of a run's folder."""

import pytest

from tests.conftest import small_config
from topr_exp.pipeline import run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Two iterations with a curve, at a learning rate that moves the policy."""
    folder = tmp_path_factory.mktemp("finished")
    sizes = ("data.train_problems=8", "data.test_problems=6", "evaluation.every=1", "evaluation.problems=3")
    config = small_config(folder, *sizes, "iterations=2", "optim.batch_size=8", "optim.lr=1e-3")
    run(config)
    return config
