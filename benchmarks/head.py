"""The output layer and its loss: ours in chunks, torch's `linear_cross_entropy`, and plain logits; time and memory.

    python benchmarks/head.py [--device cuda]

N hidden states of size H, vocabularies of growing size; the loss is Σ w_t log p(y_t) with a weight for every token, as
all our losses are once their coefficients are known. One forward and one backward pass, gradients for the hidden
states and for the weight. Bytes are the peak beyond inputs and their gradients' own size; the three take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import measure
import torch
from torch import Tensor
from torch.nn import functional

from topr_exp.training.output_layer import OutputLayer

VOCABULARIES = (413, 4_096, 32_768, 128_256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2, help="timed repetitions, after one that is not")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [line for vocabulary in VOCABULARIES for line in compare(vocabulary, options)]
    measure.write("head", {"options": vars(options), "rows": rows})


def compare(vocabulary: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    device = torch.device(options.device)
    torch.manual_seed(0)
    hidden = torch.randn(options.tokens, options.hidden, device=device)
    weight = torch.randn(vocabulary, options.hidden, device=device) / options.hidden**0.5
    targets = torch.randint(vocabulary, (options.tokens,), device=device)
    coefficients = torch.randn(options.tokens, device=device)
    heads: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"plain": plain, "ours": chunked}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        heads["torch"] = torchs
    inputs = [hidden.requires_grad_(), weight.requires_grad_()]

    def step(head: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad((coefficients * head(hidden, weight, targets)).sum(), inputs))

    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(options.repeats + 1):
        for name, head in heads.items():
            began = clock(device)
            step(head)
            seconds[name].append(clock(device) - began)
    expected = step(plain)
    own = sum(tensor.numel() * 4 for tensor in inputs)
    lines = []
    for name, head in heads.items():
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(step(head), expected, strict=True))
        peak = measure.peak_memory(lambda head=head: step(head), device) - own
        line = {"vocabulary": vocabulary, "head": name, "seconds": measure.median(seconds[name][1:]),
                "peak_bytes": peak, "error": error}  # fmt: skip
        lines.append(line)
        print(f"  vocabulary {vocabulary:>7,} {name:<6} {line['seconds'] * 1000:>9,.1f} ms, "
              f"{max(peak, 0) / 2**20:>8,.1f} MiB, largest error of a gradient {error:.0e}", flush=True)  # fmt: skip
    return lines


def clock(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return -functional.cross_entropy(functional.linear(hidden, weight), targets, reduction="none")


def chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """What `score_tokens` does without entropy and KL."""
    layer = OutputLayer(SimpleNamespace(get_output_embeddings=lambda: Layer(weight, None)), float32=True)

    def score(logits: Tensor, start: int, *, statistics: bool) -> tuple[Tensor, ...]:
        wanted = targets[start : start + len(logits), None]
        return (logits.log_softmax(-1).gather(-1, wanted)[:, 0],)

    (logp,) = layer.scores(hidden, score)
    return logp


class Layer(NamedTuple):
    """An output layer as a model has it."""

    weight: Tensor
    bias: Tensor | None


def torchs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return -functional.linear_cross_entropy(hidden, weight, targets, reduction="none", options=options)


if __name__ == "__main__":
    main()
