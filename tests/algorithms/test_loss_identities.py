"""Losses that must coincide: one family under other limits, PPO without clipping, AGRO and RLOO on-policy."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import Case, load, random_case

SEEDS = range(2)
INF = float("inf")
NEVER_CLIPS = {"eps_low": 1.0, "eps_high": INF}
PLAIN, SHIFTED, AT_MU = {}, {"baseline": 0.2}, {"on_policy": True}
Loss = tuple[str, dict[str, Any]]
SAME: list[tuple[dict[str, Any], Loss, Loss]] = [
    # Table 1 is one loss
    (SHIFTED, ("tis", {"b_pos": INF, "b_neg": INF}), ("is", {})),
    (SHIFTED, ("topr", {"a_neg": 1.0}), ("naive", {})),
    (SHIFTED, ("topr", {"b_neg": 0.0}), ("sft", {})),
    (SHIFTED, ("topr", {"a_pos": 0.0}), ("tis", {})),
    *[
        (SHIFTED, ("ppo", {**NEVER_CLIPS, **fields}), ("is", fields))
        for fields in ({"ratio": "sequence", "length_normalize": False}, {"ratio": "token", "length_normalize": True})
    ],
    (PLAIN, ("cispo", {"cap": INF}), ("grpo", NEVER_CLIPS)),
    (PLAIN, ("m2po", {"tau": INF}), ("grpo", NEVER_CLIPS)),
    # at step 0 all but sft agree
    *[
        (AT_MU, (name, {"ratio": ratio}), ("naive", {}))
        for name in ("topr", "tis", "is", "ppo")
        for ratio in ("sequence", "token")
    ],
    # without their own ingredient, or where it has no gradient, these are REINFORCE with the group mean
    *[
        (AT_MU, one, ("asymre", {"delta_v": 0.0}))
        for one in (("opmd", {"tau": 0.0}), ("opmd", {}), ("rec", {}), ("grpo", {"normalize_std": False}))
    ],
    (AT_MU, ("agro", {"beta": 0.3}), ("rloo", {"beta": 0.3})),
    # the only response of one token
    ({"one_token": True}, ("topr", {"ratio": "token"}), ("topr", {})),
    ({"one_token": True}, ("topr", {"ratio": "geometric"}), ("topr", {})),
    ({"one_token": True}, ("gspo", {"eps_low": 0.2, "eps_high": 0.2}), ("grpo", {})),
    ({"of_reference": True}, ("kl_pg", {}), ("rloo", {"beta": 0.0})),
]


def case_of(seed: int, *, one_token: bool = False, of_reference: bool = False, **changes: Any) -> Case:
    case = random_case(seed, **changes)
    if one_token:
        case.y[:] = 0
    if of_reference:
        case.ref[:] = case.logits
    return case


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("changes", "one", "other"), SAME, ids=str)
def test_two_losses_have_one_gradient(changes: dict[str, Any], one: Loss, other: Loss, seed: int) -> None:
    case = case_of(seed, **changes)
    gradients = [case.gradient(load(name, **fields)) for name, fields in (one, other)]
    np.testing.assert_allclose(*gradients, rtol=1e-12, atol=1e-14)


def test_agro_is_rloo_on_policy_only() -> None:
    case = random_case(0)
    gradients = [case.gradient(load(name, beta=0.3)) for name in ("agro", "rloo")]
    assert np.abs(gradients[0] - gradients[1]).max() > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_baseline_of_minus_one_drops_the_negatives(seed: int) -> None:
    """R = 0 for negatives at c = −1, so naive REINFORCE is SFT with twice the weight (TOPR, Section 3.1)."""
    naive = random_case(seed, baseline=-1.0).gradient(load("naive"))
    np.testing.assert_allclose(naive, 2 * random_case(seed).gradient(load("sft")), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["gspo", "cispo", "vespo", "m2po", "sapo", "oapl", "rloo"])
def test_at_ratio_1_it_is_reinforce_with_its_advantage(name: str, seed: int) -> None:
    """−A ∇logπ; of gspo and sapo divided by T, of oapl (A = r − V*) times 2β, of plain rloo n / (n − 1) times."""
    case = random_case(seed, on_policy=True, low=0.0)
    value = case.over_group(case.reward, lambda r: 0.5 * np.log(np.mean(np.exp(r / 0.5))))
    A = {"vespo": case.centered, "rloo": case.centered, "oapl": case.reward - value}.get(name, case.standard)
    factors = {"gspo": 1 / case.length, "sapo": 1 / case.length, "oapl": 2e-3, "rloo": case.n / (case.n - 1)}
    expected = -((factors.get(name, 1.0) * A)[:, None] * case.score).mean(0)
    found = case.gradient(load(name, **({"beta": 0.0} if name == "rloo" else {})))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def group_regressions(case: Case, beta: float, log_ratio: torch.Tensor) -> dict[str, tuple[torch.Tensor, float]]:
    """Losses of other papers over each group, as they print them, and their factors to AGRO's mean over responses."""
    reward, losses = torch.tensor(case.reward), {"tba": 0.0, "pairs": 0.0, "gvpo": 0.0}
    for group in np.unique(case.group):
        rows = torch.tensor(np.flatnonzero(case.group == group))
        r, d = reward[rows], log_ratio[rows]
        shifted = d - r / beta  # trajectory balance, log Z estimated by the group's mean
        losses["tba"] += (shifted.mean() - shifted).square().sum()
        gap = (r[:, None] - r) - beta * (d[:, None] - d)  # CoPG and REBEL: every pair
        losses["pairs"] += gap.triu(1).square().sum()
        losses["gvpo"] -= (((r - r.mean()) - beta * (d - d.mean())).detach() * d).sum()
    n, count = case.n, len(case.y)
    factors = {"tba": 2 / beta * (n - 1) / n, "pairs": 2 * beta * (n - 1), "gvpo": (n - 1) / n}
    return {name: (loss / count, factors[name]) for name, loss in losses.items()}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["tba", "pairs", "gvpo"])
def test_regressions_over_a_group_are_agro_up_to_a_factor(name: str, seed: int) -> None:
    """TBA, CoPG, REBEL and GVPO (docs/algorithms.md), with one reference."""
    case, beta = random_case(seed), 0.3
    batch = case.batch()
    loss, factor = group_regressions(case, beta, (batch.logp - batch.ref_logp).sum(1))[name]
    (grad,) = torch.autograd.grad(loss, case.theta)
    np.testing.assert_allclose(grad.numpy(), factor * case.gradient(load("agro", beta=beta)), rtol=1e-10, atol=1e-13)


def test_dro_with_the_groups_mean_as_value_is_opmd_up_to_a_factor() -> None:
    """½ (r − r̄ − τΔ)²: τ times OPMD's gradient."""
    case, tau = random_case(0), 0.3
    batch = case.batch()
    residual = torch.tensor(case.centered) - tau * (batch.logp - batch.mu_logp).sum(1)
    (grad,) = torch.autograd.grad(residual.square().mean() / 2, case.theta)
    np.testing.assert_allclose(grad.numpy(), tau * case.gradient(load("opmd", tau=tau)), rtol=1e-10, atol=1e-13)
