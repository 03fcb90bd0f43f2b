"""Number of torch's operations that an update starts: a small model's update waits for them, since a GPU is faster.

    python benchmarks/operations.py [--case 135m] [--most 12]

A real update of `Trainer` on a CPU, in bfloat16 by autocast, with a model of random weights in the case's shape. Every
operation that reaches torch's dispatcher is counted, views too: they launch nothing on a GPU but take a core's time.
Sequences are shorter than in a real run; the number of an update's operations depends on the layout of its rows and on
the chunks of the output layer, not on lengths.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import Any

import measure
from torch.utils._python_dispatch import TorchDispatchMode
from training import CASES, Case, UpdateRunner

SHAPES = {
    "135m": dataclasses.replace(CASES["plain_135m"], prefix=4, prompt=(3, 9), completion=(4, 10)),
    "tiny_shape": Case(
        "small",
        prefix=4,
        prompt=(3, 9),
        completion=(4, 10),
        batch=8,
        micro=8,
        optimizer="adamw",
    ),
}


class OperationCounter(TorchDispatchMode):
    """Counts operations by name while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def count_operations(case: Case) -> dict[str, int]:
    """Count the operations of an update: all, by part (gradient, clipping, optimizer), and by name."""
    runner = UpdateRunner(case, 2 * case.batch)
    runner.update()  # the first one makes the optimizer's state
    trainer = runner.trainer
    counts_by_part: dict[str, int] = {}

    def counted(part: str, work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with OperationCounter() as counter:
                result = work(*args, **kwargs)
            counts_by_part[part] = counter.counts.total()
            return result

        return run

    trainer.accumulate_gradients = counted("gradient", trainer.accumulate_gradients)
    trainer.clip = counted("clip", trainer.clip)
    trainer.optimizer.step = counted("optimizer", trainer.optimizer.step)
    with OperationCounter() as counter:  # an inner mode sees an operation first and passes it on
        runner.update()
    counts = {"all": counter.counts.total(), **counts_by_part}
    for name, count in counter.counts.most_common():
        counts[f"  {name}"] = count
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="135m", choices=SHAPES)
    parser.add_argument("--most", type=int, default=12, help="names to print")
    options = parser.parse_args()
    counts = count_operations(SHAPES[options.case])
    for name, count in list(counts.items())[: 4 + options.most]:
        print(f"{name:<40} {count:>7,}")
    measure.write("operations", {"case": options.case, "counts": counts})


if __name__ == "__main__":
    main()
