"""Where the time of an update goes, and how far it is from what the hardware can do.

    python benchmarks/anatomy.py [--cases short few_shot] [--threads 1] [--updates 10]

The update is that of benchmarks/training.py. Its operations are counted as they run (torch's FlopCounterMode: matrix
products and attention, forward and backward); the limit is the speed of a matrix product of the model's own largest
layer, in the same precision on the same threads. Seconds by kind are those that torch's profiler gives to operators
themselves; what is left of the update's wall time is Python and torch's dispatch.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import measure
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from training import CASES, Ours, clock, timed

KINDS = {
    "matrix products": ("mm", "bmm", "addmm", "matmul", "linear", "baddbmm"),
    "attention": ("attention", "_softmax"),
    "optimizer": ("_foreach", "adam", "sqrt", "addcdiv", "addcmul", "lerp"),
    "copies and gathers": ("copy", "cat", "index", "gather", "embedding", "clone", "fill", "zero", "scatter", "stack"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["short", "few_shot"])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.cases:
        measure.write(f"anatomy-{name}", anatomy(name, options.updates))


def anatomy(name: str, updates: int) -> dict[str, Any]:
    case = CASES[name]
    ours = Ours(case, (updates + 3) * case.batch)
    for _ in range(3):
        ours.update()
    seconds = [timed(ours.update, ours.device) for _ in range(updates)]
    whole = measure.median(seconds)
    operations = counted(ours)
    limit = best_product(ours)
    kinds = by_kind(ours, updates)
    reached = operations / whole
    print(f"{name}: {1e3 * whole:.0f} ms an update, {operations / 1e9:.2f} GFLOP, {reached / 1e9:.0f} GFLOP/s; "
          f"a product of the largest layer {limit / 1e9:.0f} GFLOP/s: {reached / limit:.0%} of the limit")  # fmt: skip
    for kind, share in sorted(kinds.items(), key=lambda item: -item[1]):
        print(f"  {share:5.1%}  {kind}")
    return {
        "case": name,
        "seconds": whole,
        "operations": operations,
        "operations_per_second": reached,
        "limit_operations_per_second": limit,
        "of_the_limit": reached / limit,
        "shares": kinds,
    }


def counted(ours: Ours) -> float:
    """Floating-point operations of one update."""
    with FlopCounterMode(display=False) as counter:
        ours.update()
    return float(counter.get_total_flops())


def best_product(ours: Ours) -> float:
    """Operations a second of tokens x hidden times hidden x intermediate, the best of many."""
    config, policy = ours.policy.model.config, ours.policy
    rows = int(ours.tokens / ours.batches)
    a = torch.randn(rows, config.hidden_size, device=policy.device, dtype=policy.compute_dtype)
    b = torch.randn(config.hidden_size, config.intermediate_size, device=policy.device, dtype=policy.compute_dtype)
    best, end = float("inf"), time.monotonic() + 2
    while time.monotonic() < end:
        began = clock(policy.device)
        for _ in range(10):
            a @ b
        best = min(best, (clock(policy.device) - began) / 10)
    return 2 * rows * a.shape[1] * b.shape[1] / best


def by_kind(ours: Ours, updates: int) -> dict[str, float]:
    """The share of an update's wall time by kind of operator."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if ours.device.type == "cuda" else [])
    began = time.perf_counter()
    with profile(activities=activities) as found:
        for _ in range(updates):
            ours.update()
    wall = time.perf_counter() - began
    shares: dict[str, float] = defaultdict(float)
    for event in found.key_averages():
        own = event.self_device_time_total if ours.device.type == "cuda" else event.self_cpu_time_total
        if event.key.startswith("aten::"):  # the kernels that these start have rows of their own
            shares[kind_of(event.key)] += own / 1e6 / wall
    shares["Python and dispatch"] = max(0.0, 1 - sum(shares.values()))
    return dict(shares)


def kind_of(name: str) -> str:
    """The kind of an operator by its name, as in aten::addmm."""
    name = name.removeprefix("aten::").strip("_")
    for kind, parts in KINDS.items():
        if any(name == part or (len(part) > 3 and part.strip("_") in name) for part in parts):
            return kind
    return "element by element"


if __name__ == "__main__":
    main()
