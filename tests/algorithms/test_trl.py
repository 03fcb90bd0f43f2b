"""Losses against TRL's own code, called here: value and gradient on random [24, 40] batches with hostile corners.

Answers of 1 to 40 tokens in groups of four, one group all right and one all wrong, token log-ratios to ±30 and beyond
each width on both sides; the widths are not symmetric.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.algorithms.tabular_policies import load, with_signals
from topr_exp.types import Batch

pytestmark = pytest.mark.extended
ANSWERS, LONGEST, N = 24, 40, 4

# Our loss and what divides the sum over a batch: its answers, or its tokens; TRL's type, ratio and settings.
CASES: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
    ("grpo", "answers", {"length_normalize": True, "eps_low": 0.1, "eps_high": 0.3}, "grpo", {}),
    ("grpo", "answers", {"length_normalize": True, "off_policy_mask": 0.5, "eps_low": 0.1, "eps_high": 0.3}, "grpo",
     {"off_policy_mask_threshold": 0.5}),
    ("grpo", "longest", {"eps_low": 0.1, "eps_high": 0.3}, "dr_grpo", {}),
    ("grpo", "tokens", {"eps_low": 0.1, "eps_high": 0.3}, "dapo", {}),
    ("gspo", "answers", {"eps_low": 0.1, "eps_high": 0.3}, "grpo", {"importance_sampling_level": "sequence"}),
    ("luspo", "answers", {"a_neg": 0.9, "b_pos": 1.3}, "luspo", {"importance_sampling_level": "sequence"}),
    ("cispo", "tokens", {"cap": 1.3}, "cispo", {"epsilon_high": 1.3}),
    ("sapo", "answers", {"tau_neg": 1.5}, "sapo", {}),
    ("vespo", "tokens", {"advantage": "group_std"}, "vespo", {}),
]  # fmt: skip


def inputs(seed: int) -> dict[str, torch.Tensor]:
    """Made-up answers; log π has a gradient."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, LONGEST + 1, (ANSWERS,), generator=generator)
    lengths[:2] = torch.tensor([1, LONGEST])
    mask = torch.arange(LONGEST) < lengths[:, None]
    mu = -normal(ANSWERS, LONGEST).abs() * mask
    delta = 0.3 * normal(ANSWERS, LONGEST)
    delta[4:6, 0], delta[6:8, 0] = 30.0, -30.0
    delta[8:12] *= 10
    reward = torch.where(torch.rand(ANSWERS, generator=generator) < 0.4, 1.0, -1.0).double()
    reward[12:16], reward[16:20] = 1.0, -1.0
    logp = ((mu + delta) * mask).requires_grad_()
    return {"logp": logp, "mu": mu, "mask": mask, "reward": reward, "length": lengths}


def ours(name: str, changes: dict[str, Any], divisor: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    groups = given["reward"].reshape(-1, N)
    by_row = {"group_mean": groups.mean(1), "group_std": groups.std(1), "group_size": torch.full((ANSWERS // N,), N)}
    batch = Batch(
        logp=given["logp"], mu_logp=given["mu"], mask=given["mask"], reward=given["reward"],
        positive=given["reward"] > 0, baseline=0.0, group=torch.arange(ANSWERS) // N, sample=torch.arange(ANSWERS) % N,
        group_rewards=groups.repeat_interleave(N, 0), **{k: v.repeat_interleave(N) for k, v in by_row.items()},
    )  # fmt: skip
    loss = load(name, **changes)
    count = {"answers": ANSWERS, "tokens": int(given["length"].sum()), "longest": ANSWERS * LONGEST}
    found: torch.Tensor = loss(with_signals(loss, batch)).loss.sum() / count[divisor]
    return found


def trls(kind: str, settings: dict[str, Any], given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of GRPOTrainer on the same numbers, by a stand-in for the trainer that has what the function reads."""
    from trl import GRPOConfig, GRPOTrainer

    groups = given["reward"].reshape(-1, N)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
    mask = given["mask"].long()
    arguments = GRPOConfig(use_cpu=True, bf16=False, report_to="none", sapo_temperature_neg=1.5)
    trainer = SimpleNamespace(
        args=arguments, loss_type=kind, importance_sampling_level="token", epsilon_low=0.1, epsilon_high=0.3, beta=0.0,
        off_policy_mask_threshold=None, get_off_policy_mask=GRPOTrainer.get_off_policy_mask, use_vllm=False,
        get_gamma_weights=GRPOTrainer.get_gamma_weights, top_entropy_quantile=1.0, aux_loss_enabled=False,
        max_completion_length=LONGEST, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)}, model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x),
        _get_per_token_logps_and_entropies=lambda *a, **k: (given["logp"], torch.zeros_like(given["mu"]), None),
    )  # fmt: skip
    arguments.steps_per_generation = 1
    vars(trainer).update(settings)
    found: torch.Tensor = GRPOTrainer._compute_loss(trainer, None, {
        "prompt_ids": mask[:, :1], "prompt_mask": mask[:, :1], "completion_ids": mask, "completion_mask": mask,
        "advantages": advantages, "old_per_token_logps": given["mu"], "num_items_in_batch": mask.sum(),
    })  # fmt: skip
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("name", "divisor", "changes", "kind", "settings"), CASES)
def test_a_loss_and_its_gradient_are_trls(
    name: str, divisor: str, changes: dict[str, Any], kind: str, settings: dict[str, Any], seed: int
) -> None:
    pytest.importorskip("trl")
    given = inputs(seed)
    found, expected = ours(name, changes, divisor, given), trls(kind, settings, given)
    if name != "luspo":  # a row of the grammar: its value is −w·A·log π, and no surrogate's
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    gradients = [torch.autograd.grad(each, given["logp"])[0] for each in (found, expected)]
    assert all(bool(each.isfinite().all()) for each in gradients)
    assert float(gradients[0].abs().max()) > 0
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
