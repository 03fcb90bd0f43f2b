"""AGRO's convergence off-policy on a softmax bandit (AGRO, arXiv 2503.19612, Figure 1), by the losses that train.

The bandit and its sizes are ours; the paper gives no numbers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from reproduce.claims import Extra
from reproduce.figure import FinishedRuns
from reproduce.records import rounded
from topr_exp import Batch, loss

if TYPE_CHECKING:
    from torch import Tensor

ACTIONS = 10
GROUPS, GROUP_SIZE = 128, 4  # of fixed samples
BETA = 0.5
LEARNING_RATE = 4.0
UPDATES = 1000
SEEDS = 5
KL_FLOOR = 1e-12  # float64 can't tell a smaller KL from 0
RECORDED_POINTS = 100  # of a curve


def compute_convergence(finished: FinishedRuns) -> Extra:
    """The curves of `train_bandits` at every hundredth of the updates, and where they end."""
    step = max(1, UPDATES // RECORDED_POINTS)
    curves, final = {}, {}
    for name, curves_of_seeds in train_bandits().items():
        curves[name] = [list(map(rounded, curve[::step])) for curve in curves_of_seeds]
        final[name] = [rounded(curve[-1]) for curve in curves_of_seeds]
    return {
        "step": step,
        "curves": curves,
        "final": final,
        "beta": BETA,
        "actions": ACTIONS,
    }


def train_bandits(updates: int = UPDATES, seeds: int = SEEDS) -> dict[str, list[list[float]]]:
    """KL(π ‖ π*) after each update of AGRO and of the KL-regularised policy gradient, by loss and seed.

    A softmax bandit with rewards in [0, 1], random π_ref and, unrelated to it, random μ; 128 groups of 4 actions drawn
    from μ once; π starts at π_ref and follows the full gradient. π* ∝ π_ref exp(r/β) is the optimum of
    E_π[r] − β KL(π ‖ π_ref) (Theorem 2).
    """
    losses = {
        "agro": loss("agro", beta=BETA, length_normalize=False),
        "kl_pg": loss("kl_pg", beta=BETA, length_normalize=False),
    }
    curves = {}
    for name, function in losses.items():
        curves[name] = [train_bandit(function, seed, updates) for seed in range(seeds)]
    return curves


def train_bandit(function: Any, seed: int, updates: int) -> list[float]:
    """KL(π ‖ π*) before the first and after each update; function: from `topr_exp.loss`."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    reward = torch.rand(ACTIONS, generator=generator, dtype=torch.float64)
    logits_of_ref_and_mu = torch.randn(2, ACTIONS, generator=generator, dtype=torch.float64)
    ref_logp, mu_logp = logits_of_ref_and_mu.log_softmax(1)
    optimal_logp = (ref_logp + reward / BETA).log_softmax(0)
    actions = torch.multinomial(mu_logp.exp(), GROUPS * GROUP_SIZE, replacement=True, generator=generator)
    logits = ref_logp.clone().requires_grad_()
    distances = []
    for update in range(updates + 1):
        logp = logits.log_softmax(0)
        distance = kl_divergence(logp.detach(), optimal_logp).item()
        distances.append(max(distance, 0.0))
        if update == updates:
            break
        batch = batch_of_actions(actions, logp, mu_logp=mu_logp, ref_logp=ref_logp, reward=reward)
        if function.signals is not None:
            batch = dataclasses.replace(batch, signals=function.signals(batch))
        (gradient,) = torch.autograd.grad(function(batch).loss.mean(), logits)
        logits = (logits - LEARNING_RATE * gradient).detach().requires_grad_()
    return distances


def kl_divergence(logp: Tensor, logq: Tensor) -> Tensor:
    return (logp.exp() * (logp - logq)).sum()


def batch_of_actions(actions: Tensor, logp: Tensor, *, mu_logp: Tensor, ref_logp: Tensor, reward: Tensor) -> Batch:
    """The fixed samples as completions of one token. actions: [B]; the others [ACTIONS]."""
    rewards = reward[actions]
    group = actions.new_tensor(range(GROUPS)).repeat_interleave(GROUP_SIZE)
    column = actions[:, None]
    return Batch(
        logp=logp[column],
        mu_logp=mu_logp[column],
        mask=column >= 0,
        reward=rewards,
        positive=rewards > 0.5,
        group=group,
        group_mean=rewards.view(GROUPS, GROUP_SIZE).mean(1)[group],
        group_size=actions.new_full((len(actions),), GROUP_SIZE),
        ref_logp=ref_logp[column],
        vocab_kl=kl_divergence(logp, ref_logp).expand(len(actions), 1),
    )
