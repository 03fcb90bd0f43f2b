"""How many operations of torch an update starts: what a small model's update waits for, since a GPU is faster.

    python benchmarks/operations.py [--case 135m] [--most 12]

A real update of `Trainer` on a CPU, in bfloat16 by autocast, with a model of random weights in the case's shape. Every
operation that reaches torch's dispatcher is counted, views too: they launch nothing on a GPU but take a core's time.
Sequences are shorter than in a real run; how many operations an update has depends on the layout of its rows and on
the chunks of the output layer, not on lengths.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import Any

import measure
from torch.utils._python_dispatch import TorchDispatchMode
from training import CASES, Case, Ours

SHAPES = {
    "135m": dataclasses.replace(CASES["plain_135m"], prefix=4, prompt=(3, 9), completion=(4, 10)),
    "tiny_shape": Case("small", 4, (3, 9), (4, 10), 8, 8, "adamw", "none"),
}


class Operations(TorchDispatchMode):
    """Counts operations by name while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def count(case: Case) -> dict[str, int]:
    """Operations by part: of the gradient, of clipping and of the optimizer; and of the whole by name."""
    ours = Ours(case, 2 * case.batch)
    ours.update()  # the first one makes the optimizer's state
    trainer = ours.trainer
    parts: dict[str, Counter[str]] = {}

    def counted(name: str, work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with Operations() as operations:
                answer = work(*args, **kwargs)
            parts[name] = operations.count
            return answer

        return run

    trainer.accumulate_gradients = counted("gradient", trainer.accumulate_gradients)
    trainer.clip = counted("clip", trainer.clip)
    trainer.optimizer.step = counted("optimizer", trainer.optimizer.step)
    with Operations() as others:
        ours.update()
    parts["others"] = others.count  # an inner mode sees an operation first and passes it on
    total = parts.pop("others")
    by_part = {name: part.total() for name, part in parts.items()}
    return {"all": total.total(), **by_part, **{f"  {name}": times for name, times in total.most_common()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="135m", choices=SHAPES)
    parser.add_argument("--most", type=int, default=12, help="print so many names")
    options = parser.parse_args()
    counts = count(SHAPES[options.case])
    for name, times in list(counts.items())[: 4 + options.most]:
        print(f"{name:<40} {times:>7,}")
    measure.write("operations", {"case": options.case, "counts": counts})


if __name__ == "__main__":
    main()
