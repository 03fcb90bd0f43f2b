"""Tasks: training and test completions have seeds and numbers of their own, in the keys of the store."""

import pytest

from tests.conftest import read_json, small_config
from topr_exp.pipeline import run

SIZES = ["sampler.seed=3", "data.n=2", "data.eval_n=6", "data.train_problems=4", "data.test_problems=3"]
VERIFIER = ["task=verifier", "model=tiny_verifier", "task.solutions=4", "task.test_solutions=5"]


@pytest.mark.parametrize(
    ("words", "draws"),
    [
        ([], {(2, 3), (6, 0)}),
        (VERIFIER, {(4, 3), (5, 0), (2, 3), (6, 0)}),  # solutions to training and test problems, then verifications
    ],
    ids=["solve", "verifier"],
)
def test_completions_of_test_problems_are_the_same_for_every_run_of_a_sweep_over_the_sampling_seed(
    words, draws, tmp_path
):
    config = small_config(tmp_path, *SIZES, *words)

    run(config)

    keys = [read_json(path)["key"] for path in config.store.glob("rollouts/*/key.json")]
    assert {(key["n"], key["seed"]) for key in keys} == draws
