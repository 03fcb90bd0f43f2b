"""The verifier's task: draws to train and to test on have seeds and numbers of their own, in the keys of the store."""

from tests.conftest import read_json, small_config
from topr_exp.pipeline import run

SETTINGS = """
task=verifier model=tiny_verifier task.solutions=4 task.test_solutions=5
sampler.seed=3 data.n=2 data.eval_n=6 data.train_problems=4 data.test_problems=3
"""


def test_test_solutions_and_their_verifications_are_the_same_for_every_run_of_a_sweep_over_the_sampling_seed(tmp_path):
    config = small_config(tmp_path, *SETTINGS.split())

    run(config)

    draws = set()
    for path in config.store.glob("rollouts/*/key.json"):
        key = read_json(path)["key"]
        draws.add((key["n"], key["seed"]))
    solutions = {(4, 3), (5, 0)}  # number and seed of those to train on, and to test on
    verifications = {(2, 3), (6, 0)}
    assert draws == solutions | verifications
