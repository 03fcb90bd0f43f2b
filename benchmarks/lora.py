"""LoRA against training all weights: runs of the tiny model, pass@1 as they train, seconds and optimizer bytes.

    python benchmarks/lora.py [KEY=VALUE ...]

Runs of `python -m topr_exp` with the settings below and those of the command line, which share what the base samples.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure
import torch

from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.pipeline import run
from topr_exp.runs.plan import plan
from topr_exp.training.trainer import Trainer

EVERY = 25
SETTINGS = [
    "data.train_problems=250", "data.test_problems=100", f"evaluation.every={EVERY}",
    "cluster.threads=1",
]  # fmt: skip
KINDS = {  # what is trained, and the learning rates that it is tried with
    "all weights": ([], ("1e-4", "3e-4", "1e-3")),
    "rank 16": (["model.lora={rank: 16, alpha: 32, targets: all-linear}"], ("3e-4", "1e-3", "3e-3")),
    "rank 4": (["model.lora={rank: 4, alpha: 8, targets: all-linear}"], ("3e-4", "1e-3", "3e-3")),
}


class Measured(Trainer):
    """Notes what the optimizer holds when an iteration ends."""

    held = 0

    def save_policy(self, folder: Path) -> None:
        states = self.optimizer.state.values()
        Measured.held = sum(v.nbytes for state in states for v in state.values() if isinstance(v, torch.Tensor))
        super().save_policy(folder)


def row(settings: list[str]) -> dict[str, Any]:
    """pass@1 every so many updates from the base on, the seconds of the updates, the optimizer's bytes at the end."""
    (job,) = plan(parse_arguments(settings)).jobs
    summary = run(job.config)
    lines = [json.loads(line) for line in (job.config.folder / "eval.jsonl").read_text().splitlines()]
    curve = {line.get("step", 0): line["pass@1"] for line in lines if "step" in line or line["iteration"] == 0}
    last = len((job.config.folder / "metrics.jsonl").read_text().splitlines())
    return {
        "pass@1": {**curve, last: summary["final"]["pass@1"]},
        "seconds": summary["seconds"]["training"],
        "optimizer_bytes": Measured.held,
    }


def main() -> None:
    import topr_exp.pipeline as pipeline

    pipeline.Trainer = Measured  # type: ignore[misc]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (settings, rates) in KINDS.items():
            for rate in rates:
                given = [f"output_dir={folder}", *SETTINGS, *settings, f"optim.lr={rate}", *sys.argv[1:]]
                found[f"{name}, {rate}"] = row(given)
    for name, figures in found.items():
        curve = " ".join(f"{step}: {100 * value:.1f}" for step, value in figures["pass@1"].items())
        size = figures["optimizer_bytes"] / 1e6
        print(f"{name:<20} {figures['seconds']:7.1f} s, optimizer {size:6.2f} MB, pass@1 by update {curve}")
    measure.write("lora", found)


if __name__ == "__main__":
    main()
