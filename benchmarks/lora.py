"""LoRA against training all weights: runs of the tiny model, pass@1 as they train, seconds and optimizer bytes.

    python benchmarks/lora.py [KEY=VALUE ...]

Runs of `python -m topr_exp` with the settings below and those of the command line, which share the base's completions.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import measure
import torch

from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.pipeline import run
from topr_exp.runs.plan import plan
from topr_exp.training.trainer import Trainer

SETTINGS = ["data.train_problems=250", "data.test_problems=100", "evaluation.every=25", "cluster.threads=1"]


class Kind(NamedTuple):
    """Trained weights, and learning rates to try."""

    settings: list[str]
    learning_rates: tuple[str, ...]


KINDS = {
    "all weights": Kind([], ("1e-4", "3e-4", "1e-3")),
    "rank 16": Kind(["model.lora={rank: 16, alpha: 32, targets: all-linear}"], ("3e-4", "1e-3", "3e-3")),
    "rank 4": Kind(["model.lora={rank: 4, alpha: 8, targets: all-linear}"], ("3e-4", "1e-3", "3e-3")),
}


class MeasuredTrainer(Trainer):
    """Notes the bytes of the optimizer's state when an iteration ends."""

    optimizer_bytes = 0

    def save_policy(self, folder: Path) -> None:
        MeasuredTrainer.optimizer_bytes = 0
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    MeasuredTrainer.optimizer_bytes += value.nbytes
        super().save_policy(folder)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def measure_run(settings: list[str]) -> dict[str, Any]:
    """Measure pass@1 by update, the seconds of all updates, and the optimizer's bytes at the end."""
    (job,) = plan(parse_arguments(settings)).jobs
    summary = run(job.config)
    pass_at_1 = {}
    for record in read_lines(job.config.folder / "eval.jsonl"):
        if "step" in record or record["iteration"] == 0:
            pass_at_1[record.get("step", 0)] = record["pass@1"]
    last_step = len(read_lines(job.config.folder / "metrics.jsonl"))
    pass_at_1[last_step] = summary["final"]["pass@1"]
    return {
        "pass@1": pass_at_1,
        "seconds": summary["seconds"]["training"],
        "optimizer_bytes": MeasuredTrainer.optimizer_bytes,
    }


def main() -> None:
    import topr_exp.pipeline as pipeline

    pipeline.Trainer = MeasuredTrainer  # type: ignore[misc]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        common_settings = [f"output_dir={folder}", *SETTINGS]
        for name, kind in KINDS.items():
            for rate in kind.learning_rates:
                settings = [*common_settings, *kind.settings, f"optim.lr={rate}", *sys.argv[1:]]
                results[f"{name}, {rate}"] = measure_run(settings)
    for name, figures in results.items():
        curve = " ".join(f"{step}: {100 * value:.1f}" for step, value in figures["pass@1"].items())
        megabytes = figures["optimizer_bytes"] / 1e6
        print(f"{name:<20} {figures['seconds']:7.1f} s, optimizer {megabytes:6.2f} MB, pass@1 by update {curve}")
    measure.write("lora", results)


if __name__ == "__main__":
    main()
