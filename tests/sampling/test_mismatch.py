"""The distance between the sampler's log-probabilities and μ's: what it is, and that top-k shows in it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import config_of, overrides
from topr_exp.pipeline import run
from topr_exp.sampling.mismatch import describe_mismatch, mismatch


def test_quantiles_by_token_and_of_the_product_by_completion() -> None:
    sampler = [np.zeros(2, np.float32), np.full(3, -1, np.float32)]
    mu = [np.array([-1, -2], np.float32), np.array([-1, -1, -0.5], np.float32)]
    found = mismatch(mu, sampler)
    assert found["tokens"] == 5
    assert (found["per_token"]["min"], found["per_token"]["50%"], found["per_token"]["max"]) == (-2, 0, 0.5)
    assert found["per_token_mean_absolute"] == pytest.approx(3.5 / 5)
    assert found["sequence_ratio"]["min"] == pytest.approx(math.exp(-3))
    assert found["sequence_ratio"]["max"] == pytest.approx(math.exp(0.5))
    assert "log μ − log q a token 0 (" in describe_mismatch(found)
    assert mismatch([], []) == {"tokens": 0}
    assert describe_mismatch({"tokens": 0})


def test_a_top_k_that_bites_shows_in_the_ratio_and_none_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for top_k in (0, 2):
        summary = run(config_of(*overrides(tmp_path, f"sampler.top_k={top_k}")))
        found[top_k] = summary["sampler_mismatch"]
        assert "μ against the sampler's q: log μ − log q a token" in capsys.readouterr().out
    for ratio in found[0]["sequence_ratio"].values():
        assert ratio == pytest.approx(1, abs=1e-3)
    # The two likeliest tokens had less than all the probability, so μ < q, by more over a whole completion.
    assert found[2]["per_token"]["max"] < 1e-3
    assert found[2]["sequence_ratio"]["50%"] < 0.9
    folder = config_of(*overrides(tmp_path, "sampler.top_k=2")).folder
    stored = json.loads((folder / "iteration-1" / "training_set.json").read_text())
    assert stored["sampler_mismatch"] == found[2]
    assert stored["sampler"]["sampler"] == "hf"
