"""Check of everything that a run needs on this machine's GPUs, and its speed: one command, at most 45 minutes.

    make gpu-check                                             (python -m scripts.gpu_check, by the Python in use)
    python -m scripts.gpu_check --minutes 12                   the steps that fit, the most valuable first
    python -m scripts.gpu_check --size small                   minutes, also without a GPU: tries the check itself
    python -m scripts.gpu_check --size 100m                    the same with Llama 3's vocabulary and long prompts
    python -m scripts.gpu_check --vllm ~/vllm/bin/python       where vLLM has its own environment
    python -m scripts.gpu_check --only update whole            some steps, again where they were done before
    python -m scripts.gpu_check --only small                   those at SmolLM2-135M's shape

Each step has its own limit and ends with a verdict: passed, failed, unfinished (at its limit) or skipped, and why.
Weights are random (a Llama of SmolLM2-135M's shape for the small- steps, then an 8B one with a vocabulary of 128,256)
unless --model names a folder, so nothing is downloaded. A step starts if its time on one H200 is left, and is ended
when the minutes are over (but for --full); the same command again continues with the steps that have not passed.
OUT/results.json has the figures and OUT/results.md the table for docs/performance.md, both written after each step.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu_check_runs import (
    CHECKED,
    ROOT,
    SIGTERM_STATUS,
    SIZES,
    SMALL_STEPS,
    Command,
    FailedStepError,
    Place,
    TimeOverError,
    bytes_held,
    execute,
    experiment,
    figures_of,
    forget,
    gate,
    last_of_each,
    measure,
    newest_run,
    run_command,
)
from topr_exp.runtime.files import write_text
from topr_exp.sampling.vllm_requirements import describe_untested, examine_machine

# ---- the steps, each of which returns its figures


def preflight(place: Place) -> dict[str, Any]:
    """Name the missing parts of a bare machine for vLLM on a GPU, as a run does, without importing vLLM."""
    figures, problems = examine_machine(place.vllm or sys.executable)
    if not place.vllm:
        return dict(figures)
    if place.gpus and problems:
        raise FailedStepError("; ".join(problems))
    if warning := describe_untested(figures):
        figures["warning"] = warning
    return dict(figures)


ROUNDS = ["schedule=on_policy", "schedule.prompts=4", "optim.batch_size=16"]
LORA = ["model.lora={rank: 16, alpha: 32, targets: all-linear}", "optim=tiny", *ROUNDS, "schedule.rounds=2"]
CURVE = ["compose.n_examples=24", "evaluation.every=2", "evaluation.problems=4"]
SEVERAL = [*CURVE, "cluster.parallel=fsdp", "checkpoint.every_seconds=0"]


def smoke(place: Place) -> dict[str, Any]:
    figures = {}
    for dtype in ("float32", "bfloat16"):
        name = f"smoke-{dtype}"
        settings = ["experiment=smoke", f"model.dtype={dtype}", "optim.epochs=40"]
        interrupt(place, name, settings)
        seconds = experiment(place, name, settings)["seconds"]
        figures[f"s {dtype}"] = round(sum(seconds.values()), 1)
    return figures


def interrupt(place: Place, name: str, settings: list[str]) -> None:
    """Start a run from its beginning and stop it by SIGTERM after its first update."""

    def has_updates() -> bool:
        return any(path.stat().st_size for path in place.runs(name, "metrics.jsonl"))

    forget(place, name)
    with Command(place, name, run_command(place, name, settings)) as running:
        running.wait(has_updates)
        running.process.send_signal(signal.SIGTERM)
        status = running.wait()
    if status not in (0, SIGTERM_STATUS):  # 0: it had ended before
        raise FailedStepError(f"{running.last_line} (status {status} after SIGTERM)")


def update(place: Place) -> dict[str, Any]:
    recompute = "plain"
    if place.size == "8b" and place.memory < 88:  # activations are estimated to need 80 GiB
        recompute = "checkpointing"
    return measure(place, "update", place.size, recompute)


def checkpoint(place: Place) -> dict[str, Any]:
    return measure(place, "update", place.size, "checkpointing", str(place.out))


def small_update(place: Place) -> dict[str, Any]:
    return measure(place, "small_update", place.size, str(place.out))


def trl(place: Place) -> dict[str, Any]:
    case = "short"
    if place.gpus:
        case = "plain_135m"
    return measure(place, "trl", case)


def model(place: Place) -> dict[str, Any]:
    if place.shots.exists():
        return {}
    model_folder = ""
    if place.model_folder is None:
        shutil.rmtree(place.weights, ignore_errors=True)
    else:
        model_folder = str(place.model_folder)
    return measure(place, "model", place.size, str(place.weights), str(place.shots), model_folder)


def whole(place: Place) -> dict[str, Any]:
    examples = 2 * SIZES[place.size].problems
    summary = experiment(place, "whole", [*place.model, f"compose.n_examples={examples}"])
    figures = figures_of(place, summary)
    tokens_sampled = summary["tokens"].get("tokens_sampled")
    if tokens_sampled:  # the engine is up since the evaluation before
        rate = tokens_sampled / summary["seconds"]["sampling"]
        figures["sampled tokens/s of the stage"] = round(rate, 1)
    figures |= gate(place, "whole")
    mismatch = summary["sampler_mismatch"]
    figures["mean |log μ − log q| a token"] = mismatch["per_token_mean_absolute"]
    for quantile, value in mismatch["per_token"].items():
        figures[f"log μ − log q a token, {quantile}"] = value
    for quantile, value in mismatch["sequence_ratio"].items():
        figures[f"μ/q a completion, {quantile}"] = value
    return figures


def sampling(place: Place) -> dict[str, Any]:
    problems, n, shard = 12, 4, 3
    if place.size in ("8b", "135m"):
        problems, n, shard = 256, 16, 64  # 1,024 completions at once
    settings = [
        *place.model,
        f"data.train_problems={problems}",
        f"data.n={n}",
        f"sampler.prompts_per_shard={shard}",
        "sampler.top_k=500",
    ]
    folder = place.out / f"{place.prefix}sampling"
    return measure(place, "sampling", str(folder), *last_of_each(settings))


def rounds(place: Place) -> dict[str, Any]:
    settings = [*place.model, *ROUNDS, "schedule.rounds=3"]
    if not place.vllm:
        return figures_of(place, experiment(place, "rounds", settings))
    if place.gpus:
        settings.append("sampler.sleep=true")
    seconds = experiment(place, "rounds", settings)["seconds"]
    metrics = newest_run(place, "rounds") / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {
        "sampler": place.sampler,
        "s sampling": round(seconds["sampling"], 1),
        "s training": round(seconds["training"], 1),
        "largest sampler_gap": max(record["sampler_gap"] for record in records),
    }


def head(place: Place) -> dict[str, Any]:
    return measure(place, "head", place.size)


def tests(place: Place) -> dict[str, Any]:
    if place.vllm:
        os.environ["TOPR_VLLM"] = str(Path(place.vllm).parent.parent)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"]
    return {"pytest": execute(place, "tests", command)}


def run_of(name: str, settings: list[str]) -> Callable[[Place], dict[str, Any]]:
    """Make the step that is one run of the model."""
    return lambda place: figures_of(place, experiment(place, name, [*place.model, *settings]))


def several(place: Place) -> dict[str, Any]:
    """Gather over all GPUs, run an experiment on each, and one on all of them, killing its rank 0 once."""
    gpus = max(2, place.gpus)
    count = max(power for power in (2, 4, 8) if power <= gpus)  # a divisor of the batch
    figures = measure(place, "gathers", str(count), str(place.out))
    figures["processes"] = count
    seeds = ",".join(map(str, range(count)))
    settings = ["-m", "experiment=smoke", f"seed={seeds}", f"cluster.jobs={count}"]
    start_time = time.monotonic()
    execute(place, "jobs", run_command(place, "jobs", settings))
    figures[f"s of {count} small runs at once"] = round(time.monotonic() - start_time, 1)
    settings = [*place.model, *SEVERAL, f"cluster.processes={count}"]
    kill_rank_0(place, "several", settings)
    return figures | figures_of(place, experiment(place, "several", settings))


def kill_rank_0(place: Place, name: str, settings: list[str]) -> None:
    """Start a run of several processes from its beginning and kill one of them after its first checkpoint."""
    forget(place, name)
    with Command(place, name, run_command(place, name, settings)) as running:
        running.wait(lambda: place.runs(name, "checkpoints/1/step-????????"))
        if running.process.poll() is not None:
            raise FailedStepError(f"ended before one of its processes could be killed: {running.last_line}")
        state = json.loads(place.runs(name, "state.json")[0].read_text())
        os.kill(state["attempt"]["pid"], signal.SIGKILL)  # the process of rank 0; its launcher lives
        if running.wait() == 0:
            raise FailedStepError("a run one of whose processes was killed said that it was done")


TOTAL_MINUTES = 45.0
PATIENCE = 2.0  # times a step's seconds, after which it is ended where the minutes are fewer than that


@dataclass(frozen=True)
class Step:
    """A part of the check."""

    description: str
    work: Callable[[Place], dict[str, Any]]
    minutes: float  # after which it is ended
    needs: tuple[str, ...] = ()
    seconds: float = 60  # left for it to start: its time on one H200, a model with its first use
    models: float = 0  # disk space at its end, in times the model's weights in bfloat16


SAMPLED = ("memory", "disk", "vLLM", "model")
SMALL = {  # at SmolLM2-135M's shape, in order of value
    "update": Step(
        "an update of a small model, and where its time goes",
        small_update,
        minutes=5,
        seconds=50,
    ),
    "model": Step(
        "a random small model",
        model,
        minutes=3,
        needs=("disk",),
        seconds=30,
        models=1,
    ),
    "sampling": Step(
        "vLLM with CUDA graphs: tokens/s, starts",
        sampling,
        minutes=8,
        needs=(*SAMPLED, "an engine"),
        seconds=120,
        models=1,
    ),
    "rounds": Step(
        "three rounds on-policy with a small model",
        rounds,
        minutes=5,
        needs=SAMPLED,
        seconds=60,
        models=5,
    ),
    "lora": Step(
        "two rounds with LoRA and a small model",
        run_of("lora", LORA),
        minutes=5,
        needs=(*SAMPLED, "peft"),
        seconds=60,
        models=5,
    ),
    "trl": Step(
        "TRL's SFTTrainer beside our update of a small model",
        trl,
        minutes=4,
        needs=("trl",),
        seconds=50,
    ),
}
LARGE = {  # in order of value
    "head": Step(
        "the output layer by logits, our chunks and torch's",
        head,
        minutes=4,
        seconds=20,
    ),
    "update": Step(
        "the paper's update: seconds, memory, MFU",
        update,
        minutes=8,
        needs=("memory",),
        seconds=35,
    ),
    "model": Step(
        "a random model, its weights in bfloat16 as the hub's are",
        model,
        minutes=8,
        needs=("disk",),
        seconds=200,
        models=1,
    ),
    "sampling": Step(
        "vLLM alone, 1,024 sequences: tokens/s, idle time, memory",
        sampling,
        minutes=8,
        needs=(*SAMPLED, "an engine"),
        seconds=140,
        models=1,
    ),
    "smoke": Step(
        "a run in float32 and in bfloat16, each stopped by SIGTERM and given again",
        smoke,
        minutes=8,
        seconds=60,
    ),
    "tests": Step(
        "the tests marked gpu",
        tests,
        minutes=8,
        needs=("GPU", "pytest", "hypothesis"),
        seconds=90,
    ),
    "whole": Step(
        "every stage with the model, on few problems",
        whole,
        minutes=8,
        needs=SAMPLED,
        seconds=240,
        models=3,
    ),
    "checkpoint": Step(
        "the same update with gradient checkpointing; a checkpoint",
        checkpoint,
        minutes=8,
        needs=("memory", "disk"),
        seconds=90,
        models=3,
    ),
    "rounds": Step(
        "three rounds on-policy, by each way to hand the weights over",
        rounds,
        minutes=8,
        needs=SAMPLED,
        seconds=240,
        models=3,
    ),
    "lora": Step(
        "two rounds on-policy with LoRA and AdamW",
        run_of("lora", LORA),
        minutes=8,
        needs=(*SAMPLED, "peft"),
        seconds=240,
        models=1,
    ),
    "curve": Step(
        "an evaluation while the model trains",
        run_of("curve", CURVE),
        minutes=8,
        needs=SAMPLED,
        seconds=240,
        models=3,
    ),
    "several": Step(
        "all GPUs: gathers, runs side by side, FSDP with a kill",
        several,
        minutes=8,
        needs=("two GPUs", *SAMPLED),
        seconds=300,
        models=7,
    ),
}
PREFLIGHT = Step("driver, compiler, headers, vLLM's version, shared memory", preflight, minutes=4, seconds=10)
STEPS = {"preflight": PREFLIGHT, **{SMALL_STEPS + name: step for name, step in SMALL.items()}, **LARGE}
PACKAGES = {
    "trl": "pip install trl",
    "peft": "pip install -e '.[lora]'",
    "pytest": "pip install -e '.[dev]'",
    "hypothesis": "pip install -e '.[dev]'",
}


def missing_need(place: Place, step: Step) -> str | None:
    """Name a need of a step that this machine does not meet; None if it meets all."""
    for need in step.needs:
        if need in PACKAGES:
            reason = missing_package(need)
        else:
            reason = missing_resource(place, step, need)
        if reason is not None:
            return reason
    return None


def missing_package(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: {PACKAGES[package]}"
    return None


def missing_resource(place: Place, step: Step, need: str) -> str | None:
    """Describe the shortage of one resource; None if there is enough."""
    is_8b = place.size == "8b"  # smaller models also run on a CPU, and are sampled from with transformers
    match need:
        case "memory":
            return missing_memory(place, is_8b)
        case "disk":
            return missing_disk(place, step)
        case "GPU":
            has_enough, reason = place.gpus > 0, "there is no GPU"
        case "two GPUs":
            has_enough = place.gpus >= 2 or not (place.gpus or is_8b)
            reason = f"two GPUs are needed, there are {place.gpus}"
        case "vLLM":
            has_enough, reason = bool(place.vllm) or not is_8b, "vLLM is needed: --vllm PYTHON"
        case "an engine":
            has_enough, reason = bool(place.vllm), "vLLM is needed: --vllm PYTHON"
        case _:
            assert need == "model", need
            has_enough, reason = place.shots.exists(), f"there is no model (step {place.prefix}model)"
    if has_enough:
        return None
    return reason


def missing_memory(place: Place, is_8b: bool) -> str | None:
    needed = SIZES[place.size].memory
    if place.memory < needed and (place.gpus or is_8b):
        return f"{needed} GiB of GPU memory are needed, there are {place.memory:.0f}"
    return None


def missing_disk(place: Place, step: Step) -> str | None:
    free_bytes = shutil.disk_usage(place.out).free + bytes_held(place)
    free = free_bytes / 1e9
    written = math.ceil(step.models * SIZES[place.size].gigabytes)
    if free < written:
        return f"{written} GB of disk are needed in {place.out}, {free:.0f} are free or its own (--out FOLDER)"
    return None


def place_of(place: Place, name: str) -> Place:
    """Return the place with the size at which a step works."""
    if name.startswith(SMALL_STEPS):
        return place.small()
    return place


Outcome = dict[str, Any]  # verdict, seconds, and figures or why


@dataclass(frozen=True)
class Timetable:
    """The minutes of a check."""

    deadline: float  # by time.monotonic(); infinite: neither a step nor the whole has a limit
    is_tight: bool = False  # no step may take the time of later ones

    def limit_of(self, step: Step, start_time: float) -> float:
        """Return when a step that starts now is ended."""
        if self.deadline == float("inf"):
            return self.deadline
        seconds = 60 * step.minutes
        if self.is_tight:
            seconds = min(seconds, PATIENCE * step.seconds)
        return min(start_time + seconds, self.deadline)


def check(
    place: Place, names: list[str], timetable: Timetable, *, repeats: bool, steps: Mapping[str, Step] = STEPS
) -> dict[str, Any]:
    """Do steps; results and their table are on disk after each.

    repeats: also steps that have passed before; steps: all of them by name, in the order of the results.
    """
    path = place.out / "results.json"
    results: dict[str, Any] = {"steps": {}}
    if path.exists():
        results = json.loads(path.read_text())
    results["machine"] = json.loads((place.out / "machine.json").read_text())
    for name in names:
        outcomes = results["steps"]
        verdict = outcomes.get(name, {}).get("verdict")
        if verdict == "passed" and not repeats:
            continue
        print(f"{name}: {steps[name].description}", flush=True)
        outcome = do_step(steps[name], place_of(place, name), timetable)
        outcomes[name] = outcome
        results["steps"] = {step: outcomes[step] for step in steps if step in outcomes}
        write_results(place, results)
        line = f"  {outcome['verdict']} in {outcome['seconds']:.0f} s"
        if "why" in outcome:
            line += f": {outcome['why']}"
        print(line, flush=True)
    return results


def do_step(step: Step, place: Place, timetable: Timetable) -> Outcome:
    """Do a step if its needs are met and time is left for it."""
    start_time = time.monotonic()
    seconds_left = timetable.deadline - start_time
    if reason := missing_need(place, step):
        outcome: Outcome = {"verdict": "skipped", "why": reason}
    elif seconds_left < step.seconds:
        reason = f"it takes {step.seconds:.0f} s, and {max(0.0, seconds_left):.0f} were left"
        outcome = {"verdict": "skipped", "why": f"{reason}; the same command goes on with it"}
    else:
        limit = timetable.limit_of(step, start_time)
        outcome = attempt(step, dataclasses.replace(place, until=limit))
    outcome["seconds"] = round(time.monotonic() - start_time, 1)
    return outcome


def write_results(place: Place, results: dict[str, Any]) -> None:
    """Write the results and their table, each file whole or as it was."""
    write_text(place.out / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(place.out / "results.md", table(results))


def attempt(step: Step, place: Place) -> Outcome:
    """Do a step; its verdict with its figures, or with the reason of its failure."""
    try:
        return {"verdict": "passed", "figures": step.work(place)}
    except TimeOverError as error:
        return {"verdict": "unfinished", "why": f"{error}; the same command goes on with it"}
    except FailedStepError as error:
        return {"verdict": "failed", "why": str(error)}
    except Exception as error:  # a mistake of this script's must not cost the other steps
        text = f"{type(error).__name__}: {error}"
        return {"verdict": "failed", "why": text.splitlines()[0]}


def table(results: dict[str, Any]) -> str:
    """Format the results as a table of Markdown."""
    facts = [f"{name} {value}" for name, value in results["machine"].items() if name != "vllm python"]
    lines = [f"`make gpu-check` on {', '.join(facts)}:", "", "| step | verdict | s | |", "|---|---|---|---|"]
    for name, outcome in results["steps"].items():
        text = describe(outcome).replace("|", "\\|")
        lines.append(f"| {name} | {outcome['verdict']} | {outcome['seconds']:.0f} | {text} |")
    return "\n".join(lines) + "\n"


def describe(outcome: Outcome) -> str:
    """Name the reason of an outcome, or its figures."""
    if "why" in outcome:
        return str(outcome["why"])
    figures = [f"{key} {format_figure(value)}" for key, value in outcome.get("figures", {}).items()]
    return "; ".join(figures)


def format_figure(value: object) -> str:
    """Format a fraction below 1000 with four significant digits, any other value in full."""
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.4g}"
    return str(value)


SMALL_MODEL_BYTES = 3e9  # of weights, below which --model is the model of the small- steps


def with_model(place: Place, folder: Path | None) -> Place:
    """Return the place with the model of --model for the steps of its size; at the sizes for a CPU for all."""
    if folder is None:
        return place
    if place.size != "8b":
        return dataclasses.replace(place, model_folder=folder, small_model_folder=folder)
    weight_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if weight_bytes < SMALL_MODEL_BYTES:
        return dataclasses.replace(place, small_model_folder=folder)
    return dataclasses.replace(place, model_folder=folder)


def steps_named(names: list[str]) -> list[str]:
    """Return the steps of some names, `small` standing for all at the smaller size."""
    steps: list[str] = []
    for name in names:
        if name == "small":
            steps += [step for step in STEPS if step.startswith(SMALL_STEPS)]
        else:
            steps.append(name)
    return list(dict.fromkeys(steps))


def parse_options() -> argparse.Namespace:
    """Parse the command line; exits with a line for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=CHECKED, default="8b")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu-check")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="check with these weights, not with random ones; below 3 GB they are those of the small- steps",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=TOTAL_MINUTES,
        help="that the check may take (45)",
    )
    parser.add_argument("--vllm", help="Python of an environment that has vLLM; without it this one")
    parser.add_argument(
        "--only",
        "--steps",
        dest="steps",
        nargs="+",
        choices=[*STEPS, "small"],
        metavar="STEP",
        help="these, again where they passed before; small: all whose names begin so",
    )
    parser.add_argument("--full", action="store_true", help="without limits for a step or in all")
    options = parser.parse_args()
    if options.model and not (options.model / "config.json").exists():
        parser.error(f"--model {options.model}: no model lies there (config.json)")
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be above 0")
    return options


def end_with_signals() -> None:
    """Exit on SIGTERM and SIGHUP, so that a step's processes end with the check."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))


def main() -> int:
    start_time = time.monotonic()
    options = parse_options()
    end_with_signals()
    model_folder: Path | None = None
    out: Path = options.out.resolve() / options.size
    if options.model:
        model_folder = options.model.resolve()
        out = out.with_name(model_folder.name)
    out.mkdir(parents=True, exist_ok=True)
    unknown_machine = Place(
        out,
        options.size,
        gpus=0,
        memory=0.0,
        vllm=options.vllm,
        until=time.monotonic() + 180,
    )
    try:
        machine = measure(unknown_machine, "machine", *filter(None, [options.vllm]))
    except FailedStepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    place = Place(out, options.size, machine["gpus"], machine["GPU memory, GiB"], machine["vllm python"])
    place = with_model(place, model_folder)
    if options.size == "8b" and not place.gpus:
        print("torch sees no GPU here; --size small tries the check without one", file=sys.stderr)
        return 2
    deadline = start_time + 60 * options.minutes
    if options.full:
        deadline = float("inf")
    timetable = Timetable(deadline, is_tight=bool(place.gpus) and options.minutes < TOTAL_MINUTES)
    names = steps_named(options.steps or list(STEPS))
    results = check(place, names, timetable, repeats=options.steps is not None)
    print(f"\n{table(results)}\nwritten to {out}/results.json and results.md")
    return int(any(outcome["verdict"] == "failed" for outcome in results["steps"].values()))


if __name__ == "__main__":
    sys.exit(main())
