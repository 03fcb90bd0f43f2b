"""Matrix products near float32's accuracy on tensor cores: three products of bfloat16 halves, summed in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Halves = tuple[Tensor, Tensor]


def split(matrix: Tensor) -> Halves:
    """A float32 matrix as the sum of two in bfloat16; what is left is below 2^-16 of each value."""
    high = matrix.to(torch.bfloat16)
    return high, (matrix - high).to(torch.bfloat16)


def product(left: Halves, right: Halves) -> Tensor:
    """left @ right in float32, without the product of the two low halves (2^-16 of the whole)."""
    return multiply(left[0], right[0]) + (multiply(left[0], right[1]) + multiply(left[1], right[0]))


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """The product of two bfloat16 matrices with sums and result in float32."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # exact products, as on tensor cores


class SplitLinear(torch.autograd.Function):
    """hidden @ weight.T from bfloat16 halves, forward and backward.

    Arguments: hidden [N, H] and weight [V, H] float32; `split(weight)`, made once for many calls. Returns [N, V]
    float32. At logits up to 25 the mean error of log p is below 1e-4; one product in bfloat16 has over 300 times that.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, high: Tensor, low: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, high, low)
        return product(split(hidden), (high.T, low.T))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, high, low = ctx.saved_tensors
        grad = split(grads[0])
        to_hidden = product(grad, (high, low)) if ctx.needs_input_grad[0] else None
        to_weight = product((grad[0].T, grad[1].T), split(hidden)) if ctx.needs_input_grad[1] else None
        return to_hidden, to_weight, None, None
