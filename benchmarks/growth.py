"""Growth of an update's time and memory with the length of sequences, the batch and the shared prefix.

    python benchmarks/growth.py [--threads 1] [--repeats 3]

Updates of benchmarks/training.py with the tiny model, one quantity varied at a time: completions of L tokens (batch 16,
prompts of 40), batches of B (prompts of 40, completions of 32), S tokens that all prompts begin with (batch 16, all
else as before). `grows` is the exponent between neighbours: 1 is in proportion, 0 is constant.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import measure
import torch
from training import Case, UpdateRunner, timed


def case(*, prefix: int = 0, completion: int = 32, batch: int = 16) -> Case:
    return Case(
        "tiny",
        prefix=prefix,
        prompt=(40, 40),
        completion=(completion, completion),
        batch=batch,
        micro=batch,
        optimizer="adamw",
    )


CURVES = {
    "completion tokens": {size: case(completion=size) for size in (32, 64, 128, 256, 512, 1024)},
    "batch": {size: case(batch=size) for size in (8, 16, 32, 64, 128, 256)},
    "shared tokens": {size: case(prefix=size) for size in (100, 200, 400, 800, 1600)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="timed updates, after one that is not")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    curves = {}
    for name, cases in CURVES.items():
        curves[name] = curve(name, cases, options.repeats)
    measure.write("growth", curves)


def curve(name: str, cases: dict[int, Case], repeats: int) -> list[dict[str, Any]]:
    """Measure and print seconds and memory of an update by the values of a quantity."""
    print(f"{name:>18} {'seconds':>9} {'grows':>6} {'MiB':>7} {'grows':>6}")
    rows: list[dict[str, Any]] = []
    for size, case in cases.items():
        runner = UpdateRunner(case, 2 * case.batch)
        runner.update()
        seconds = measure.median([timed(runner.update, runner.device) for _ in range(repeats)])
        peak_bytes = measure.peak_memory(runner.update, runner.device)
        rows.append({"size": size, "seconds": seconds, "bytes": peak_bytes})
        time_cells = f"{seconds:9.3f} {exponent(rows, 'seconds')}"
        memory_cells = f"{peak_bytes / 2**20:7.0f} {exponent(rows, 'bytes')}"
        print(f"{size:18} {time_cells} {memory_cells}", flush=True)
    return rows


def exponent(rows: list[dict[str, Any]], key: str) -> str:
    """Format the exponent of growth between the last two rows; blank for the first row."""
    if len(rows) == 1:
        return " " * 6
    smaller, larger = rows[-2:]
    growth = math.log(larger[key] / smaller[key])
    growth_of_size = math.log(larger["size"] / smaller["size"])
    return f"{growth / growth_of_size:6.2f}"


if __name__ == "__main__":
    main()
