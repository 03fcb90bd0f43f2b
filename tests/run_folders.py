"""Run folders as a run leaves them, made in no time: what tracking and the report read."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tests.conftest import config_of
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.settings import Config
from topr_exp.runs.plan import plan
from topr_exp.sweeps.sweep import runs_of


def make_run(
    output_dir: Path, *overrides: str, steps: int = 20, done: bool = True, rng: int = 0
) -> tuple[Config, Path]:
    """A run of one iteration with made-up numbers; not done: killed after the last step."""
    config = config_of(f"output_dir={output_dir}", *overrides)
    folder = config.folder
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {"identity": config.identity, "resolved": config_json(config)})
    write_json(folder / "environment.json", {"time": f"2026-01-01T00:00:0{rng}+0000", "command": ["topr", *overrides]})
    write_json(folder / "state.json", {"status": "done" if done else "running", "stage": "training"})
    chance = random.Random(rng)
    add_metrics(folder, range(1, steps + 1), chance)
    base, final = evaluation(0, 0.2), evaluation(1, 0.2 + 0.4 * chance.random())
    write_lines(folder / "eval.jsonl", [base, final] if done else [base])
    if done:
        write_json(folder / "summary.json", summary(config, base, final))
        (folder / "DONE").touch()
    return config, folder


def make_sweep_of_two(folder: Path) -> Path:
    """A sweep of a finished run and one that was killed."""
    given = ["-m", "algo=topr,tis", f"output_dir={folder.parent}", f"name={folder.name}"]
    for algo in ("topr", "tis"):
        make_run(folder.parent, f"algo={algo}", f"name={folder.name}", steps=2, done=algo == "topr")
    for run in runs_of(plan(parse_arguments(given)).jobs, given, []):
        run.save()
    return folder


def config_json(config: Config) -> Any:
    from topr_exp.config.schema import plain

    return plain(config)


def add_metrics(folder: Path, steps: range, chance: random.Random, iteration: int = 1) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps(update(step, chance, iteration)) + "\n")


def update(step: int, chance: random.Random, iteration: int = 1) -> dict[str, Any]:
    """The record of an update."""
    return {
        "iteration": iteration,
        "step": step,
        "samples": 32 * step,
        "loss": math.exp(-step / 50) + 0.1 * chance.random(),
        "positive_share": 0.2,
        "log_ratio_pos": 0.01 * step,
        "log_ratio_neg": -0.03 * step * chance.random(),
        "kl_mu": 0.001 * step,
        "clipped_high_neg": 0.5,
        "grad_norm": 1.0 + chance.random(),
        "lr": 1e-4,
        "tokens_per_second": 1000.0,
    }


def evaluation(iteration: int, accuracy: float, **more: Any) -> dict[str, Any]:
    wrong = (1 - accuracy) * 0.9
    return {
        "iteration": iteration,
        "pass@1": accuracy,
        "pass@1_se": 0.02,
        "maj@8": min(1.0, accuracy * 1.3),
        "maj@8_se": 0.03,
        "correct": accuracy,
        "incorrect": wrong,
        "invalid": 1 - accuracy - wrong,
        "problems": 100,
        "samples": 8,
        "pass@k": {
            str(k): {"value": 1 - (1 - accuracy) ** k, "se": 0.02, "low": 0.9 * accuracy, "high": 1.1 * accuracy}
            for k in (1, 2, 4, 8)
        },
        "maj@k": {
            str(k): {"value": min(1.0, accuracy * (1 + k / 25)), "se": 0.02, "low": 0.9 * accuracy, "high": 1.0}
            for k in (1, 2, 4, 8)
        },
        "correct_histogram": [40, 20, 10, 10, 5, 5, 5, 3, 2],
        "levels": {str(level): {"pass@1": accuracy / level, "pass@1_se": 0.1, "problems": 20} for level in range(1, 6)},
        "subjects": {name: {"pass@1": accuracy, "problems": 50} for name in ("Algebra", "Geometry")},
        **more,
    }


def summary(config: Config, base: dict[str, Any], final: dict[str, Any]) -> dict[str, Any]:
    return {
        "algo": config.algo.name,
        "data": config.data.name,
        "source": config.data.source,
        "model": config.model.name,
        "seed": config.seed,
        "baseline": config.baseline or 0.0,
        "effective_positive": config.effective_positive or 0.2,
        "positive_share": 0.2,
        "n_train": 640,
        "base": base,
        "final": final,
        "seconds": {"training": 12.5, "evaluation": 3.0},
        "tokens": {"tokens_sampled": 1000},
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def completion(problem: int, verdict: str, text: str, **more: Any) -> dict[str, Any]:
    """An entry of completions.jsonl."""
    return {
        "set": "test", "iteration": 0, "row": problem, "problem": f"p/{problem}", "sample": 0, "level": 1 + problem % 5,
        "subject": None, "question": f"Question {problem}?", "gold": "7", "completion": text, "verdict": verdict,
        "answer": "7" if verdict == "correct" else None, "tokens": 9, "truncated": False,
        "logp": {"0": -5.0, "1": -3.5}, **more,
    }  # fmt: skip


def make_sweep(output_dir: Path, count: int, steps: int = 20) -> Path:
    """A sweep of `count` runs over algorithm, effective proportion and seed, each with completions."""
    _, first = make_run(output_dir, "effective_positive=0.5", steps=steps)
    sweep = first.parent
    stored, metrics = json.loads((first / "config.json").read_text()), (first / "metrics.jsonl").read_text()
    for i in range(count):
        chance = random.Random(i)
        algo, share, seed = ("topr", "tis")[i % 2], (0.05, 0.2, 0.5, 0.8, 1.0)[i // 2 % 5], i // 10
        folder = sweep / f"{algo}_{share}_s{seed}"
        folder.mkdir()
        resolved = json.loads(json.dumps(stored["resolved"]))
        resolved["algo"]["name"], resolved["effective_positive"], resolved["seed"] = algo, share, seed
        resolved["algo"]["a_pos"] = 1.0 if algo == "topr" else 0.0
        write_json(folder / "config.json", {"identity": resolved, "resolved": resolved})
        (folder / "metrics.jsonl").write_text(metrics)
        accuracy = (
            0.3 + 0.5 * share * (1.2 - share) + 0.05 * chance.random() - (0.2 if algo == "tis" and share < 0.1 else 0)
        )
        base, final = evaluation(0, 0.2), evaluation(1, accuracy)
        curve = [evaluation(1, 0.2 + (accuracy - 0.2) * s / steps, step=s, samples_seen=32 * s, subset=True)
                 for s in range(max(1, steps // 5), steps + 1, max(1, steps // 5))]  # fmt: skip
        write_lines(folder / "eval.jsonl", [evaluation(0, 0.2, subset=True), base, *curve, final])
        known = {"algo": algo, "seed": seed, "effective_positive": share, "positive_share": 0.2, "n_train": 640}
        write_json(folder / "summary.json", {**known, "baseline": 0.1, "base": base, "final": final,
                                             "seconds": {"training": 10.0 + i}})  # fmt: skip
        verdicts = ("correct", "incorrect", "invalid")
        entries = [completion(j, verdicts[j % 3], f" Run {i} says 3+4=7. The answer is {j}.") for j in range(60)]
        write_lines(folder / "completions.jsonl", entries)
        (folder / "DONE").touch()
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    return sweep
