"""The output layer: logits of hidden states, and scores of them whose logits are never all held.

Products near float32's accuracy on tensor cores: a float32 matrix is the sum of two in bfloat16, and of the four
products of such halves three are summed in float32; the product of the two low halves is 2^-16 of the whole.
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

# Logits at a time: 64 MiB in float32; on a GPU 192, since each chunk reads the whole output layer again.
LOGITS_AT_A_TIME = {"cpu": 1 << 24, "cuda": 3 << 24}

# A matrix as a sum: (matrix,), or the (high, low) bfloat16 halves of a float32 one.
Parts = tuple[Tensor, ...]


class Score(Protocol):
    """Maps logits of hidden states to scores of each."""

    def __call__(self, logits: Tensor, start: int, *, statistics: bool) -> tuple[Tensor, ...]:
        """Scores [n] of logits [n, V] of the states from `start` on: those with gradient, then `statistics` without."""


class OutputLayer:
    """The output layer of a model: maps hidden states [N, H] to logits [N, V] in float32 (float64 for a float64 model).

    With `float32` it is computed at that accuracy, on a GPU by products of bfloat16 parts; else in autocast's dtype
    where autocast is on.
    """

    def __init__(self, model: Any, *, float32: bool) -> None:
        layer = model.get_output_embeddings()
        self.weight: Tensor = layer.weight
        self.bias: Tensor | None = layer.bias
        device = self.weight.device.type
        self.logits_dtype = torch.promote_types(self.weight.dtype, torch.float32)
        self.compute_dtype = self.logits_dtype
        if not float32:
            autocast = torch.is_autocast_enabled(device)
            self.compute_dtype = torch.get_autocast_dtype(device) if autocast else self.weight.dtype
        self.takes_halves = self.compute_dtype is torch.float32 and has_tensor_cores(self.weight)
        self.weight_parts = self.parts(self.weight.detach())  # once for all chunks

    def parts(self, matrix: Tensor) -> Parts:
        """The matrix in the dtype of the layer's products, as a sum of bfloat16 matrices where it takes halves."""
        if not self.takes_halves:
            return (matrix.to(self.compute_dtype),)
        if matrix.dtype is torch.bfloat16:
            return (matrix,)
        return split(matrix)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, H], with gradient."""
        with torch.autocast(hidden.device.type, enabled=False):  # the weight may be in another precision
            if self.takes_halves:
                products: Tensor = SplitLinear.apply(hidden.float(), self.weight, self)
                return products if self.bias is None else products + self.bias.float()
            bias = self.bias if self.bias is None else self.bias.to(self.compute_dtype)
            weight = self.weight.to(self.compute_dtype)
            return functional.linear(hidden.to(self.compute_dtype), weight, bias).to(self.logits_dtype)

    def hidden_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of hidden states [N, H] from that of their logits [N, V]."""
        return product(self.parts(gradient), self.weight_parts)

    def add_weight_gradient(self, total: Tensor, gradient: Tensor, hidden: Tensor) -> None:
        """Add to `total` [V, H] the weight's gradient from those of logits [N, V] of hidden states [N, H]."""
        transposed = tuple(part.T for part in self.parts(gradient))
        add_product(total, transposed, self.parts(hidden))

    def scores(self, hidden: Tensor, score: Score) -> tuple[Tensor, ...]:
        """Scores [N] of hidden states [N, H], with gradient.

        Where logits are too many to hold, the backward pass computes them again; else autograd alone does the work.
        """
        chunk = max(1, LOGITS_AT_A_TIME[hidden.device.type] // len(self.weight))
        if torch.is_grad_enabled() and len(hidden) > chunk:
            columns: tuple[Tensor, ...] = ScoresByChunk.apply(hidden, self.weight, self.bias, self, score, chunk)
            return columns
        return scores_by_chunk(self, hidden, score, chunk)


def has_tensor_cores(weight: Tensor) -> bool:
    """True where products of bfloat16 matrices are many times as fast as those of float32 ones."""
    return weight.is_cuda


def scores_by_chunk(layer: OutputLayer, hidden: Tensor, score: Score, chunk: int) -> tuple[Tensor, ...]:
    """Scores [N] of hidden states [N, H], of which `chunk` rows' logits are held at a time."""
    chunks = []
    for start in range(0, len(hidden), chunk):
        logits = layer.logits(hidden[start : start + chunk])
        chunks.append(score(logits, start, statistics=True))
    return tuple(torch.cat(column) for column in zip(*chunks, strict=True))


class ScoresByChunk(torch.autograd.Function):
    """`scores_by_chunk` with a backward pass that sums the weight's gradient in place.

    By autograd every chunk would make a gradient of the whole weight [V, H]: 2.1 GB in float32 for Llama 3 8B.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: OutputLayer,
        score: Score,
        chunk: int,
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden)
        ctx.layer, ctx.score, ctx.chunk = layer, score, chunk
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.weight_dtype = weight.dtype
        return scores_by_chunk(layer, hidden, score, chunk)

    @staticmethod
    def backward(ctx: Any, *score_gradients: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        layer: OutputLayer = ctx.layer
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        hidden_gradients = []
        weight_gradient = bias_gradient = None
        if wants_weight:
            weight_gradient = torch.zeros(layer.weight.shape, dtype=layer.logits_dtype, device=hidden.device)
        if wants_bias:
            bias_gradient = torch.zeros(len(layer.weight), dtype=layer.logits_dtype, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), ctx.chunk):
                rows = slice(start, start + ctx.chunk)
                gradient = logits_gradient(layer, hidden[rows], ctx.score, start, [g[rows] for g in score_gradients])
                if wants_hidden:
                    hidden_gradients.append(layer.hidden_gradient(gradient))
                if weight_gradient is not None:
                    layer.add_weight_gradient(weight_gradient, gradient, hidden[rows])
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0)
        return (
            torch.cat(hidden_gradients).to(hidden.dtype) if wants_hidden else None,
            weight_gradient.to(ctx.weight_dtype) if weight_gradient is not None else None,
            bias_gradient.to(ctx.bias_dtype) if bias_gradient is not None else None,
            None,
            None,
            None,
        )


def logits_gradient(
    layer: OutputLayer, hidden: Tensor, score: Score, start: int, score_gradients: list[Tensor]
) -> Tensor:
    """The gradient [n, V] of logits that are computed again from hidden states [n, H]."""
    logits = layer.logits(hidden).requires_grad_()
    with torch.enable_grad():
        scores = score(logits, start, statistics=False)
    (gradient,) = torch.autograd.grad(scores, logits, score_gradients[: len(scores)])
    return gradient


class SplitLinear(torch.autograd.Function):
    """hidden @ weight.T from bfloat16 halves, forward and backward.

    Arguments: hidden [N, H] float32, weight [V, H] and its layer. Returns [N, V] float32. At logits up to 25 the mean
    error of log p is below 1e-4; one product in bfloat16 has over 300 times that.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, layer: OutputLayer) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.layer, ctx.weight_dtype = layer, weight.dtype
        transposed = tuple(part.T for part in layer.weight_parts)
        return product(layer.parts(hidden), transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (hidden,), (gradient,) = ctx.saved_tensors, gradients
        layer: OutputLayer = ctx.layer
        hidden_gradient = layer.hidden_gradient(gradient) if ctx.needs_input_grad[0] else None
        weight_gradient = None
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.zeros(layer.weight.shape, dtype=torch.float32, device=hidden.device)
            layer.add_weight_gradient(weight_gradient, gradient, hidden)
            weight_gradient = weight_gradient.to(ctx.weight_dtype)
        return hidden_gradient, weight_gradient, None


def split(matrix: Tensor) -> Parts:
    """A float32 matrix as the sum of two in bfloat16; what is left is below 2^-16 of each value."""
    high = matrix.to(torch.bfloat16)
    return high, (matrix - high).to(torch.bfloat16)


def product(left: Parts, right: Parts) -> Tensor:
    """left @ right, summed in float32 (float64 for float64)."""
    dtype = torch.promote_types(left[0].dtype, torch.float32)
    total = torch.zeros((len(left[0]), right[0].shape[1]), dtype=dtype, device=left[0].device)
    add_product(total, left, right)
    return total


def add_product(total: Tensor, left: Parts, right: Parts) -> None:
    """Add left @ right to `total` in place, without the product of two low halves; the smallest products first."""
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            if i + j < 2:
                add_matrix_product(total, left[i], right[j])


def add_matrix_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of two matrices of one dtype to a float32 matrix (float64 for float64) in place."""
    if left.is_cuda and left.dtype is not total.dtype:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))  # of bfloat16: exact products, as on tensor cores
