"""AdamW as torch has it; Adafactor, of whole weights and of weights that are sharded by rows; learning rates."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from topr_exp.config.groups import ADAMW_BETAS, OptimConfig
from topr_exp.types import TOPRError


def make_optimizer(parameters: Iterable[torch.nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """Make AdamW, or Adafactor as the paper used it: transformers' with a fixed step size.

    torch.optim.Adafactor scales the step by the weights' size: about 50 times smaller at the paper's rate of 5e-7.
    """
    weights = list(parameters)
    if config.name == "adafactor":
        return Adafactor(weights, config.lr)
    kernels = {"foreach": False}  # on a CPU: results of single operations, bit for bit
    if all(weight.is_cuda for weight in weights):
        # One kernel for many weights, in place. foreach, torch's default, would hold 4 more bytes a weight while it
        # steps.
        kernels = {"fused": True}
    return torch.optim.AdamW(weights, config.lr, ADAMW_BETAS, weight_decay=0.0, **kernels)


class Squares(NamedTuple):
    """Sums of squares of a weight's gradient; `sum_over_processes` makes those over all rows from each process's."""

    weight: Tensor
    gradient: Tensor  # this process's rows of it
    total: Tensor  # a number, over all rows
    by_row: Tensor | None  # [..., rows] of this process; None of vectors
    by_column: Tensor | None  # [..., columns] over all rows; None of vectors


class Adafactor(torch.optim.Optimizer):
    """transformers' Adafactor (fixed step size, no scaling by the weights), of DTensors sharded by rows too.

    An update is bound by memory, so it reads the gradient five times and writes it once. `clip` sums its squares by
    rows and by columns; clipping scales these sums, not the gradient. `step` multiplies it by the columns' factors in
    place (no operation takes both factors without writing a product) and adds it to the weight by the rows' factors.

    The statistics are those of whole weights. Sharded, two sums go over processes: of columns' squares and norms, then
    of root mean squares. Of the state, `exp_avg_sq_row` and `exp_avg_sq` hold this process's rows, `exp_avg_sq_col` the
    mean over all. Tensors of 3 or more dimensions are stacks of matrices: only norm and root mean square need a sum.
    """

    # transformers' defaults
    EPSILON = 1e-30
    LARGEST_RMS = 1.0
    DECAY = -0.8

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.squares: list[Squares] = []  # of the gradient that `clip` saw and `step` takes
        self.scale = torch.ones(())  # by which `clip` shrinks the gradient

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Free the gradients and what `clip` keeps of them."""
        self.squares = []
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def clip(self, limit: float) -> Tensor:
        """Have `step` take the gradient as if clipped to a norm of at most `limit`; returns its norm before that."""
        (group,) = self.param_groups
        weights = [weight for weight in group["params"] if weight.grad is not None]
        self.squares = list(map(sums_of_squares, weights))
        totals = []
        column_sums = []  # of matrices: a process has some of their rows, but whole matrices of a stack
        for squares in self.squares:
            totals.append(squares.total)
            if squares.by_column is not None and squares.weight.ndim == 2:
                column_sums.append(squares.by_column)
        self.sum_over_processes(totals + column_sums)
        norm = torch.stack(totals).sum().sqrt()
        self.scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
        return norm

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights by the gradient as `clip` took it, else as it is; the gradient is used up."""
        if not self.squares:
            self.clip(math.inf)
        row_factors = []
        totals = []
        for squares in self.squares:
            row_factor, column_factor = self.advance_state(squares)
            row_factors.append(row_factor)
            totals.append(scaled_squares(squares.gradient, row_factor, column_factor))
        self.sum_over_processes(totals)
        for squares, row_factor, total in zip(self.squares, row_factors, totals, strict=True):
            self.update_weight(squares, row_factor, total)
        self.squares = []

    def update_weight(self, squares: Squares, row_factor: Tensor, total: Tensor) -> None:
        """Move a weight against its gradient, into which `scaled_squares` multiplied the columns' factors.

        total: the sum of squares of the gradient by both factors, over all rows.
        """
        (group,) = self.param_groups
        weight = local_part(squares.weight.detach())
        unclipped_mean_square = total / squares.weight.numel()
        rms = self.scale * unclipped_mean_square.sqrt()
        excess = (rms / self.LARGEST_RMS).clamp(min=1.0)
        step_size = group["lr"] * self.scale / excess
        row_steps = -step_size * row_factor
        weight.addcmul_(squares.gradient, row_steps)

    def advance_state(self, squares: Squares) -> tuple[Tensor, Tensor | None]:
        """Advance a weight's running means by a step; returns the factors that make its gradient the update.

        They are of rows, [..., rows, 1] of this process, and of columns, [..., 1, columns]; of a vector one for each
        number, and None.
        """
        state = self.state[squares.weight]
        state["step"] = state.get("step", 0) + 1
        decay = 1.0 - math.pow(state["step"], self.DECAY)

        def update_running_mean(name: str, total: Tensor, count: int) -> Tensor:
            """Update the running mean `name` by the mean of `count` squares that add up to `total`; returns it."""
            mean_square = self.scale.square() * total / count + self.EPSILON  # of the clipped gradient
            if name not in state:
                state[name] = torch.zeros_like(mean_square)
            running_mean = state[name]
            return running_mean.mul_(decay).add_(mean_square, alpha=1 - decay)

        if squares.by_row is None or squares.by_column is None:
            entry_means = update_running_mean("exp_avg_sq", squares.gradient.square(), 1)
            return entry_means.rsqrt(), None
        row_count, column_count = squares.weight.shape[-2:]
        row_means = update_running_mean("exp_avg_sq_row", squares.by_row, column_count)
        column_means = update_running_mean("exp_avg_sq_col", squares.by_column, row_count)
        matrix_mean = column_means.mean(-1, keepdim=True)  # as of the rows, some of which other processes have
        row_factor = (row_means / matrix_mean).rsqrt()
        column_factor = column_means.rsqrt()
        return row_factor.unsqueeze(-1), column_factor.unsqueeze(-2)

    def sum_over_processes(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the processes that share the weights' rows, in one message."""
        weight = self.squares[0].weight  # all weights are sharded alike
        if not isinstance(weight, DTensor):
            return
        row_dimension = sharding_dimension(weight)
        process_group = weight.device_mesh.get_group(row_dimension)
        message = torch.cat([tensor.flatten() for tensor in tensors])
        torch.distributed.all_reduce(message, group=process_group)
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, message.split(sizes), strict=True):
            tensor.copy_(total.view(tensor.shape))


def sums_of_squares(weight: Tensor) -> Squares:
    """Sum the squares of one weight's gradient, over this process's rows alone."""
    assert weight.grad is not None
    gradient = local_part(weight.grad)
    if weight.ndim < 2:
        norm = torch.linalg.vector_norm(gradient)
        return Squares(weight, gradient, norm.square(), by_row=None, by_column=None)
    row_norms = torch.linalg.vector_norm(gradient, dim=-1)
    column_norms = torch.linalg.vector_norm(gradient, dim=-2)
    by_row = row_norms.square()
    by_column = column_norms.square()
    return Squares(weight, gradient, by_row.sum(), by_row, by_column)


def scaled_squares(gradient: Tensor, row_factor: Tensor, column_factor: Tensor | None) -> Tensor:
    """Sum the squares of a gradient times its factors, over this process's rows.

    Changes a matrix in place: it is the gradient by the columns' factors from here on.
    """
    if column_factor is None:
        return (gradient * row_factor).square().sum()
    gradient.mul_(column_factor)
    norms = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    scaled_norms = norms * row_factor
    return scaled_norms.square().sum()


def local_part(value: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    if isinstance(value, DTensor):
        return value.to_local()
    return value


def sharding_dimension(weight: DTensor) -> int:
    """Return the dimension of the device mesh along which the weight's rows are divided."""
    is_sharded = [isinstance(placement, Shard) for placement in weight.placements]
    return is_sharded.index(True)


def follows_rows(name: str, dimensions: int, weight: Tensor) -> bool:
    """True if a state has an entry for each row of its weight, and so is sharded as the weight is.

    name: the state's key; dimensions: how many it has, 0 of a step count. Adafactor's means by a matrix's columns are
    the same in all processes.
    """
    return dimensions > 0 and not (name == "exp_avg_sq_col" and weight.ndim == 2)


def learning_rate(config: OptimConfig, step: int, update_count: int) -> float:
    """Return the learning rate of the update after `step` others, of `update_count` in the iteration.

    lr · min(1, (step + 1) / (W + 1)) · f(x) with W = optim.warmup_steps and x the remaining share of the updates after
    the warm-up: f = 1 (constant), x (linear) or (1 − cos πx) / 2 (cosine). No update has the rate 0.
    """
    warmup = config.warmup_steps
    if update_count <= warmup:
        raise TOPRError(f"optim.warmup_steps must be below {update_count}, the updates of an iteration; got {warmup}")
    warmup_factor = min(1.0, (step + 1) / (warmup + 1))
    remaining = min(1.0, (update_count - step) / (update_count - warmup))
    factors = {
        "constant": 1.0,
        "linear": remaining,
        "cosine": (1 - math.cos(math.pi * remaining)) / 2,
    }
    return config.lr * warmup_factor * factors[config.schedule]
