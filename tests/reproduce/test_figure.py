"""What a figure knows besides records: numbers that belong to a model and a seed go to these alone."""

from __future__ import annotations

import numpy as np

from reproduce.figure import of_model
from tests.reproduce.made_up import made_up
from topr_exp.report.selection import Runs


def test_extra_numbers_are_those_of_the_model_and_of_its_seeds() -> None:
    extra = {"tiny 0": "a", "tiny_noise 0": "b", "tiny 1": "c", "tiny_noise 1": "d", "tiny 12": "e"}
    runs = {
        model: Runs([made_up(algo, seed, np.full(4, 2), **{"model.name": model})
                     for algo in ("topr", "is") for seed in (2, 1, 0)])
        for model in ("tiny", "tiny_noise")
    }  # fmt: skip
    assert of_model(runs["tiny"], extra) == ["a", "c"], "each once, by seed; there is none of seed 2"
    assert of_model(runs["tiny_noise"], extra) == ["b", "d"]
