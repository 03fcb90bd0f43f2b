"""Output layer of a model: logits of hidden states, and scores of them without holding all logits."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from topr_exp.training import split_product
from topr_exp.training.split_product import Parts, transpose

Scores = tuple[Tensor, ...]  # [n, ...] each, in the order of the function that gives them

# Logits at a time: 64 MiB in float32; on a GPU 192, since each chunk reads the whole output layer again.
LOGITS_AT_A_TIME = {"cpu": 1 << 24, "cuda": 3 << 24}


class ScoreFunction(Protocol):
    """Maps logits of hidden states to scores of each."""

    def __call__(self, logits: Tensor, start: int, *, statistics: bool) -> Scores:
        """Score logits [n, V] of the states from `start` on.

        statistics: False leaves out the scores that have no gradient, which come last.
        """


class OutputLayer:
    """The output layer of a model: maps hidden states [N, H] to logits [N, V] in float32 (float64 for a float64 model).

    It is computed at that accuracy under autocast too, by products of bfloat16 halves if `by_halves` (None: on a GPU
    that is fast at them).
    """

    def __init__(self, model: Any, *, by_halves: bool | None = None) -> None:
        layer = model.get_output_embeddings()
        self.weight: Tensor = layer.weight
        self.bias: Tensor | None = layer.bias
        self.dtype = torch.promote_types(self.weight.dtype, torch.float32)
        if by_halves is None:
            by_halves = split_product.has_tensor_cores(self.weight)
        self.takes_halves = by_halves and self.dtype is torch.float32
        self.weight_parts = self.parts(self.weight.detach())  # once for all chunks

    def parts(self, matrix: Tensor) -> Parts:
        """Return the matrix in the layer's dtype, as a sum of bfloat16 matrices if it takes halves."""
        if not self.takes_halves:
            return (matrix.to(self.dtype),)
        if matrix.dtype is torch.bfloat16:
            return (matrix,)
        return split_product.split(matrix)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [N, V] of hidden states [N, H], with gradient."""
        with torch.autocast(hidden.device.type, enabled=False):  # the weight may be in another precision
            if self.takes_halves:
                products = SplitLinear.apply(hidden.float(), self.weight, self)
                if self.bias is None:
                    return products
                return products + self.bias.float()
            weight = self.weight.to(self.dtype)
            bias = self.bias
            if bias is not None:
                bias = bias.to(self.dtype)
            return functional.linear(hidden.to(self.dtype), weight, bias)

    def hidden_gradient(self, gradient: Tensor) -> Tensor:
        """Compute the gradient of hidden states [N, H] from that of their logits [N, V]."""
        return split_product.product(self.parts(gradient), self.weight_parts)

    def add_weight_gradient(self, total: Tensor, gradient: Tensor, hidden: Tensor) -> None:
        """Add to `total` [V, H] the weight's gradient from that of logits [N, V] of hidden states [N, H]."""
        gradient_parts = transpose(self.parts(gradient))
        split_product.add_product(total, gradient_parts, self.parts(hidden))

    def scores(self, hidden: Tensor, score: ScoreFunction) -> Scores:
        """Compute scores [N, ...] of hidden states [N, H], with gradient.

        Where logits are too many to hold, the backward pass computes them again; else autograd alone does the work.
        """
        vocabulary = len(self.weight)
        logits_at_a_time = LOGITS_AT_A_TIME[hidden.device.type]
        chunk_size = max(1, logits_at_a_time // vocabulary)
        scoring = ChunkedScoring(self, score, chunk_size)
        if torch.is_grad_enabled() and len(hidden) > chunk_size:
            return ScoresByChunk.apply(hidden, self.weight, self.bias, scoring)
        return scoring.forward(hidden)


@dataclass(frozen=True)
class ChunkedScoring:
    """Scores of hidden states, of which `chunk_size` rows' logits are held at a time."""

    layer: OutputLayer
    score: ScoreFunction
    chunk_size: int

    def forward(self, hidden: Tensor) -> Scores:
        """Compute scores [N, ...] of hidden states [N, H]."""
        scores_by_chunk = []
        for start in range(0, len(hidden), self.chunk_size):
            hidden_chunk = hidden[start : start + self.chunk_size]
            logits = self.layer.logits(hidden_chunk)
            scores = self.score(logits, start, statistics=True)
            scores_by_chunk.append(scores)
        chunks_by_score = zip(*scores_by_chunk, strict=True)
        return tuple(map(torch.cat, chunks_by_score))

    def logits_gradient(self, hidden: Tensor, start: int, score_gradients: list[Tensor]) -> Tensor:
        """Compute the gradient [n, V] of the logits of hidden states [n, H], the states from `start` on.

        score_gradients: of all scores, of which statistics, the last, pass nothing on.
        """
        logits = self.layer.logits(hidden).requires_grad_()
        with torch.enable_grad():
            scores = self.score(logits, start, statistics=False)
        gradients_without_statistics = score_gradients[: len(scores)]
        (gradient,) = torch.autograd.grad(scores, logits, gradients_without_statistics)
        return gradient


class ScoresByChunk(torch.autograd.Function):
    """`ChunkedScoring.forward` with a backward pass that sums the weight's gradient in place.

    By autograd every chunk would make a gradient of the whole weight [V, H]: 2.1 GB in float32 for Llama 3 8B.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, scoring: ChunkedScoring) -> Scores:
        ctx.save_for_backward(hidden)
        ctx.scoring = scoring
        return scoring.forward(hidden)

    @staticmethod
    def backward(ctx: Any, *score_gradients: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        scoring: ChunkedScoring = ctx.scoring
        layer = scoring.layer
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        # Sums in the logits' precision; autograd rounds them to the dtypes of the inputs.
        hidden_gradient = weight_gradient = bias_gradient = None
        if wants_hidden:
            hidden_gradient = torch.empty_like(hidden, dtype=layer.dtype)
        if wants_weight:
            weight_gradient = torch.zeros_like(layer.weight, dtype=layer.dtype)
        if wants_bias:
            bias_gradient = hidden.new_zeros(len(layer.weight), dtype=layer.dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), scoring.chunk_size):
                rows = slice(start, start + scoring.chunk_size)
                gradients_of_rows = [gradient[rows] for gradient in score_gradients]
                logits_gradient = scoring.logits_gradient(hidden[rows], start, gradients_of_rows)
                if hidden_gradient is not None:
                    hidden_gradient[rows] = layer.hidden_gradient(logits_gradient)
                if weight_gradient is not None:
                    layer.add_weight_gradient(weight_gradient, logits_gradient, hidden[rows])
                if bias_gradient is not None:
                    bias_gradient += logits_gradient.sum(0)
        return hidden_gradient, weight_gradient, bias_gradient, None


class SplitLinear(torch.autograd.Function):
    """hidden @ weight.T from bfloat16 halves, forward and backward.

    Arguments: hidden [N, H] float32, weight [V, H] and its layer. Returns [N, V] float32. At logits up to 25 the mean
    error of log p is below 1e-4; one product in bfloat16 has over 300 times that.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, layer: OutputLayer) -> Tensor:
        ctx.save_for_backward(hidden)
        ctx.layer = layer
        return split_product.product(layer.parts(hidden), transpose(layer.weight_parts))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (hidden,) = ctx.saved_tensors
        layer: OutputLayer = ctx.layer
        wants_hidden, wants_weight, _ = ctx.needs_input_grad
        hidden_gradient = weight_gradient = None
        if wants_hidden:
            hidden_gradient = layer.hidden_gradient(gradient)
        if wants_weight:
            weight_gradient = torch.zeros_like(layer.weight, dtype=torch.float32)
            layer.add_weight_gradient(weight_gradient, gradient, hidden)
        return hidden_gradient, weight_gradient, None
