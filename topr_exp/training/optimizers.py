"""The optimizers, as libraries have them; Adafactor also for weights that are sharded by rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from topr_exp.config.optim import OptimConfig, Optimizer


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW, or Adafactor as the paper used it: transformers' with a fixed step size.

    torch.optim.Adafactor scales the step by the size of the weights; at the paper's learning rate of 5e-7 it moves
    them about 50 times less.
    """
    weights = list(parameters)
    if config.name is Optimizer.adamw:
        assert config.betas is not None
        first, second = config.betas
        return torch.optim.AdamW(weights, lr=config.lr, betas=(first, second), weight_decay=config.weight_decay)
    if isinstance(weights[0], DTensor):
        return ShardedAdafactor(weights, config.lr, config.weight_decay)
    from transformers.optimization import Adafactor

    adafactor: torch.optim.Optimizer = Adafactor(
        weights,
        lr=config.lr,
        scale_parameter=False,
        relative_step=False,
        warmup_init=False,
        weight_decay=config.weight_decay,
    )
    return adafactor


class ShardedAdafactor(torch.optim.Optimizer):
    """transformers' Adafactor (fixed step size, no scaling by the weights) of DTensors sharded by rows.

    The statistics are those of whole weights: means over the rows and roots of mean squares are summed over the
    processes. Of the state, `exp_avg_sq_row` and `exp_avg_sq` hold this process's rows, `exp_avg_sq_col` the mean over
    all rows. Tensors of three and more dimensions are stacks of matrices along the first, so only their root of the
    mean square needs a sum.
    """

    EPSILON, CLIP, DECAY = 1e-30, 1.0, -0.8  # transformers' defaults

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                update = self.direction(weight, weight.grad.to_local(), self.state[weight])
                rms = (self.sum_over_processes(update.square().sum(), weight) / weight.numel()).sqrt()
                update.mul_(group["lr"]).div_((rms / self.CLIP).clamp(min=1.0))
                local = weight.to_local()
                if group["weight_decay"] != 0:
                    local.mul_(1 - group["weight_decay"] * group["lr"])
                local.sub_(update)

    def direction(self, weight: DTensor, gradient: Tensor, state: dict[str, Any]) -> Tensor:
        """This process's rows of the gradient, divided by the root of their estimated mean square."""
        state["step"] = state.get("step", 0) + 1
        decay = 1.0 - math.pow(state["step"], self.DECAY)
        squares = gradient.square() + self.EPSILON

        def average(name: str, new: Tensor) -> Tensor:
            old = state.setdefault(name, torch.zeros_like(new))
            return old.mul_(decay).add_(new, alpha=1 - decay)

        if weight.ndim < 2:
            return average("exp_avg_sq", squares).rsqrt().mul_(gradient)
        row = average("exp_avg_sq_row", squares.mean(-1))
        if weight.ndim > 2:
            column, mean = average("exp_avg_sq_col", squares.mean(-2)), row.mean(-1, keepdim=True)
        else:
            column = average("exp_avg_sq_col", self.sum_over_processes(squares.sum(0), weight) / weight.shape[0])
            mean = self.sum_over_processes(row.sum(), weight) / weight.shape[0]
        return (row / mean).rsqrt().unsqueeze(-1).mul(column.unsqueeze(-2).rsqrt()).mul_(gradient)

    @staticmethod
    def sum_over_processes(part: Tensor, weight: DTensor) -> Tensor:
        """The sum over the processes among which the weight's rows are divided."""
        torch.distributed.all_reduce(part, group=weight.device_mesh.get_group())
        return part


def follows_rows(name: str, value: Tensor, weight: Tensor) -> bool:
    """Whether a tensor of an optimizer's state has an entry for each row of its weight, and is sharded as that is."""
    return value.ndim > 0 and not (name == "exp_avg_sq_col" and weight.ndim == 2)
