"""Whether everything that a run needs works on this machine's GPUs, and how fast: one command, at most 45 minutes.

    make gpu-check                                             (python -m scripts.gpu_check, by the Python in use)
    python -m scripts.gpu_check --size small                   minutes, also without a GPU: tries the check itself
    python -m scripts.gpu_check --size 100m                    the same with Llama 3's vocabulary and long prompts
    python -m scripts.gpu_check --vllm ~/vllm/bin/python       where vLLM has its own environment
    python -m scripts.gpu_check --only update whole            some steps, again where they were done before

Each step has its own limit and ends with a verdict: passed, failed, unfinished (at its limit) or skipped, and why.
Weights are random (an 8B Llama with a vocabulary of 128,256) but for --model FOLDER, so nothing is downloaded. No step
is begun that could go beyond the 45 minutes (but for --full); the same command again goes on with those that have not
passed. OUT/results.json has the figures and OUT/results.md the table for docs/performance.md, both written after each
step.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
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
    ROOT,
    SIGTERM_STATUS,
    SIZES,
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
from topr_exp.runtime.gpu_machine import examine, untested

# ---- the steps, each of which returns its figures


def preflight(place: Place) -> dict[str, Any]:
    """What a bare machine lacks, as a run that samples with vLLM on a GPU is told."""
    found, lacks = examine(place.vllm or sys.executable)
    if place.gpus and place.vllm and lacks:
        raise Failed("; ".join(lacks))
    if place.vllm and (line := untested(found["vLLM"], found["torch"].partition(",")[0])):
        found["warning"] = line
    return found | ({"attention": attention_kernel()} if place.gpus else {})


def attention_kernel() -> str:
    """The kernel that torch's attention takes on this GPU for bfloat16 with 128 a head."""
    import torch

    query = torch.zeros(1, 8, 128, 128, dtype=torch.bfloat16, device="cuda")
    choice: Callable[..., int] = torch._fused_sdp_choice
    names = {0: "math", 1: "flash", 2: "memory-efficient", 3: "cuDNN"}
    return names.get(choice(query, query, query, is_causal=True), "?")


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
    whole = place.size != "8b" or place.memory >= 88  # without checkpointing: estimated 80 GiB
    ways = ("checkpointing", "plain") if whole else ("checkpointing",)
    return {
        key: value
        for way in ways
        for key, value in child(place, f"update-{way}", place.size, way, str(place.out)).items()
    }


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
    count, n, shard = (256, 16, 64) if place.size == "8b" else (12, 4, 3)  # 1,024 completions at once
    more = [f"data.train_problems={count}", f"data.n={n}", f"sampler.prompts_per_shard={shard}", "sampler.top_k=500"]
    return child(place, "sampling", str(place.out / "sampling"), *last_of_each([*place.model, *more]))


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


@dataclass(frozen=True)
class Step:
    what: str
    work: Callable[[Place], dict[str, Any]]
    minutes: float  # after which it is ended
    needs: tuple[str, ...] = ()


MODEL = ("memory", "disk", "vLLM", "model")
STEPS = {  # in order of value
    "preflight": Step("driver, compiler, headers, vLLM, shared memory, the kernel of attention", preflight, 4),
    "smoke": Step("a run in float32 and in bfloat16, each stopped by SIGTERM and given again", smoke, 8),
    "tests": Step("the tests marked gpu", tests, 8, ("GPU", "pytest", "hypothesis")),
    "head": Step("the output layer by logits, our chunks and torch's", head, 4),
    "update": Step("the paper's update: seconds, memory, MFU, with and without checkpointing", update, 8, ("memory",)),
    "model": Step("a random model, its weights in bfloat16 as the hub's are", model, 8, ("disk",)),
    "whole": Step("every stage with the model, on few problems", whole, 8, MODEL),
    "sampling": Step("vLLM alone, 1,024 sequences: tokens/s, idle time, memory", sampling, 8, (*MODEL, "an engine")),
    "rounds": Step("three rounds on-policy, by each way to hand the weights over", rounds, 8, MODEL),
    "lora": Step("two rounds on-policy with LoRA and AdamW", run_of("lora", LORA), 8, (*MODEL, "peft")),
    "curve": Step("an evaluation while the model trains", run_of("curve", CURVE), 8, MODEL),
    "several": Step("all GPUs: gathers, runs side by side, FSDP with a kill", several, 8, ("two GPUs", *MODEL)),
}
PACKAGES = {"peft": "pip install -e '.[lora]'", "pytest": "pip install -e '.[dev]'"}
PACKAGES["hypothesis"] = PACKAGES["pytest"]


def lacking(place: Place, needs: tuple[str, ...]) -> str | None:
    """What a step needs and this machine lacks, in words."""
    size, big = SIZES[place.size], place.size == "8b"
    free = (shutil.disk_usage(place.out).free + held(place)) / 1e9
    reasons = {
        "memory": place.memory < size.memory
        and f"{size.memory} GiB of GPU memory are needed, there are {place.memory:.0f}",
        "disk": free < size.disk
        and f"{size.disk} GB of disk are needed in {place.out}, {free:.0f} are free or its own (--out FOLDER)",
        "GPU": not place.gpus and "there is no GPU",
        "two GPUs": place.gpus < 2 and (place.gpus or big) and f"two GPUs are needed, there are {place.gpus}",
        # Smaller models are sampled from with transformers in reasonable time.
        "vLLM": big and not place.vllm and "vLLM is needed: --vllm PYTHON",
        "an engine": not place.vllm and "vLLM is needed: --vllm PYTHON",
        "model": not place.shots.exists() and "there is no model (step model)",
    }
    for package, install in PACKAGES.items():
        reasons[package] = importlib.util.find_spec(package) is None and f"{package} is not installed: {install}"
    return next((str(reasons[need]) for need in needs if reasons[need]), None)


def check(place: Place, wanted: list[str], again: bool, full: bool = False) -> dict[str, Any]:
    """Do the steps that are wanted and have not passed; results and their table are on disk after each.

    full: steps and the whole have no limits.
    """
    path = place.out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": {}}
    results["machine"] = json.loads((place.out / "machine.json").read_text())
    started = time.monotonic()
    for name in wanted:
        if results["steps"].get(name, {}).get("verdict") == "passed" and not again:
            continue
        step, began = STEPS[name], time.monotonic()
        print(f"{name}: {step.what}", flush=True)
        if not full and began - started > 60 * (TOTAL - step.minutes):
            found: dict[str, Any] = {"verdict": "skipped", "why": "no time was left; the same command goes on with it"}
        elif reason := lacking(place, step.needs):
            found = {"verdict": "skipped", "why": reason}
        else:
            limit = float("inf") if full else began + 60 * step.minutes
            found = attempt(step, dataclasses.replace(place, until=limit))
        found["seconds"] = round(time.monotonic() - began, 1)
        done = results["steps"] | {name: found}
        results["steps"] = {name: done[name] for name in STEPS if name in done}
        path.write_text(json.dumps(results, indent=1) + "\n")
        (place.out / "results.md").write_text(table(results))
        print(f"  {found['verdict']} in {found['seconds']:.0f} s{': ' + found['why'] if 'why' in found else ''}")
    return results


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu-check")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="check with these weights, not with random ones")
    parser.add_argument("--vllm", help="Python of an environment that has vLLM; without it this one")
    parser.add_argument(
        "--only",
        "--steps",
        dest="steps",
        nargs="+",
        choices=STEPS,
        metavar="STEP",
        help="these, again where they passed before",
    )
    parser.add_argument("--full", action="store_true", help="without limits for a step or in all")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):  # what the step runs has to end with it
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    if options.model and not (options.model / "config.json").exists():
        parser.error(f"--model {options.model}: no model lies there (config.json)")
    given = options.model.resolve() if options.model else None
    out = options.out.resolve() / (given.name if given else options.size)
    out.mkdir(parents=True, exist_ok=True)
    place = Place(out, options.size, 0, 0.0, options.vllm, time.monotonic() + 180)
    try:
        machine = child(place, "machine", *([options.vllm] if options.vllm else []))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    place = Place(out, options.size, machine["gpus"], machine["GPU memory, GiB"], machine["vllm python"], given=given)
    if options.size == "8b" and not place.gpus:
        print("torch sees no GPU here; --size small tries the check without one", file=sys.stderr)
        return 2
    results = check(place, options.steps or list(STEPS), options.steps is not None, options.full)
    print(f"\n{table(results)}\nwritten to {out}/results.json and results.md")
    return 1 if any(found["verdict"] == "failed" for found in results["steps"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
