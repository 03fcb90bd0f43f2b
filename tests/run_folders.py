"""Run folders as a run leaves them, made in no time: what tracking and the report read."""

import json
import math
import random

from tests.conftest import config_of, plan_of, write_lines
from topr_exp.schema import plain
from topr_exp.sweeps.sweep import make_runs

# ---- records


def update(step, chance, iteration=1):
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


def evaluation(iteration, accuracy, **columns):
    """The record of an evaluation."""
    incorrect = (1 - accuracy) * 0.9
    pass_at, majority_at = {}, {}
    for k in (1, 2, 4, 8):
        pass_at[str(k)] = {"value": 1 - (1 - accuracy) ** k, "low": 0.9 * accuracy, "high": 1.1 * accuracy}
        majority_at[str(k)] = {"value": min(1.0, accuracy * (1 + k / 25)), "low": 0.9 * accuracy, "high": 1.0}
    return {
        "iteration": iteration,
        "pass@1": accuracy,
        "maj@8": min(1.0, accuracy * 1.3),
        "correct": accuracy,
        "incorrect": incorrect,
        "invalid": 1 - accuracy - incorrect,
        "problems": 100,
        "samples": 8,
        "pass@k": pass_at,
        "maj@k": majority_at,
        "correct_histogram": [40, 20, 10, 10, 5, 5, 5, 3, 2],
        "levels": {str(level): {"pass@1": accuracy / level, "problems": 20} for level in range(1, 6)},
        "subjects": {name: {"pass@1": accuracy, "problems": 50} for name in ("Algebra", "Geometry")},
        **columns,
    }


def completion(problem, verdict, text, **columns):
    """An entry of completions.jsonl."""
    return {
        "set": "test",
        "iteration": 0,
        "row": problem,
        "problem": f"p/{problem}",
        "sample": 0,
        "level": 1 + problem % 5,
        "subject": None,
        "question": f"Question {problem}?",
        "gold": "7",
        "completion": text,
        "verdict": verdict,
        "answer": "7" if verdict == "correct" else None,
        "tokens": 9,
        "truncated": False,
        "logp": -3.5,
        **columns,
    }


# ---- folders


def write_json(path, value):
    path.write_text(json.dumps(value))


def write_run(folder, resolved, metrics, evaluations, summary):
    """summary: what it has beside the evaluations; None: the run is not done."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"identity": resolved, "resolved": resolved})
    write_lines(folder / "metrics.jsonl", metrics)
    write_lines(folder / "eval.jsonl", evaluations)
    if summary is None:
        write_json(folder / "state.json", {"status": "running", "stage": "training"})
        return
    full_evaluations = [record for record in evaluations if "subset" not in record]
    figures = {"base": full_evaluations[0], "final": full_evaluations[-1], "positive_share": 0.2, "n_train": 640}
    write_json(folder / "summary.json", {**figures, "seconds": {"training": 12.5, "evaluation": 3.0}, **summary})
    (folder / "DONE").touch()


def make_run(output_dir, *words, steps=20, done=True, rng=0):
    """A run of one iteration with made-up numbers; not done: killed after the last step."""
    config = config_of(f"output_dir={output_dir}", *words)
    chance = random.Random(rng)
    metrics = [update(step, chance) for step in range(1, steps + 1)]
    evaluations = [evaluation(0, 0.2), evaluation(1, 0.2 + 0.4 * chance.random())]
    summary = {"baseline": config.baseline or 0.0, "effective_positive": config.effective_positive or 0.2}
    if not done:
        evaluations.pop()
        summary = None
    write_run(config.folder, plain(config), metrics, evaluations, summary)
    environment = {"time": f"2026-01-01T00:00:0{rng}+0000", "command": ["topr", *words]}
    write_json(config.folder / "environment.json", environment)
    return config, config.folder


def make_sweep_of_two(folder, *words):
    """A sweep of a finished run and one that was killed."""
    command = ["-m", "algo=topr,tis", f"output_dir={folder.parent}", f"name={folder.name}", *words]
    for algo in ("topr", "tis"):
        make_run(folder.parent, f"algo={algo}", f"name={folder.name}", steps=2, done=algo == "topr")
    for run in make_runs(plan_of(*command).jobs, command, []):
        run.save()
    return folder


def make_sweep(output_dir, count, steps=20):
    """A sweep of `count` runs over algorithm, effective proportion and seed, each with completions."""
    config = config_of(f"output_dir={output_dir}")
    metrics = [update(step, random.Random(step)) for step in range(1, steps + 1)]
    for index in range(count):
        make_run_of_sweep(config, index, metrics)
    return config.folder.parent


def make_run_of_sweep(config, index, metrics):
    algo = ("topr", "tis")[index % 2]
    share = (0.05, 0.2, 0.5, 0.8, 1.0)[index // 2 % 5]
    seed = index // 10
    resolved = plain(config) | {"effective_positive": share, "seed": seed}
    resolved["algo"] |= {"name": algo, "a_pos": float(algo == "topr")}
    gain = 0.1 + 0.5 * share * (1.2 - share) + 0.05 * random.Random(index).random()
    if algo == "tis" and share < 0.1:
        gain -= 0.2
    folder = config.folder.with_name(f"{algo}_{share}_s{seed}")
    summary = {"effective_positive": share, "baseline": 0.1, "seconds": {"training": 10.0 + index}}
    write_run(folder, resolved, metrics, rising_evaluations(gain, len(metrics)), summary)
    entries = []
    for row in range(60):
        verdict = ("correct", "incorrect", "invalid")[row % 3]
        text = f" Run {index} says 3+4=7. The answer is {row}."
        entries.append(completion(row, verdict, text))
    write_lines(folder / "completions.jsonl", entries)


def rising_evaluations(gain, steps):
    """Evaluations before, at five points of and after a training that gains so much accuracy."""
    evaluations = [evaluation(0, 0.2, subset=True), evaluation(0, 0.2)]
    interval = max(1, steps // 5)
    for step in range(interval, steps + 1, interval):
        accuracy = 0.2 + gain * step / steps
        point = evaluation(1, accuracy, step=step, samples_seen=32 * step, subset=True)
        evaluations.append(point)
    evaluations.append(evaluation(1, 0.2 + gain))
    return evaluations
