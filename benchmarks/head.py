"""Output layer and loss: ours in chunks, torch's `linear_cross_entropy`, and plain logits; time and memory.

    python benchmarks/head.py [--device cuda]

N hidden states of size H, vocabularies of growing size; the loss is Σ w_t log p(y_t) with a weight for every token, as
all our losses are once their coefficients are known. One forward and one backward pass, gradients for the hidden
states and for the weight. Bytes are the peak beyond inputs and their gradients' own size; the three take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import measure
import torch
from torch import Tensor
from torch.nn import functional

from topr_exp.training.output_layer import OutputLayer

VOCABULARIES = (413, 4_096, 32_768, 128_256)
Head = Callable[[Tensor, Tensor, Tensor], Tensor]  # hidden [N, H], weight [V, H], targets [N] to log p [N]


class Problem(NamedTuple):
    """Inputs of the output layer and coefficients of the loss."""

    hidden: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    targets: Tensor  # [N]
    coefficients: Tensor  # [N]

    def gradients(self, head: Head) -> list[Tensor]:
        """Compute the gradients of the hidden states and of the weight by a head."""
        log_p = head(self.hidden, self.weight, self.targets)
        loss = (self.coefficients * log_p).sum()
        return list(torch.autograd.grad(loss, [self.hidden, self.weight]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2, help="timed repetitions, after one that is not")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for vocabulary in VOCABULARIES:
        rows += compare(vocabulary, options)
    measure.write("head", {"options": vars(options), "rows": rows})


def compare(vocabulary: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure and print all heads on a vocabulary."""
    device = torch.device(options.device)
    problem = random_problem(vocabulary, options)
    heads: dict[str, Head] = {"plain": plain, "ours": chunked}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        heads["torch"] = of_torch
    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(options.repeats + 1):
        for name, head in heads.items():
            start_time = clock(device)
            problem.gradients(head)
            seconds[name].append(clock(device) - start_time)
    expected = problem.gradients(plain)
    gradient_bytes = 4 * (problem.hidden.numel() + problem.weight.numel())
    rows = []
    for name, head in heads.items():
        peak_bytes = measure.peak_memory(partial(problem.gradients, head), device)
        row = {
            "vocabulary": vocabulary,
            "head": name,
            "seconds": measure.median(seconds[name][1:]),
            "peak_bytes": peak_bytes - gradient_bytes,
            "error": largest_error(problem.gradients(head), expected),
        }
        rows.append(row)
        print_row(row)
    return rows


def print_row(row: dict[str, Any]) -> None:
    milliseconds = row["seconds"] * 1000
    mebibytes = max(row["peak_bytes"], 0) / 2**20
    cost = f"{milliseconds:>9,.1f} ms, {mebibytes:>8,.1f} MiB"
    error = f"largest error of a gradient {row['error']:.0e}"
    print(f"  vocabulary {row['vocabulary']:>7,} {row['head']:<6} {cost}, {error}", flush=True)


def random_problem(vocabulary: int, options: argparse.Namespace) -> Problem:
    tokens, size = options.tokens, options.hidden
    device = torch.device(options.device)
    torch.manual_seed(0)
    hidden = torch.randn(tokens, size, device=device)
    weight = torch.randn(vocabulary, size, device=device) / size**0.5
    targets = torch.randint(vocabulary, (tokens,), device=device)
    coefficients = torch.randn(tokens, device=device)
    hidden.requires_grad_()
    weight.requires_grad_()
    return Problem(hidden, weight, targets, coefficients)


def largest_error(gradients: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference relative to the largest expected number of each gradient."""
    errors = []
    for gradient, reference in zip(gradients, expected, strict=True):
        difference = (gradient - reference).abs().max()
        errors.append(float(difference / reference.abs().max()))
    return max(errors)


def clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = functional.linear(hidden, weight)
    return -functional.cross_entropy(logits, targets, reduction="none")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute as `score_tokens` does without entropy and KL."""
    head = SimpleNamespace(weight=weight, bias=None)
    model = SimpleNamespace(get_output_embeddings=lambda: head)

    def score(logits: Tensor, start: int, *, statistics: bool) -> tuple[Tensor, ...]:
        chunk_targets = targets[start : start + len(logits), None]
        log_p = logits.log_softmax(-1).gather(-1, chunk_targets)
        return (log_p[:, 0],)

    (logp,) = OutputLayer(model).scores(hidden, score)
    return logp


def of_torch(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return -functional.linear_cross_entropy(hidden, weight, targets, reduction="none", options=options)


if __name__ == "__main__":
    main()
