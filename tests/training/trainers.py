"""Trainers of a small random model, and examples for them."""

import numpy as np
import torch

from tests.conftest import make_graded, make_model
from topr_exp.algorithms.agro import AGRO
from topr_exp.algorithms.regressions import DPO
from topr_exp.algorithms.topr import Tapered
from topr_exp.composition.selection import select
from topr_exp.composition.training_set import build_training_set
from topr_exp.config.groups import ComposeConfig, OptimConfig, unit_of
from topr_exp.models.policy import Policy
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.logprobs import log_probabilities
from topr_exp.training.parallel import ProcessLayout
from topr_exp.training.trainer import Trainer

N = 4  # completions a problem
TOPR = Tapered("topr", 1.0, 1.0, 0.0, 1.0, "sequence", True, "reward")
PER_TOKEN = Tapered("per_token", 1.0, 1.0, 0.0, 1.0, "sequence", False, "group")  # reduction=tokens
AGRO_LOSS = AGRO("agro", 0.5, False)
DPO_LOSS = DPO("dpo", 0.1)


def optim(**changes):
    settings = {
        "name": "adamw",
        "lr": 1e-2,
        "grad_clip": 1.0,
        "batch_size": 8,
        "micro_batch_size": 8,
        "epochs": 1,
        "reduction": "sequences",
        "warmup_steps": 0,
        "schedule": "constant",
        "gradient_checkpointing": False,
    }
    return OptimConfig(**settings | changes)


def random_tokens(rng, lengths):
    """Tokens of a sequence whose length is between two numbers."""
    return rng.integers(3, 11, rng.integers(*lengths)).astype(np.int32)


def make_examples(policy, loss, problems=6, prompt=(1, 7), completion=(1, 9), correct=None):
    """Random completions of random prompts, of lengths between two numbers, a third of them called correct."""
    rng = np.random.default_rng(0)
    rows = range(problems * N)
    prompts = [random_tokens(rng, prompt) for _ in range(problems)]
    tokens = [random_tokens(rng, completion) for _ in rows]
    if correct is None:
        correct = np.arange(len(rows)) % 3 == 0
    problem_index = np.repeat(np.arange(problems), N)
    completions = make_graded(problem_index, correct, prompts=prompts, tokens=tokens)
    logp = log_probabilities(policy, completions, rows, 7)
    scored_completions = completions.with_columns({"mu_logp": logp, "ref_logp": logp})
    selection = select(scored_completions, ComposeConfig(), unit_of(loss.needs), seed=0, iteration=1)
    return build_training_set(scored_completions, selection, "pm1")


def reduction_of(loss):
    return "tokens" if loss is PER_TOKEN else "sequences"


def new_trainer(policy, loss, config, folder):
    return Trainer(policy, loss, None, config, folder, ProcessLayout(policy.model))


def policy_of(model, dtype=torch.float32):
    """A policy around a model, which computes in `dtype`."""
    return Policy(model, None, "test", dtype)


def new_policy(**shape):
    """A policy of a small random model."""
    return policy_of(make_model(11, **shape))


def make_trainer(folder, loss=TOPR, correct=None, **changes):
    """A trainer of a new policy, and examples for it."""
    policy = new_policy()
    trainer = new_trainer(policy, loss, optim(reduction=reduction_of(loss), **changes), folder)
    return trainer, make_examples(policy, loss, correct=correct)


def train(trainer, examples, updates):
    """Take updates up to this number of them."""
    size = trainer.config.batch_size
    order = examples.order(0, 1, 0)
    for step in range(trainer.step, updates):
        start = step * size % len(order)
        batch = order[start : start + size]
        trainer.update(GlobalBatch(examples, batch, mu_is_policy=step == 0), updates)


def weights(trainer):
    model = trainer.policy.model
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])
