"""Whether everything that a run needs works on this machine's GPUs, and how fast: one command, at most 45 minutes.

    make gpu-check                                             (python -m scripts.gpu_check, by the Python in use)
    python -m scripts.gpu_check --minutes 12                   the steps that fit, the most valuable first
    python -m scripts.gpu_check --size small                   minutes, also without a GPU: tries the check itself
    python -m scripts.gpu_check --size 100m                    the same with Llama 3's vocabulary and long prompts
    python -m scripts.gpu_check --vllm ~/vllm/bin/python       where vLLM has its own environment
    python -m scripts.gpu_check --only update whole            some steps, again where they were done before
    python -m scripts.gpu_check --only small                   those at SmolLM2-135M's shape

Each step has its own limit and ends with a verdict: passed, failed, unfinished (at its limit) or skipped, and why.
Weights are random (a Llama of SmolLM2-135M's shape for the small- steps, then an 8B one with a vocabulary of 128,256)
but for --model FOLDER, so nothing is downloaded. A step begins where the time that it takes on one H200 is left, and is
ended when the minutes are over (but for --full); the same command again goes on with those that have not passed.
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
from collections.abc import Callable
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
    Failed,
    Place,
    TimeOver,
    child,
    execute,
    experiment,
    figures_of,
    forget,
    gate,
    held,
    last_of_each,
    newest_run,
    run_command,
)
from topr_exp.runtime.files import write_text
from topr_exp.sampling.vllm_requirements import examine, untested

# ---- the steps, each of which returns its figures


def preflight(place: Place) -> dict[str, Any]:
    """What a bare machine lacks, as a run that samples with vLLM on a GPU is told; vLLM is not imported for it."""
    found, lacks = examine(place.vllm or sys.executable)
    if place.gpus and place.vllm and lacks:
        raise Failed("; ".join(lacks))
    if place.vllm and (line := untested(found["vLLM"], found["torch"].partition(",")[0])):
        found["warning"] = line
    return dict(found)


ROUNDS = ["schedule=on_policy", "schedule.prompts=4", "optim.batch_size=16"]
LORA = ["model.lora={rank: 16, alpha: 32, targets: all-linear}", "optim=tiny", *ROUNDS, "schedule.rounds=2"]
CURVE = ["compose.n_examples=24", "evaluation.every=2", "evaluation.problems=4"]
SEVERAL = [*CURVE, "cluster.parallel=fsdp", "checkpoint.every_seconds=0"]


def smoke(place: Place) -> dict[str, Any]:
    figures = {}
    for dtype in ("float32", "bfloat16"):
        name, settings = f"smoke-{dtype}", ["experiment=smoke", f"model.dtype={dtype}", "optim.epochs=40"]
        interrupt(place, name, settings)
        figures[f"s {dtype}"] = round(sum(experiment(place, name, settings)["seconds"].values()), 1)
    return figures


def interrupt(place: Place, name: str, settings: list[str]) -> None:
    """Start a run anew and stop it by SIGTERM after its first update."""
    forget(place, name)
    with Command(place, name, run_command(place, name, settings)) as running:
        running.wait(lambda: any(path.stat().st_size for path in place.runs(name, "metrics.jsonl")))
        running.process.send_signal(signal.SIGTERM)
        status = running.wait()
    if status not in (0, SIGTERM_STATUS):  # 0: it had ended before
        raise Failed(f"{running.last_line} (status {status} after SIGTERM)")


def update(place: Place) -> dict[str, Any]:
    keeps_activations = place.size != "8b" or place.memory >= 88  # estimated 80 GiB
    way = "plain" if keeps_activations else "checkpointing"
    return child(place, "update", place.size, way)


def checkpoint(place: Place) -> dict[str, Any]:
    return child(place, "update", place.size, "checkpointing", str(place.out))


def small_update(place: Place) -> dict[str, Any]:
    return child(place, "small_update", place.size, str(place.out))


def trl(place: Place) -> dict[str, Any]:
    return child(place, "trl", "plain_135m" if place.gpus else "short")


def model(place: Place) -> dict[str, Any]:
    if place.shots.exists():
        return {}
    if place.given is None:
        shutil.rmtree(place.weights, ignore_errors=True)
    return child(place, "model", place.size, str(place.weights), str(place.shots), str(place.given or ""))


def whole(place: Place) -> dict[str, Any]:
    summary = experiment(place, "whole", [*place.model, f"compose.n_examples={2 * SIZES[place.size].problems}"])
    figures, tokens, gap = figures_of(place, summary), summary["tokens"], summary["sampler_mismatch"]
    if tokens.get("tokens_sampled"):  # the engine is up since the evaluation before
        figures["sampled tokens/s of the stage"] = round(tokens["tokens_sampled"] / summary["seconds"]["sampling"], 1)
    figures |= gate(place, "whole")
    figures["mean |log μ − log q| a token"] = gap["per_token_mean_absolute"]
    for name, found in (("log μ − log q a token", gap["per_token"]), ("μ/q a completion", gap["sequence_ratio"])):
        figures |= {f"{name}, {quantile}": value for quantile, value in found.items()}
    return figures


def sampling(place: Place) -> dict[str, Any]:
    large = place.size in ("8b", "135m")
    count, n, shard = (256, 16, 64) if large else (12, 4, 3)  # 1,024 completions at once
    more = [f"data.train_problems={count}", f"data.n={n}", f"sampler.prompts_per_shard={shard}", "sampler.top_k=500"]
    settings = last_of_each([*place.model, *more])
    return child(place, "sampling", str(place.out / f"{place.prefix}sampling"), *settings)


def rounds(place: Place) -> dict[str, Any]:
    settings, figures = [*place.model, *ROUNDS, "schedule.rounds=3"], dict[str, Any]()
    if not place.vllm:
        return figures_of(place, experiment(place, "rounds", settings))
    if place.gpus:
        settings.append("sampler.sleep=true")
    seconds = experiment(place, "rounds", settings)["seconds"]
    figures |= {f"s {name}": round(seconds[name], 1) for name in ("sampling", "training")}
    lines = (newest_run(place, "rounds") / "metrics.jsonl").read_text().splitlines()
    figures["largest sampler_gap"] = max(json.loads(line)["sampler_gap"] for line in lines)
    return {"sampler": place.sampler} | figures


def head(place: Place) -> dict[str, Any]:
    return child(place, "head", place.size)


def tests(place: Place) -> dict[str, Any]:
    if place.vllm:
        os.environ["TOPR_VLLM"] = str(Path(place.vllm).parent.parent)
    return {"pytest": execute(place, "tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"])}


def run_of(name: str, settings: list[str]) -> Callable[[Place], dict[str, Any]]:
    """The step that is one run of the model."""
    return lambda place: figures_of(place, experiment(place, name, [*place.model, *settings]))


def several(place: Place) -> dict[str, Any]:
    count = max(power for power in (2, 4, 8) if power <= max(2, place.gpus))  # a divisor of the batch
    figures = child(place, "gathers", str(count), str(place.out)) | {"processes": count}
    seeds, began = ",".join(map(str, range(count))), time.monotonic()
    small = ["-m", "experiment=smoke", f"seed={seeds}", f"cluster.jobs={count}"]
    execute(place, "jobs", run_command(place, "jobs", small))
    figures[f"s of {count} small runs at once"] = round(time.monotonic() - began, 1)
    settings = [*place.model, *SEVERAL, f"cluster.processes={count}"]
    forget(place, "several")
    with Command(place, "several", run_command(place, "several", settings)) as running:
        running.wait(lambda: place.runs("several", "checkpoints/1/step-????????"))
        if running.process.poll() is not None:
            raise Failed(f"ended before one of its processes could be killed: {running.last_line}")
        state = json.loads(place.runs("several", "state.json")[0].read_text())
        os.kill(state["attempt"]["pid"], signal.SIGKILL)  # the process of rank 0; its launcher lives
        if running.wait() == 0:
            raise Failed("a run one of whose processes was killed said that it was done")
    return figures | figures_of(place, experiment(place, "several", settings))


TOTAL = 45.0  # minutes
PATIENCE = 2.0  # times a step's seconds, after which it is ended where the minutes are fewer than that


@dataclass(frozen=True)
class Step:
    what: str
    work: Callable[[Place], dict[str, Any]]
    minutes: float  # after which it is ended
    needs: tuple[str, ...] = ()
    seconds: float = 60  # that have to be left for it to begin: what it takes on one H200, a model with its first use
    models: float = 0  # what lies on the disk at its end, in times the model's weights in bfloat16


SAMPLED = ("memory", "disk", "vLLM", "model")
SMALL = {  # these at SmolLM2-135M's shape; in order of value
    "update": Step("an update of a small model, and where its time goes", small_update, 5, (), 50),
    "model": Step("a random small model", model, 3, ("disk",), 30, 1),
    "sampling": Step("vLLM with CUDA graphs: tokens/s, starts", sampling, 8, (*SAMPLED, "an engine"), 120, 1),
    "rounds": Step("three rounds on-policy with a small model", rounds, 5, SAMPLED, 60, 5),
    "lora": Step("two rounds with LoRA and a small model", run_of("lora", LORA), 5, (*SAMPLED, "peft"), 60, 5),
    "trl": Step("TRL's SFTTrainer beside our update of a small model", trl, 4, ("trl",), 50),
}
LARGE = {  # in order of value, too
    "head": Step("the output layer by logits, our chunks and torch's", head, 4, (), 20),
    "update": Step("the paper's update: seconds, memory, MFU", update, 8, ("memory",), 35),
    "model": Step("a random model, its weights in bfloat16 as the hub's are", model, 8, ("disk",), 200, 1),
    "sampling": Step(
        "vLLM alone, 1,024 sequences: tokens/s, idle time, memory", sampling, 8, (*SAMPLED, "an engine"), 140, 1
    ),
    "smoke": Step("a run in float32 and in bfloat16, each stopped by SIGTERM and given again", smoke, 8, (), 60),
    "tests": Step("the tests marked gpu", tests, 8, ("GPU", "pytest", "hypothesis"), 90),
    "whole": Step("every stage with the model, on few problems", whole, 8, SAMPLED, 240, 3),
    "checkpoint": Step(
        "the same update with gradient checkpointing; a checkpoint", checkpoint, 8, ("memory", "disk"), 90, 3
    ),
    "rounds": Step("three rounds on-policy, by each way to hand the weights over", rounds, 8, SAMPLED, 240, 3),
    "lora": Step("two rounds on-policy with LoRA and AdamW", run_of("lora", LORA), 8, (*SAMPLED, "peft"), 240, 1),
    "curve": Step("an evaluation while the model trains", run_of("curve", CURVE), 8, SAMPLED, 240, 3),
    "several": Step(
        "all GPUs: gathers, runs side by side, FSDP with a kill", several, 8, ("two GPUs", *SAMPLED), 300, 7
    ),
}
FIRST = Step("driver, compiler, headers, vLLM's version, shared memory", preflight, 4, (), 10)
STEPS = {"preflight": FIRST, **{SMALL_STEPS + name: step for name, step in SMALL.items()}, **LARGE}
PACKAGES = {"trl": "pip install trl", "peft": "pip install -e '.[lora]'", "pytest": "pip install -e '.[dev]'"}
PACKAGES["hypothesis"] = PACKAGES["pytest"]


def lacking(place: Place, step: Step) -> str | None:
    """What a step needs and this machine lacks, in words."""
    size, big = SIZES[place.size], place.size == "8b"
    free = (shutil.disk_usage(place.out).free + held(place)) / 1e9
    written = math.ceil(step.models * size.gigabytes)
    reasons = {
        "memory": place.memory < size.memory
        and (place.gpus or big)
        and f"{size.memory} GiB of GPU memory are needed, there are {place.memory:.0f}",
        "disk": free < written
        and f"{written} GB of disk are needed in {place.out}, {free:.0f} are free or its own (--out FOLDER)",
        "GPU": not place.gpus and "there is no GPU",
        "two GPUs": place.gpus < 2 and (place.gpus or big) and f"two GPUs are needed, there are {place.gpus}",
        # Smaller models are sampled from with transformers in reasonable time.
        "vLLM": big and not place.vllm and "vLLM is needed: --vllm PYTHON",
        "an engine": not place.vllm and "vLLM is needed: --vllm PYTHON",
        "model": not place.shots.exists() and f"there is no model (step {place.prefix}model)",
    }
    for package, install in PACKAGES.items():
        reasons[package] = importlib.util.find_spec(package) is None and f"{package} is not installed: {install}"
    return next((str(reasons[need]) for need in step.needs if reasons[need]), None)


def place_of(place: Place, name: str) -> Place:
    """The place with the size at which a step works."""
    return place.small() if name.startswith(SMALL_STEPS) else place


def check(place: Place, wanted: list[str], again: bool, deadline: float, limited: bool = False) -> dict[str, Any]:
    """Do the steps that are wanted and have not passed; results and their table are on disk after each.

    deadline: by time.monotonic(); infinite: neither a step nor the whole has a limit. limited: the minutes are few.
    """
    path = place.out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": {}}
    results["machine"] = json.loads((place.out / "machine.json").read_text())
    for name in wanted:
        if results["steps"].get(name, {}).get("verdict") == "passed" and not again:
            continue
        step, began, here = STEPS[name], time.monotonic(), place_of(place, name)
        print(f"{name}: {step.what}", flush=True)
        if reason := lacking(here, step):
            found: dict[str, Any] = {"verdict": "skipped", "why": reason}
        elif deadline - began < step.seconds:
            found = {
                "verdict": "skipped",
                "why": f"it takes {step.seconds:.0f} s, and {max(0.0, deadline - began):.0f} were left; the same "
                "command goes on with it",
            }
        else:
            found = attempt(step, dataclasses.replace(here, until=limit_of(step, began, deadline, limited)))
        found["seconds"] = round(time.monotonic() - began, 1)
        done = results["steps"] | {name: found}
        results["steps"] = {name: done[name] for name in STEPS if name in done}
        write_results(place, results)
        why = f": {found['why']}" if "why" in found else ""
        print(f"  {found['verdict']} in {found['seconds']:.0f} s{why}", flush=True)
    return results


def limit_of(step: Step, began: float, deadline: float, limited: bool) -> float:
    """When a step that begins now is ended; limited: it may not take the time of those after it."""
    if deadline == float("inf"):
        return deadline
    seconds = 60 * step.minutes
    if limited:
        seconds = min(seconds, PATIENCE * step.seconds)
    return min(began + seconds, deadline)


def write_results(place: Place, results: dict[str, Any]) -> None:
    """Write the results, and their table, each file whole or as it was."""
    write_text(place.out / "results.json", json.dumps(results, indent=1) + "\n")
    write_text(place.out / "results.md", table(results))


def attempt(step: Step, place: Place) -> dict[str, Any]:
    """A step's verdict with its figures, or with why it failed."""
    try:
        return {"verdict": "passed", "figures": step.work(place)}
    except TimeOver as error:
        return {"verdict": "unfinished", "why": f"{error}; the same command goes on with it"}
    except Failed as error:
        return {"verdict": "failed", "why": str(error)}
    except Exception as error:  # a mistake of this script's must not cost the other steps
        return {"verdict": "failed", "why": f"{type(error).__name__}: {error}".splitlines()[0]}


def table(results: dict[str, Any]) -> str:
    """The results as a table of Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items() if name != "vllm python")
    lines = [f"`make gpu-check` on {machine}:", "", "| step | verdict | s | |", "|---|---|---|---|"]
    for name, found in results["steps"].items():
        figures = "; ".join(f"{key} {shown(value)}" for key, value in found.get("figures", {}).items())
        text = found.get("why", figures).replace("|", "\\|")
        lines.append(f"| {name} | {found['verdict']} | {found['seconds']:.0f} | {text} |")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """Three digits after the first of a fraction, all of a whole number."""
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


SMALL_GIVEN = 3e9  # bytes of weights, below which --model is the model of the small- steps


def with_given_model(place: Place, given: Path | None) -> Place:
    """The place with the model of --model for the steps of its size; at the sizes for a CPU for all."""
    if given is None:
        return place
    weights = sum(path.stat().st_size for path in given.glob("*.safetensors"))
    small = weights < SMALL_GIVEN
    return dataclasses.replace(
        place,
        given=given if not small or place.size != "8b" else None,
        given_small=given if small or place.size != "8b" else None,
    )


def steps_named(names: list[str]) -> list[str]:
    """The steps that are named, `small` standing for all whose names begin so."""
    steps: list[str] = []
    for name in names:
        steps += [step for step in STEPS if step.startswith(SMALL_STEPS)] if name == "small" else [name]
    return list(dict.fromkeys(steps))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=CHECKED, default="8b")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu-check")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FOLDER",
        help="check with these weights, not with random ones; below 3 GB they are those of the small- steps",
    )
    parser.add_argument("--minutes", type=float, default=TOTAL, help="that the check may take (45)")
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
    began = time.monotonic()
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # what the step runs has to end with it
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    if options.model and not (options.model / "config.json").exists():
        parser.error(f"--model {options.model}: no model lies there (config.json)")
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g}: must be above 0")
    given = options.model.resolve() if options.model else None
    out = options.out.resolve() / (given.name if given else options.size)
    out.mkdir(parents=True, exist_ok=True)
    place = Place(out, options.size, 0, 0.0, options.vllm, time.monotonic() + 180)
    try:
        machine = child(place, "machine", *([options.vllm] if options.vllm else []))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    place = Place(out, options.size, machine["gpus"], machine["GPU memory, GiB"], machine["vllm python"])
    place = with_given_model(place, given)
    if options.size == "8b" and not place.gpus:
        print("torch sees no GPU here; --size small tries the check without one", file=sys.stderr)
        return 2
    deadline = float("inf") if options.full else began + 60 * options.minutes
    wanted = steps_named(options.steps or list(STEPS))
    results = check(place, wanted, options.steps is not None, deadline, bool(place.gpus) and options.minutes < TOTAL)
    print(f"\n{table(results)}\nwritten to {out}/results.json and results.md")
    return 1 if any(found["verdict"] == "failed" for found in results["steps"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
