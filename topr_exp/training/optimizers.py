"""The optimizers, as libraries have them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from topr_exp.training.config import OptimConfig, Optimizer


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or Adafactor as the paper used it: transformers' with a fixed step size.

    torch.optim.Adafactor scales the step by the size of the weights; at the paper's learning rate of 5e-7 it moves
    them about 50 times less.
    """
    if config.name is Optimizer.adamw:
        assert config.betas is not None
        first, second = config.betas
        return torch.optim.AdamW(parameters, lr=config.lr, betas=(first, second), weight_decay=config.weight_decay)
    from transformers.optimization import Adafactor

    adafactor: torch.optim.Optimizer = Adafactor(
        parameters,
        lr=config.lr,
        scale_parameter=False,
        relative_step=False,
        warmup_init=False,
        weight_decay=config.weight_decay,
    )
    return adafactor
