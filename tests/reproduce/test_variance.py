"""The papers' Table 1: limits, coefficients and moments of gradients."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reproduce.distance import distance
from reproduce.variance import (
    LIMITS,
    compute_variances,
    example_coefficients,
    gradient_moments,
    in_multiples_of_topr,
    moments_of_run,
)
from tests.conftest import config_of
from tests.reproduce.test_records import rows
from topr_exp.config.settings import Config
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import build_prompter, tokenize_prompts
from topr_exp.models.policy import load_policy

pytestmark = pytest.mark.extended


def test_table_1_s_limits_are_those_of_the_yamls() -> None:
    for name, limits in LIMITS.items():
        algo = config_of(f"algo={name}").algo
        assert (algo.a_pos, algo.b_pos, algo.a_neg, algo.b_neg) == limits


def test_a_variance_is_told_in_multiples_of_topr_s() -> None:
    seeds = [{"topr": [1.0, 2.0], "is": [2.0, 1.0]}, {"topr": [1.0, -1e-9], "is": [8.0, 1.0]}]
    assert in_multiples_of_topr(seeds[:1], "is") == "2; 4"
    assert in_multiples_of_topr(seeds, "is") == "4; –", "TOPR's mean gradient is lost in noise in one seed"
    assert in_multiples_of_topr([], "is") == ""


def test_the_moments_of_gradients_are_those_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(3)
    gradients = rng.normal(0.1, 1, (70, 11))  # more than two blocks
    factors = {name: rng.normal(size=70) for name in ("one", "other")}
    moments = gradient_moments([torch.tensor(row) for row in gradients], factors)
    for name, (trace, signal) in moments.items():
        weighed = factors[name][:, None] * gradients
        assert trace == pytest.approx(np.trace(np.cov(weighed.T)), rel=1e-9)
        pairs = weighed @ weighed.T  # of different examples: unbiased for the squared norm of the mean
        assert signal == pytest.approx((pairs.sum() - np.trace(pairs)) / (70 * 69), rel=1e-6)


def test_at_the_start_only_positives_only_differs_and_later_each_limit_does_what_it_says() -> None:
    positive = np.array([True, True, False, False])
    start = example_coefficients(np.zeros(4), positive)
    assert start.pop("sft").tolist() == [1, 1, 0, 0]
    assert all(factors.tolist() == [1, 1, -1, -1] for factors in start.values())
    moved = example_coefficients(np.log([4, 0.5, 4, 0.5]), positive)
    assert moved["topr"].tolist() == pytest.approx([1, 1, -1, -0.5])
    assert moved["tis"].tolist() == pytest.approx([1, 0.5, -1, -0.5])
    assert moved["is"].tolist() == pytest.approx([4, 0.5, -4, -0.5])
    assert moved["naive"].tolist() == [1, 1, -1, -1]


# ---- of a run: against log-probabilities and gradients by the model's own forward pass, and arithmetic


def log_likelihood(model: Any, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """log π(y | x), token by token."""
    tokens = torch.tensor([[*prompt, *response]])
    table = model(tokens).logits[0].double().log_softmax(dim=-1)
    places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
    return torch.stack([table[place, token] for place, token in zip(places, response, strict=True)]).sum()


def prompts(config: Config, part: str) -> list[list[int]]:
    problems, policy = getattr(load_problems(config.data), part), load_policy(config.model, "cpu")
    tokenized = tokenize_prompts(problems, build_prompter(config.data), policy, config.sampler.max_new_tokens)
    return [prompt.tolist() for prompt in tokenized.prompts]


def models(config: Config) -> tuple[Any, Any]:
    """Where the run ended, and where it began."""
    ended, began = load_policy(config.model, "cpu", config.folder / "model"), load_policy(config.model, "cpu")
    assert any((a != b).any() for a, b in zip(ended.model.parameters(), began.model.parameters(), strict=True))
    return ended.model.eval(), began.model.eval()


def test_the_variance_of_a_run_s_gradients(finished: Config) -> None:
    """w · R · ∇ log π / T of every training completion, where w is π at the end over π at the start, within limits."""
    sources = json.loads((finished.folder / "iteration-1" / "sources.json").read_text())
    store = Path(sources["store"])
    rollouts, graded = (rows(store / sources[name]) for name in ("rollouts", "verdicts"))
    prompt_ids, (model, start) = prompts(finished, "train"), models(finished)
    weights, ratios = [*model.parameters()], []
    within = {  # a ratio r, by the papers' names of the losses
        "sft": lambda r, sign: 1 if sign > 0 else 0,
        "naive": lambda r, sign: 1,
        "is": lambda r, sign: r,
        "tis": lambda r, sign: min(r, 1),
        "topr": lambda r, sign: 1 if sign > 0 else min(r, 1),
    }
    sums, squares = dict.fromkeys(within, np.float64(0)), dict.fromkeys(within, 0.0)
    for row, verdict in zip(rollouts, graded, strict=True):
        of_model = log_likelihood(model, prompt_ids[row["problem"]], row["tokens"])
        with torch.no_grad():
            of_start = log_likelihood(start, prompt_ids[row["problem"]], row["tokens"])
        ratios.append(math.exp(of_model.item() - of_start.item()))
        parts = torch.autograd.grad(of_model / len(row["tokens"]), weights)
        gradient = torch.cat([part.flatten() for part in parts]).double().numpy()
        sign = 1 if verdict["verdict"] == "correct" else -1
        for name, weigh in within.items():
            weighed = weigh(ratios[-1], sign) * sign * gradient
            sums[name], squares[name] = sums[name] + weighed, squares[name] + float(weighed @ weighed)
    assert min(ratios) < 0.5, "the policy has hardly moved"
    assert max(ratios) > 1.5
    moments = moments_of_run(finished.folder, 0)
    assert set(moments) == set(within)
    for name in within:
        trace = (squares[name] - float(sums[name] @ sums[name]) / len(ratios)) / (len(ratios) - 1)
        assert moments[name][0] == pytest.approx(trace, rel=1e-3), name
    record = {"settings": {"algo.name": "topr", "model.name": "tiny", "seed": 0}}
    other_record = {"settings": {"algo.name": "is", "model.name": "tiny", "seed": 1}}
    noted = compute_variances([(record, finished.folder), (other_record, finished.folder)])
    assert list(noted) == ["tiny 0 start", "tiny 0 near", "tiny 0", "tiny 0 own", "tiny 1 own"]
    assert noted["tiny 0"]["is"][0] == pytest.approx(moments["is"][0], rel=1e-5)
    assert noted["tiny 0 own"] == {"topr": noted["tiny 0"]["topr"]}
    assert noted["tiny 1 own"] == {"is": noted["tiny 0"]["is"]}, "of this run at the same weights"
    start = noted["tiny 0 start"]
    assert start["topr"] == start["tis"] == start["is"] == start["naive"] != start["sft"], "every ratio is 1 there"
    near = noted["tiny 0 near"]
    assert near["topr"] != near["is"]
    assert near["is"][0] == pytest.approx(start["is"][0], rel=0.5)


def test_the_distance_of_a_run_is_its_kl_to_where_it_began(finished: Config) -> None:
    """The mean of log π − log π_ref over completions of π, which is above 0 where π moved."""
    last = json.loads((finished.folder / "summary.json").read_text())["final"]
    prompt_ids, (model, start) = prompts(finished, "test"), models(finished)
    with torch.no_grad():
        log_ratios = [log_likelihood(model, prompt_ids[row["problem"]], row["tokens"])
                - log_likelihood(start, prompt_ids[row["problem"]], row["tokens"])
                for row in rows(Path(last["rollouts"]))]  # fmt: skip
    assert len(log_ratios) == 6 * 4
    expected = float(torch.stack(log_ratios).mean())
    assert expected > 0.1
    assert distance(finished.folder) == pytest.approx(expected, rel=1e-4)
