"""The papers' Table 1, and distances: against log-probabilities and gradients by the model's own forward pass."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduce.distance import distance
from reproduce.variance import LIMITS, compute_variances, gradient_moments
from tests.conftest import column, config_of, read_json
from tests.reproduce.test_records import stored_rows
from topr_exp import prompt_ids
from topr_exp.models.policy import load_policy

pytestmark = pytest.mark.extended

# What a ratio r weighs, by the papers' names of the losses.
WEIGHTS = {
    "sft": lambda r, is_correct: float(is_correct),
    "naive": lambda r, is_correct: 1,
    "is": lambda r, is_correct: r,
    "tis": lambda r, is_correct: min(r, 1),
    "topr": lambda r, is_correct: max(min(r, 1), is_correct),
}


def test_limits_are_those_of_the_yamls():
    for name, limits in LIMITS.items():
        algo = config_of(f"algo={name}").algo
        assert (algo.a_pos, algo.b_pos, algo.a_neg, algo.b_neg) == limits


def test_the_moments_of_gradients_are_those_of_the_whole_matrix():
    rng = np.random.default_rng(3)
    gradients = rng.normal(0.1, 1, (70, 11))  # more than two blocks
    factors = rng.normal(size=70)

    moments = gradient_moments([torch.tensor(row) for row in gradients], {"name": factors})

    trace, signal = moments["name"]
    weighted = factors[:, None] * gradients
    products = weighted @ weighted.T
    products_of_different = products.sum() - np.trace(products)  # unbiased for the squared norm of the mean
    assert trace == pytest.approx(np.trace(np.cov(weighted.T)), rel=1e-9)
    assert signal == pytest.approx(products_of_different / (70 * 69), rel=1e-6)


# ---- of a run


def log_likelihood(model, prompt, completion):
    """log π(y | x)."""
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0].double()
    logp = logits.log_softmax(dim=-1)[len(prompt) - 1 : -1]
    return logp.gather(-1, torch.tensor(completion)[:, None]).sum()


def trained_and_start(config):
    """The policies where the run ended and where it began."""
    return load_policy(config.model, "cpu", config.folder / "model"), load_policy(config.model, "cpu")


def flat_gradient(value, model):
    parts = torch.autograd.grad(value, [*model.parameters()])
    return torch.cat([part.flatten() for part in parts]).double().numpy()


def test_the_variance_of_a_runs_gradients(finished):
    """w · R · ∇ log π / T of every training completion, where w is π at the end over π at the start, within limits."""
    sources = read_json(finished.folder / "iteration-1/sources.json")
    store = Path(sources["store"])
    policy, start = trained_and_start(finished)
    prompts = prompt_ids(finished, policy)

    ratios = []
    gradients = {name: [] for name in WEIGHTS}
    verdicts = column(stored_rows(store / sources["verdicts"]), "verdict")
    for row, verdict in zip(stored_rows(store / sources["rollouts"]), verdicts, strict=True):
        sequence = prompts[row["problem"]].tolist(), row["tokens"]
        logp = log_likelihood(policy.model, *sequence)
        ratio = math.exp(logp.item() - log_likelihood(start.model, *sequence).item())
        ratios.append(ratio)
        gradient = flat_gradient(logp / len(row["tokens"]), policy.model)
        is_correct = verdict == "correct"
        reward = 1 if is_correct else -1
        for name, weight in WEIGHTS.items():
            gradients[name].append(weight(ratio, is_correct) * reward * gradient)
    assert min(ratios) < 0.5, "the policy has hardly moved"
    assert max(ratios) > 1.5

    record = {"settings": {"algo.name": "topr", "model.name": "tiny", "seed": 0}}
    variances = compute_variances([(record, finished.folder)])

    assert list(variances) == ["tiny 0 start", "tiny 0 near", "tiny 0", "tiny 0 own"]
    for name, rows in gradients.items():
        trace = np.stack(rows).var(axis=0, ddof=1).sum()
        assert variances["tiny 0"][name][0] == pytest.approx(trace, rel=1e-3), name
    at_start = variances["tiny 0 start"]
    assert at_start["topr"] == at_start["tis"] == at_start["is"] == at_start["naive"] != at_start["sft"], "ratios are 1"


def test_the_distance_of_a_run_is_its_kl_to_where_it_began(finished):
    """The mean of log π − log π_ref over completions of π, which is above 0 where π moved."""
    final = read_json(finished.folder / "summary.json")["final"]
    policy, start = trained_and_start(finished)
    prompts = prompt_ids(finished, policy, split="test")

    log_ratios = []
    with torch.no_grad():
        for row in stored_rows(Path(final["rollouts"])):
            sequence = prompts[row["problem"]].tolist(), row["tokens"]
            log_ratio = log_likelihood(policy.model, *sequence) - log_likelihood(start.model, *sequence)
            log_ratios.append(log_ratio.item())

    assert len(log_ratios) == 6 * 4
    assert np.mean(log_ratios) > 0.1
    assert distance(finished.folder) == pytest.approx(np.mean(log_ratios), rel=1e-4)
