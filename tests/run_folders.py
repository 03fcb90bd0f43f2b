"""Run folders as a run leaves them, made in no time: what tracking and the report read."""

import json
import math
import random
from pathlib import Path
from typing import Any

from tests.conftest import config_of, write_lines
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.config.settings import Config
from topr_exp.runs.plan import plan
from topr_exp.schema import plain
from topr_exp.sweeps.sweep import make_runs


def make_run(
    output_dir: Path, *overrides: str, steps: int = 20, done: bool = True, rng: int = 0
) -> tuple[Config, Path]:
    """A run of one iteration with made-up numbers; not done: killed after the last step."""
    config, chance = config_of(f"output_dir={output_dir}", *overrides), random.Random(rng)
    metrics = [update(step, chance) for step in range(1, steps + 1)]
    evaluations = [evaluation(0, 0.2), evaluation(1, 0.2 + 0.4 * chance.random())]
    known = {"baseline": config.baseline or 0.0, "effective_positive": config.effective_positive or 0.2}
    write_run(config.folder, plain(config), metrics, evaluations[: 1 + done], known if done else None)
    made = {"time": f"2026-01-01T00:00:0{rng}+0000", "command": ["topr", *overrides]}
    write_json(config.folder / "environment.json", made)
    return config, config.folder


def write_run(
    folder: Path, resolved: Any, metrics: list[Any], evaluations: list[Any], known: dict[str, Any] | None
) -> None:
    """known: what its summary has beside the evaluations; None: it is not done."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"identity": resolved, "resolved": resolved})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "eval.jsonl", evaluations)
    if known is None:
        write_json(folder / "state.json", {"status": "running", "stage": "training"})
    else:
        whole = [each for each in evaluations if "subset" not in each]
        known = {"base": whole[0], "final": whole[-1], "positive_share": 0.2, "n_train": 640,
                 "seconds": {"training": 12.5, "evaluation": 3.0}, **known}  # fmt: skip
        write_json(folder / "summary.json", known)
        (folder / "DONE").touch()


def make_sweep_of_two(folder: Path, *settings: str) -> Path:
    """A sweep of a finished run and one that was killed."""
    given = ["-m", "algo=topr,tis", f"output_dir={folder.parent}", f"name={folder.name}", *settings]
    for algo in ("topr", "tis"):
        make_run(folder.parent, f"algo={algo}", f"name={folder.name}", steps=2, done=algo == "topr")
    for run in make_runs(plan(parse_arguments(given)).jobs, given, []):
        run.save()
    return folder


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
        "maj@8": min(1.0, accuracy * 1.3),
        "correct": accuracy,
        "incorrect": wrong,
        "invalid": 1 - accuracy - wrong,
        "problems": 100,
        "samples": 8,
        "pass@k": {
            str(k): {"value": 1 - (1 - accuracy) ** k, "low": 0.9 * accuracy, "high": 1.1 * accuracy}
            for k in (1, 2, 4, 8)
        },
        "maj@k": {
            str(k): {"value": min(1.0, accuracy * (1 + k / 25)), "low": 0.9 * accuracy, "high": 1.0}
            for k in (1, 2, 4, 8)
        },
        "correct_histogram": [40, 20, 10, 10, 5, 5, 5, 3, 2],
        "levels": {str(level): {"pass@1": accuracy / level, "problems": 20} for level in range(1, 6)},
        "subjects": {name: {"pass@1": accuracy, "problems": 50} for name in ("Algebra", "Geometry")},
        **more,
    }


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def completion(problem: int, verdict: str, text: str, **more: Any) -> dict[str, Any]:
    """An entry of completions.jsonl."""
    return {
        "set": "test", "iteration": 0, "row": problem, "problem": f"p/{problem}", "sample": 0, "level": 1 + problem % 5,
        "subject": None, "question": f"Question {problem}?", "gold": "7", "completion": text, "verdict": verdict,
        "answer": "7" if verdict == "correct" else None, "tokens": 9, "truncated": False,
        "logp": -3.5, **more,
    }  # fmt: skip


def make_sweep(output_dir: Path, count: int, steps: int = 20) -> Path:
    """A sweep of `count` runs over algorithm, effective proportion and seed, each with completions."""
    config, metrics = config_of(f"output_dir={output_dir}"), [update(i, random.Random(i)) for i in range(1, steps + 1)]
    for i in range(count):
        algo, share, seed = ("topr", "tis")[i % 2], (0.05, 0.2, 0.5, 0.8, 1.0)[i // 2 % 5], i // 10
        resolved = plain(config) | {"effective_positive": share, "seed": seed}
        resolved["algo"] |= {"name": algo, "a_pos": 1.0 if algo == "topr" else 0.0}
        gain = 0.1 + 0.5 * share * (1.2 - share) + 0.05 * random.Random(i).random()
        gain -= 0.2 if algo == "tis" and share < 0.1 else 0
        curve = [evaluation(1, 0.2 + gain * s / steps, step=s, samples_seen=32 * s, subset=True)
                 for s in range(max(1, steps // 5), steps + 1, max(1, steps // 5))]  # fmt: skip
        told = [evaluation(0, 0.2, subset=True), evaluation(0, 0.2), *curve, evaluation(1, 0.2 + gain)]
        known = {"effective_positive": share, "baseline": 0.1, "seconds": {"training": 10.0 + i}}
        folder = config.folder.with_name(f"{algo}_{share}_s{seed}")
        write_run(folder, resolved, metrics, told, known)
        verdicts = ("correct", "incorrect", "invalid")
        entries = [completion(j, verdicts[j % 3], f" Run {i} says 3+4=7. The answer is {j}.") for j in range(60)]
        write_lines(folder / "completions.jsonl", entries)
    return config.folder.parent
