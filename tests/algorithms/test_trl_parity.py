"""DPO, GRPO and RLOO, GSPO, CISPO, SAPO and VESPO against TRL's own code on the same log-probabilities.

TRL's loss (and, for the group losses, its scoring, where it forms advantages) is called unbound with a stand-in for
the trainer that holds the settings and answers with our log-probabilities where TRL would run a model. Whatever else
TRL reads is None there: an option that is off.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.algorithms.tabular_policies import MASK, Case, load, random_case, torch_token_logp, with_signals

trl = pytest.importorskip("trl", minversion="1.16", reason="TRL is a test extra")
TOLERANCE = {"rtol": 1e-6, "atol": 1e-9}
seeds = pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, 2))])


def assert_same(case: Case, ours: torch.Tensor, theirs: torch.Tensor, *, values: bool = True) -> None:
    """One gradient, which is not 0, and one value."""
    gradients = [torch.autograd.grad(loss, case.theta)[0] for loss in (ours, theirs)]
    assert gradients[0].abs().max() > 1e-5
    torch.testing.assert_close(*gradients, **TOLERANCE)
    if values:
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


class Stand(SimpleNamespace):
    """A trainer, or its settings."""

    def __getattr__(self, name: str) -> None:
        return None


class NoModel(torch.nn.Module):
    """Where TRL expects a model; it is never run."""

    is_gradient_checkpointing = False


def trainer_of(case: Case, **settings: Any) -> Stand:
    """What all trainers read of themselves."""
    same = lambda value, reduction="sum": value
    gather = {"gather": same, "gather_for_metrics": same, "reduce": same}
    sizes = {"per_device_train_batch_size": len(case.y), "steps_per_generation": 1, "gradient_accumulation_steps": 1}
    defaults = {
        "accelerator": SimpleNamespace(device=torch.device("cpu"), process_index=0, num_processes=1, **gather),
        "model": NoModel(),
        "args": Stand(**sizes, **TRL_DEFAULTS),
        "_metrics": {"train": defaultdict(list)},
    }
    return Stand(**{**defaults, **settings})


def logp_of(case: Case, logits: Any) -> torch.Tensor:
    return torch_token_logp(torch.as_tensor(logits))[torch.tensor(case.y)]


# --- DPO ------------------------------------------------------------------------------------------------------------


def trl_dpo(case: Case, beta: float) -> torch.Tensor:
    """TRL's loss, with the reference log-probabilities precomputed; one prompt token before each completion."""
    from trl import DPOTrainer

    mask = torch.tensor(MASK)[torch.tensor(case.y)].long()
    completion_mask = torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)
    logp, (chosen, rejected) = logp_of(case, case.theta), logp_of(case, case.mu).sum(1).chunk(2)
    zeros = torch.zeros_like(logp).detach()
    sigmoid = {"f_divergence_type": "reverse_kl", "loss_types": ["sigmoid"], "loss_weights": [1.0], "beta": beta}
    trainer = trainer_of(case, precompute_ref_logps=True, _total_train_tokens=0, _tp_size=1, **sigmoid)
    outputs = SimpleNamespace(log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    trainer.model.forward = lambda **_: outputs
    inputs = {
        "input_ids": torch.zeros_like(completion_mask), "attention_mask": torch.ones_like(completion_mask),
        "completion_mask": completion_mask, "ref_chosen_logps": chosen, "ref_rejected_logps": rejected,
    }  # fmt: skip
    return DPOTrainer._compute_loss(trainer, trainer.model, inputs, return_outputs=False)


@seeds
@pytest.mark.parametrize("beta", [0.1, 1.5])
def test_dpo(seed, beta):
    case = random_case(seed, groups=2, n=8)
    assert_same(case, load("dpo", beta=beta)(case.pairs()).loss.mean(), trl_dpo(case, beta))


# --- GRPO and RLOO --------------------------------------------------------------------------------------------------


def of_group(trl_class: Any, case: Case, generated: Any, changed: Any = None, **settings: Any) -> torch.Tensor:
    """A group trainer's loss on what it scored itself; `changed`: what is put into that."""

    def score(which: NoModel, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        logp = logp_of(case, case.theta if which is trainer.model else case.ref)
        return logp, torch.zeros_like(logp).detach(), None

    rewards = torch.tensor(case.reward)[:, None]
    trainer = trainer_of(
        case,
        ref_model=NoModel(),
        num_generations=case.n,
        reward_weights=torch.ones(1, dtype=torch.float64),
        reward_func_names=["reward"],
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _get_per_token_logps_and_entropies=score,
        _calculate_rewards=lambda *_: rewards,
        _generate=lambda _: generated,
        _logs=defaultdict(list) | {"rewards": defaultdict(list)},
        _pending_extra_logs={},
        _pending_metrics={},
        **{"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, **settings},
    )
    inputs = trl_class._generate_and_score_completions(trainer, [{"prompt": "?"} for _ in case.y])
    return trl_class._compute_loss(trainer, trainer.model, {**inputs, **(changed or {})})


def texts(case: Case) -> tuple[list[list[int]], list[list[int]], list[str]]:
    """Prompts and completions, one id a token, and their texts; nothing looks at the values."""
    return [[1]] * len(case.y), [[1] * int(n) for n in case.length], [""] * len(case.y)


def trl_grpo(case: Case, loss_type: str, scale_rewards: str, old_logp: Any, **settings: Any) -> torch.Tensor:
    from trl import GRPOTrainer

    prompts, completions, text = texts(case)
    changed = {} if old_logp is None else {"old_per_token_logps": old_logp}
    return of_group(
        GRPOTrainer,
        case,
        (prompts, completions, None, text, None, {}, None, None),
        {**changed, "num_items_in_batch": torch.tensor(case.length.sum())},
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
        num_iterations=1,
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards=scale_rewards,
        loss_type=loss_type,
        max_completion_length=1,  # dr_grpo divides by it: 1 leaves the sum over tokens
        top_entropy_quantile=1.0,
        current_gradient_accumulation_steps=1,
        **{"importance_sampling_level": "token", **settings},
    )


SEQUENCE = {"importance_sampling_level": "sequence"}
NARROW = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
GROUP_LOSSES = {  # our loss and its settings; TRL's loss type, scaling and settings
    "grpo": ("grpo", {"length_normalize": True}, "grpo", "group", {}),
    "grpo, without std": ("grpo", {"length_normalize": True, "normalize_std": False}, "grpo", "none", {}),
    "dr_grpo, with std": ("grpo", {}, "dr_grpo", "group", {}),
    "dr_grpo": ("grpo", {"normalize_std": False}, "dr_grpo", "none", {}),
    "gspo": ("gspo", {}, "grpo", "group", {**SEQUENCE, **NARROW}),
    "gspo, wide": ("gspo", {"eps_low": 0.2, "eps_high": 0.2}, "grpo", "group", SEQUENCE),
    "gspo, masked": ("gspo", {"off_policy_mask": 0.5}, "grpo", "group",
                     {**SEQUENCE, **NARROW, "off_policy_mask_threshold": 0.5}),
    "grpo, masked": ("grpo", {"off_policy_mask": 0.5, "length_normalize": True}, "grpo", "group",
                     {"off_policy_mask_threshold": 0.5}),
    "cispo": ("cispo", {}, "cispo", "group", {"epsilon_high": 5.0}),
    "cispo, capped": ("cispo", {"cap": 1.2}, "cispo", "group", {"epsilon_high": 1.2}),
    "sapo": ("sapo", {"tau_neg": 1.0625}, "sapo", "group", {}),
    "vespo": ("vespo", {}, "vespo", "none", {}),
    "dapo": ("grpo", {"eps_high": 0.28}, "dapo", "group", {"epsilon_high": 0.28}),
}  # fmt: skip
TRL_DEFAULTS = {
    "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.0625,  # TRL rounds it to float32, where this is exact
    "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
}  # fmt: skip


@seeds
@pytest.mark.parametrize(
    ("which", "on_policy"), [*((name, False) for name in GROUP_LOSSES), ("grpo", True), ("dr_grpo", True)]
)
def test_group_losses(seed, which, on_policy):
    """Loss and gradient away from ratio 1, where clipping acts; where TRL divides by the tokens of the batch, so does
    the trainer. At ratio 1 the gradient alone."""
    name, changes, loss_type, scaling, settings = GROUP_LOSSES[which]
    case = random_case(seed, on_policy=on_policy)
    batch = case.batch()
    total = load(name, **changes)(batch).loss
    mine = total.sum() / case.length.sum() if loss_type in ("cispo", "dapo", "vespo") else total.mean()
    theirs = trl_grpo(case, loss_type, scaling, None if on_policy else batch.mu_logp, **settings)
    assert_same(case, mine, theirs, values=not on_policy)


def trl_rloo(case: Case, beta: float) -> torch.Tensor:
    from trl import RLOOTrainer

    return of_group(RLOOTrainer, case, texts(case), beta=beta)


@seeds
@pytest.mark.parametrize("beta", [0.0, 0.05, 0.7])
def test_rloo_at_ratio_1(seed, beta):
    """Gradients only: TRL's loss is the ratio times the advantage, ours the log-probability times it."""
    case = random_case(seed, on_policy=True)
    loss = load("rloo", beta=beta)
    assert_same(case, loss(with_signals(loss, case.batch())).loss.mean(), trl_rloo(case, beta), values=False)
