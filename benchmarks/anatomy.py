"""Time of an update by kind of operation, and its distance from the hardware's limit.

    python benchmarks/anatomy.py [--cases short few_shot] [--threads 1] [--updates 10]

The update is that of benchmarks/training.py. Its operations are counted as they run (torch's FlopCounterMode: matrix
products and attention, forward and backward); the limit is the speed of a matrix product of the model's own largest
layer, in the same precision on the same threads. Seconds by kind are those that torch's profiler gives to operators
themselves; the remaining wall time of the update is Python and torch's dispatch.
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
from training import CASES, UpdateRunner, clock, timed

# Parts of operators' names by kind; a part of at most three letters is a whole name.
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
    """Measure, print and return the anatomy of a case's update."""
    case = CASES[name]
    runner = UpdateRunner(case, (updates + 3) * case.batch)
    for _ in range(3):
        runner.update()
    seconds = measure.median([timed(runner.update, runner.device) for _ in range(updates)])
    operations = count_operations(runner)
    limit = best_product_rate(runner)
    shares = time_shares(runner, updates)
    rate = operations / seconds
    cost = f"{1e3 * seconds:.0f} ms an update, {operations / 1e9:.2f} GFLOP, {rate / 1e9:.0f} GFLOP/s"
    print(f"{name}: {cost}; a product of the largest layer {limit / 1e9:.0f} GFLOP/s: {rate / limit:.0%} of the limit")
    for kind, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"  {share:5.1%}  {kind}")
    return {
        "case": name,
        "seconds": seconds,
        "operations": operations,
        "operations_per_second": rate,
        "limit_operations_per_second": limit,
        "of_the_limit": rate / limit,
        "shares": shares,
    }


def count_operations(runner: UpdateRunner) -> float:
    """Count the floating-point operations of one update."""
    with FlopCounterMode(display=False) as counter:
        runner.update()
    return float(counter.get_total_flops())


def best_product_rate(runner: UpdateRunner) -> float:
    """Measure operations a second of tokens x hidden times hidden x intermediate, the best of two seconds."""
    policy = runner.policy
    rows = int(runner.tokens / runner.batches)
    hidden, intermediate = policy.model.config.hidden_size, policy.model.config.intermediate_size
    states = torch.randn(rows, hidden, device=policy.device, dtype=policy.compute_dtype)
    weight = torch.randn(hidden, intermediate, device=policy.device, dtype=policy.compute_dtype)
    best_seconds = float("inf")
    end = time.monotonic() + 2
    while time.monotonic() < end:
        start_time = clock(policy.device)
        for _ in range(10):
            states @ weight
        seconds = (clock(policy.device) - start_time) / 10
        best_seconds = min(best_seconds, seconds)
    return 2 * rows * hidden * intermediate / best_seconds


def time_shares(runner: UpdateRunner, updates: int) -> dict[str, float]:
    """Measure the share of an update's wall time by kind of operator."""
    is_cuda = runner.device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    start_time = time.perf_counter()
    with profile(activities=activities) as profiler:
        for _ in range(updates):
            runner.update()
    wall_seconds = time.perf_counter() - start_time
    shares: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        if not event.key.startswith("aten::"):  # the kernels that operators start have separate rows
            continue
        microseconds = event.self_cpu_time_total
        if is_cuda:
            microseconds = event.self_device_time_total
        shares[kind_of(event.key)] += microseconds / 1e6 / wall_seconds
    shares["Python and dispatch"] = max(0.0, 1 - sum(shares.values()))
    return dict(shares)


def kind_of(operator: str) -> str:
    """Return the kind of an operator by its name, as in aten::addmm."""
    name = operator.removeprefix("aten::").strip("_")
    for kind, parts in KINDS.items():
        for part in parts:
            if name == part or (len(part) > 3 and part.strip("_") in name):
                return kind
    return "element by element"


if __name__ == "__main__":
    main()
