"""How far an update moves float32 weights whose steps are computed in bfloat16."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import make_model
from tests.training.test_trainer import TOPR, make_examples, new_trainer, optim, train, weights
from topr_exp.config.optim import Optimizer
from topr_exp.training.optimizers import make_optimizer


@pytest.mark.parametrize("optimizer", list(Optimizer), ids=lambda optimizer: optimizer.name)
def test_at_the_papers_learning_rate_a_step_in_bfloat16_moves_float32_weights_as_float64_says(
    tmp_path: Path, make_policy: Any, optimizer: Optimizer
) -> None:
    """A step of 5e-7 is far below the spacing of bfloat16 numbers: weights kept in that would not move."""
    changes = {"lr": 5e-7, "name": optimizer, "grad_clip": float("inf")}
    policy = make_policy(make_model(11))
    policy.compute = torch.bfloat16
    examples = make_examples(policy, TOPR)
    before = torch.cat([weight.detach().flatten() for weight in policy.model.parameters()]).clone()
    trainer = new_trainer(policy, TOPR, optim(**changes), tmp_path)
    step, gradients = trainer.optimizer.step, list[Tensor]()  # which a step may use up

    def keeping_step() -> None:
        gradients.extend(weight.grad.double() for weight in policy.model.parameters())
        step()

    trainer.optimizer.step = keeping_step
    trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    moved = weights(trainer).double() - before.double()

    exact = copy.deepcopy(policy.model).double()  # the same gradient, the optimizer's arithmetic in float64
    with torch.no_grad():
        start = 0
        for weight, gradient in zip(exact.parameters(), gradients, strict=True):
            weight.copy_(before[start : start + weight.numel()].view_as(weight))
            weight.grad = gradient
            start += weight.numel()
    make_optimizer(exact.parameters(), trainer.config).step()
    expected = torch.cat([weight.detach().flatten() for weight in exact.parameters()]) - before.double()
    assert float(expected.abs().median()) > 1e-8
    # A weight moves by multiples of its own spacing, so single ones are off by up to half of that.
    spacing = 2.0 ** (before.double().abs().log2().floor() - 23)
    assert ((moved - expected).abs() <= 0.51 * spacing + 1e-3 * expected.abs()).all()
    assert float((moved - expected).norm() / expected.norm()) < 0.1

    coarse = before.bfloat16()
    unmoved = (coarse + expected.bfloat16()) == coarse
    assert float(unmoved.double().mean()) > 0.95


def test_adafactor_moves_a_weight_by_about_the_learning_rate(tmp_path: Path, make_policy: Any) -> None:
    start = weights(train(tmp_path / "a", make_policy, TOPR, 0)[0])
    moved = weights(train(tmp_path / "b", make_policy, TOPR, 1, name=Optimizer.adafactor, lr=1e-4)[0])
    assert 0.3e-4 < float((moved - start).square().mean().sqrt()) < 3e-4
