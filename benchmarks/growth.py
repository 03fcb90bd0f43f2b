"""How time and memory of an update grow: with the length of sequences, with the batch, with the shared beginning.

    python benchmarks/growth.py [--threads 1] [--repeats 3]

Updates of benchmarks/training.py with the tiny model, one quantity varied at a time: completions of L tokens (batch 16,
prompts of 40), batches of B (prompts of 40, completions of 32), S tokens that all prompts begin with (batch 16, the
rest as before). `grows` is the exponent between neighbours: 1 is in proportion, 0 is constant.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import measure
import torch
from training import Case, Ours, timed


def case(*, prefix: int = 0, completion: int = 32, batch: int = 16) -> Case:
    return Case("tiny", prefix, (40, 40), (completion, completion), batch, batch, "adamw", "")


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
    measure.write("growth", {name: curve(name, cases, options.repeats) for name, cases in CURVES.items()})


def curve(name: str, cases: dict[int, Case], repeats: int) -> list[dict[str, Any]]:
    """A quantity's values with the seconds and the memory of an update."""
    print(f"{name:>18} {'seconds':>9} {'grows':>6} {'MiB':>7} {'grows':>6}")
    rows: list[dict[str, Any]] = []
    for size, each in cases.items():
        ours = Ours(each, 2 * each.batch)
        ours.update()
        seconds = [timed(ours.update, ours.device) for _ in range(repeats)]
        row = {"size": size, "seconds": measure.median(seconds), "bytes": measure.peak_memory(ours.update, ours.device)}
        before = rows[-1] if rows else None
        grows = [f"{exponent(before, row, key):6.2f}" if before else 6 * " " for key in ("seconds", "bytes")]
        rows.append(row)
        print(f"{size:18} {row['seconds']:9.3f} {grows[0]} {row['bytes'] / 2**20:7.0f} {grows[1]}", flush=True)
    return rows


def exponent(first: dict[str, Any], second: dict[str, Any], key: str) -> float:
    return math.log(second[key] / first[key]) / math.log(second["size"] / first["size"])


if __name__ == "__main__":
    main()
