"""Whether everything that a run needs works on this machine's GPUs, and how fast: one command, at most 45 minutes.

    make gpu-check                                        (python scripts/gpu_check.py)
    python scripts/gpu_check.py --size small              minutes, also without a GPU: tries the check itself
    python scripts/gpu_check.py --size 100m               the same with Llama 3's vocabulary and long prompts
    python scripts/gpu_check.py --vllm ~/vllm/bin/python  where vLLM has an environment of its own
    python scripts/gpu_check.py --steps update whole      some steps, again where they were done before

Each step has a limit of its own and ends with a verdict: passed, failed or skipped, and why. Weights are random (an 8B
Llama with a vocabulary of 128,256), so nothing is downloaded. None is begun that could go beyond the 45 minutes; the
same command again goes on with those that have not passed. At the end OUT/results.json has the figures and
OUT/results.md the table for docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHILD = Path(__file__).with_name("gpu_check_steps.py")


@dataclass(frozen=True)
class Size:
    """A model, what it needs, and how much it is asked to do."""

    disk: int  # GiB: the model, a trained one, two checkpoints, weights for an engine
    memory: int  # GiB of a GPU that an update needs (benchmarks/simulated_memory.py)
    problems: int  # to train on; on a CPU fewer, and shorter answers
    tokens: int  # of an answer, at most
    settings: tuple[str, ...] = ()


SIZES = {
    "8b": Size(150, 62, 32, 128),
    "100m": Size(4, 0, 12, 48, ("optim.lr=1e-4",)),  # so that an update that is lost shows in the weights
    "small": Size(1, 0, 12, 48, ("optim.lr=1e-4", "data.shots=1", "sampler.cpu_cache_gib=0.25")),
}


class Failed(Exception):
    """A step did not do what it should; one line."""


@dataclass(frozen=True)
class Place:
    """What this machine has and what is asked of it."""

    out: Path
    size: str
    gpus: int
    memory: float  # GiB of the first GPU
    vllm: str | None  # the Python that has it

    @property
    def model(self) -> list[str]:
        """A run of the random model, on generated problems after worked examples."""
        size = SIZES[self.size]
        sampler = ["sampler=vllm", f"sampler.python={self.vllm}"] if self.vllm else ["sampler=hf"]
        more = [text for text in size.settings if self.vllm or not text.startswith("sampler.")]
        return [
            "model=llama3_8b", f"model.name=random_{self.size}", f"model.path={self.out / 'random-model'}",
            "data=gsm8k", "data.source=embedded", f"data.train_problems={size.problems}", "data.test_problems=8",
            "data.n=4", "data.eval_n=2", f"sampler.max_new_tokens={size.tokens}", "sampler.top_k=0",
            f"sampler.prompts_per_shard={size.problems // 2}", *sampler, *more,
        ]  # fmt: skip

    @property
    def examples(self) -> str:
        """How many completions are trained on."""
        return f"compose.n_examples={2 * SIZES[self.size].problems}"


def execute(place: Place, name: str, command: list[str], minutes: float) -> None:
    """Run a command with its output in OUT/NAME.log; Failed where it does not end well and in time."""
    with (place.out / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(60 * minutes)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Failed(f"not done after {minutes:g} minutes; {name}.log says how far it came") from None
    if status:
        raise Failed(f"{last_line(place.out / f'{name}.log')} (status {status}, {name}.log)")


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def experiment(place: Place, name: str, settings: list[str], minutes: float) -> dict[str, Any]:
    """A run below OUT/runs; returns its summary. It goes on where an earlier check was broken off."""
    execute(place, name, run_command(place, name, settings), minutes)
    summaries = (place.out / "runs" / name).glob("*/summary.json")  # more than one after a change of the settings
    newest = max(summaries, key=lambda path: path.stat().st_mtime)
    if place.size == "8b":  # 32 GB, which nobody reads
        shutil.rmtree(newest.parent / "model", ignore_errors=True)
    found: dict[str, Any] = json.loads(newest.read_text())
    return found


def run_command(place: Place, name: str, settings: list[str]) -> list[str]:
    return [sys.executable, "-m", "topr_exp", f"output_dir={place.out / 'runs'}", f"name={name}", *settings]


def child(place: Place, name: str, minutes: float, *arguments: str) -> dict[str, Any]:
    """A measurement of gpu_check_steps.py; returns what it writes."""
    answer = place.out / f"{name}.json"
    answer.unlink(missing_ok=True)
    execute(place, name, [sys.executable, str(CHILD), name.split("-")[0], str(answer), *arguments], minutes)
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


# ---- the steps, each of which returns its figures


def smoke(place: Place) -> dict[str, Any]:
    """A run of seconds in float32 and in bfloat16, each stopped by SIGTERM while it trains and given again."""
    figures = {}
    for dtype in ("float32", "bfloat16"):
        name, settings = f"smoke-{dtype}", ["experiment=smoke", f"model.dtype={dtype}", "optim.epochs=40"]
        interrupt(place, name, settings)
        summary = experiment(place, name, settings, 3)
        figures[f"seconds {dtype}"] = round(sum(summary["seconds"].values()), 1)
    return figures


def interrupt(place: Place, name: str, settings: list[str]) -> None:
    """Start a run anew and stop it by SIGTERM after its first update."""
    forget(place, name)
    with (place.out / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(run_command(place, name, settings), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 180
        while process.poll() is None and not updates(place, name):
            if time.monotonic() > deadline:
                process.kill()
                raise Failed(f"no update after 3 minutes; {name}.log")
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        status = process.wait(120)
    if status not in (0, 128 + signal.SIGTERM):  # 0: it had ended before
        raise Failed(f"{last_line(place.out / f'{name}.log')} (status {status} after SIGTERM)")


def forget(place: Place, name: str) -> None:
    """Remove what an earlier check left of a run that is to be disturbed; completions and scores stay in the store."""
    shutil.rmtree(place.out / "runs" / name, ignore_errors=True)


def updates(place: Place, name: str) -> int:
    return sum(path.stat().st_size for path in (place.out / "runs" / name).glob("*/metrics.jsonl"))


def update(place: Place) -> dict[str, Any]:
    """The paper's update of the model: seconds, memory, MFU, with and without checkpointing."""
    figures = {}
    for recompute in ("checkpointing", "plain"):
        if recompute == "plain" and place.size == "8b" and place.memory < 88:
            continue  # estimated: 80 GiB
        figures |= child(place, f"update-{recompute}", 6, place.size, recompute)
    return figures


def model(place: Place) -> dict[str, Any]:
    """A folder with the random model, its weights in bfloat16 as the hub's are."""
    if not (place.out / "random-model" / "config.json").exists():
        return child(place, "model", 8, place.size, str(place.out / "random-model"))
    return {}


def whole(place: Place) -> dict[str, Any]:
    """Every stage with the model, on few problems."""
    summary = experiment(place, "whole", [*place.model, place.examples], 12)
    seconds, tokens, gap = summary["seconds"], summary["tokens"], summary["sampler_mismatch"]
    figures = {f"seconds {stage}": round(value, 1) for stage, value in seconds.items()}
    if tokens.get("tokens_sampled"):
        figures["sampled tokens/s, engine's start included"] = round(tokens["tokens_sampled"] / seconds["sampling"], 1)
    return figures | {f"sampler_mismatch {name}": value for name, value in gap.items() if isinstance(value, float)}


def rounds(place: Place) -> dict[str, Any]:
    """Three rounds on-policy with an engine that sleeps while the policy trains."""
    sleep = ["sampler.sleep=true"] if place.vllm and place.gpus else []
    settings = [*place.model, "schedule=on_policy", "schedule.rounds=3", "schedule.prompts=4", "optim.batch_size=16"]
    return seconds_of(experiment(place, "rounds", [*settings, *sleep], 10))


def curve(place: Place) -> dict[str, Any]:
    """An evaluation while the model trains."""
    settings = [*place.model, "compose.n_examples=24", "evaluation.every=2", "evaluation.problems=4"]
    return seconds_of(experiment(place, "curve", settings, 10))


def tests(place: Place) -> dict[str, Any]:
    """The tests marked gpu."""
    execute(place, "tests", [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"], 6)
    return {"pytest": last_line(place.out / "tests.log")}


def lora(place: Place) -> dict[str, Any]:
    """Two rounds on-policy with LoRA and AdamW, the second sampled with the adapter merged."""
    adapter = ["model.lora={rank: 16, alpha: 32, targets: all-linear}", "optim=tiny"]
    rounds = ["schedule=on_policy", "schedule.rounds=2", "schedule.prompts=4", "optim.batch_size=16"]
    return seconds_of(experiment(place, "lora", [*place.model, *adapter, *rounds], 10))


SEVERAL = [
    "compose.n_examples=24", "cluster.processes=2", "cluster.parallel=fsdp", "evaluation.every=2",
    "evaluation.problems=4", "checkpoint.every_seconds=0",
]  # fmt: skip


def several(place: Place) -> dict[str, Any]:
    """FSDP in two processes, an evaluation in training: one is killed while it trains, and the same command goes on."""
    settings = [*place.model, *SEVERAL]
    forget(place, "several")
    process = subprocess.Popen(run_command(place, "several", settings), cwd=ROOT, stdout=subprocess.DEVNULL,
                               stderr=subprocess.STDOUT)  # fmt: skip
    deadline = time.monotonic() + 480
    while process.poll() is None and not checkpoints(place, "several") and time.monotonic() < deadline:
        time.sleep(0.2)
    if not kill_a_child(process.pid):
        process.kill()
        raise Failed("none of the run's processes was found in training, to be killed")
    if process.wait(120) == 0:
        raise Failed("a run one of whose processes was killed said that it was done")
    if not checkpoints(place, "several"):
        raise Failed("no checkpoint was written within 8 minutes, for the run to go on from")
    return seconds_of(experiment(place, "several", settings, 8))


def checkpoints(place: Place, name: str) -> list[Path]:
    return [*(place.out / "runs" / name).glob("*/checkpoints/1/step-????????")]


def kill_a_child(parent: int) -> bool:
    """Kill the newest process that computes for a run: one of its ranks."""
    parents = {process: above for process, above in map(parent_of, Path("/proc").glob("[0-9]*")) if above}
    below = {parent}
    while more := {process for process, above in parents.items() if above in below} - below:
        below |= more
    ranks = [p for p in below if "forkserver" in command_line(p) and parents[p] != parent]
    for process in sorted(ranks)[-1:]:
        os.kill(process, signal.SIGKILL)
    return bool(ranks)


def parent_of(entry: Path) -> tuple[int, int]:
    """A process below /proc and its parent; 0 for one that has ended meanwhile. Names may hold blanks and brackets."""
    try:
        return int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return int(entry.name), 0


def command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def seconds_of(summary: dict[str, Any]) -> dict[str, Any]:
    return {f"seconds {stage}": round(value, 1) for stage, value in summary["seconds"].items()}


TOTAL = 45.0  # minutes


@dataclass(frozen=True)
class Step:
    work: Callable[[Place], dict[str, Any]]
    minutes: float  # that it may take
    needs: tuple[str, ...] = ()


STEPS = {  # in order of value
    "smoke": Step(smoke, 12),
    "update": Step(update, 12, ("memory",)),
    "model": Step(model, 8, ("disk",)),
    "whole": Step(whole, 12, ("memory", "disk", "model")),
    "rounds": Step(rounds, 10, ("memory", "disk", "model")),
    "curve": Step(curve, 10, ("memory", "disk", "model")),
    "lora": Step(lora, 10, ("memory", "disk", "model")),
    "tests": Step(tests, 6, ("GPU",)),
    "several": Step(several, 16, ("two GPUs", "disk", "model")),
}


def lacking(place: Place, needs: tuple[str, ...]) -> str | None:
    """What a step needs and this machine lacks, in words."""
    free = shutil.disk_usage(place.out).free / 2**30
    if "memory" in needs and place.memory < SIZES[place.size].memory:
        return f"{SIZES[place.size].memory} GiB of GPU memory are needed, there are {place.memory:.0f}"
    if "disk" in needs and free < SIZES[place.size].disk:
        return f"{SIZES[place.size].disk} GiB of disk are needed in {place.out}, {free:.0f} are free (--out FOLDER)"
    if "GPU" in needs and not place.gpus:
        return "there is no GPU"
    if "two GPUs" in needs and place.gpus < 2 and (place.gpus or place.size == "8b"):
        return f"two GPUs are needed, there are {place.gpus}"
    if "model" in needs and not (place.out / "random-model" / "config.json").exists():
        return "there is no random model (step model)"
    return None


def check(place: Place, wanted: list[str], again: bool) -> dict[str, Any]:
    """Do the steps that are wanted and have not passed; the results are on disk after each."""
    path = place.out / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": {}}
    results["machine"] = json.loads((place.out / "machine.json").read_text())
    started = time.monotonic()
    for name in wanted:
        if results["steps"].get(name, {}).get("verdict") == "passed" and not again:
            continue
        step, began = STEPS[name], time.monotonic()
        print(f"{name}: {(step.work.__doc__ or '').splitlines()[0]}", flush=True)
        if began - started > 60 * (TOTAL - step.minutes):
            found: dict[str, Any] = {"verdict": "skipped", "why": "no time was left; the same command goes on with it"}
        elif reason := lacking(place, step.needs):
            found = {"verdict": "skipped", "why": reason}
        else:
            try:
                found = {"verdict": "passed", "figures": step.work(place)}
            except Failed as error:
                found = {"verdict": "failed", "why": str(error)}
            except Exception as error:  # a mistake of this script's must not cost the other steps
                found = {"verdict": "failed", "why": f"{type(error).__name__}: {error}".splitlines()[0]}
        found["seconds"] = round(time.monotonic() - began, 1)
        results["steps"][name] = found
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"  {found['verdict']} in {found['seconds']:.0f} s{': ' + found['why'] if 'why' in found else ''}")
    return results


def table(results: dict[str, Any]) -> str:
    """The results as a table of Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in results["machine"].items() if name != "vllm python")
    lines = [f"`make gpu-check` on {machine}:", "", "| step | verdict | s | |", "|---|---|---|---|"]
    for name, found in results["steps"].items():
        figures = "; ".join(f"{key} {value}" for key, value in found.get("figures", {}).items())
        lines.append(f"| {name} | {found['verdict']} | {found['seconds']:.0f} | {found.get('why', figures)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "gpu-check")
    parser.add_argument("--vllm", help="Python of an environment that has vLLM; without it this one, else sampler=hf")
    parser.add_argument("--steps", nargs="+", choices=STEPS, help="these, again where they passed before")
    options = parser.parse_args()
    out = options.out.resolve() / options.size
    out.mkdir(parents=True, exist_ok=True)
    place = Place(out, options.size, 0, 0.0, options.vllm)
    try:
        machine = child(place, "machine", 3, *([options.vllm] if options.vllm else []))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    place = Place(out, options.size, machine["gpus"], machine["GPU memory, GiB"], machine["vllm python"])
    if options.size == "8b" and not place.gpus:
        print("torch sees no GPU here; --size small tries the check without one", file=sys.stderr)
        return 2
    results = check(place, options.steps or list(STEPS), again=options.steps is not None)
    (out / "results.md").write_text(table(results))
    print(f"\n{table(results)}\nwritten to {out}/results.json and results.md")
    return 1 if any(found["verdict"] == "failed" for found in results["steps"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
