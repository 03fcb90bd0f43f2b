"""Parts of the steps of gpu_check.py: sizes, the machine, and commands that end with all that they started."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIGTERM_STATUS = 128 + signal.SIGTERM
BLOCK_BYTES = 512  # of st_blocks
GATE = re.compile(r"before the first update, .*: (\S+) \(median\), (\S+) \(99 %\), (\S+) \(largest\)")


@dataclass(frozen=True)
class Size:
    """A model, its needs, and the amount of work."""

    gigabytes: float  # of its weights in bfloat16
    memory: int  # GiB of a GPU that an update needs (benchmarks/simulated_memory.py)
    problems: int  # to train on; fewer on a CPU, with shorter completions
    tokens: int  # of a completion, at most
    shots: int  # worked examples in a prompt: fourteen make 900 tokens
    settings: tuple[str, ...] = ()


SIZES = {
    "8b": Size(16.1, 62, 32, 128, 14),
    "135m": Size(0.27, 4, 32, 128, 1, ("optim=tiny",)),
    "100m": Size(0.21, 0, 12, 24, 14, ("optim.lr=1e-4",)),  # so that an update that is lost shows in the weights
    "small": Size(0.01, 0, 12, 48, 1, ("optim.lr=1e-4",)),
}
CHECKED = ("8b", "100m", "small")  # by --size
SMALL_STEPS = "small-"  # prefix of the steps at the smaller size, and of the files that they write


class FailedStepError(Exception):
    """A step did not do what it should; one line."""


class TimeOverError(FailedStepError):
    """A step's limit came before its end, which says nothing against the machine."""


@dataclass(frozen=True)
class Place:
    """The machine, and the options of the check."""

    out: Path
    size: str
    gpus: int
    memory: float  # GiB of the first GPU
    vllm: str | None  # the Python that has it
    until: float = float("inf")  # when the step's time is over, by time.monotonic()
    model_folder: Path | None = None  # a model to check with; None: a random one is written
    small_model_folder: Path | None = None  # the same for the steps at the smaller size
    prefix: str = ""  # of the files that a step writes: SMALL_STEPS at the smaller size

    def small(self) -> Place:
        """Return the same machine for the steps at the smaller size: SmolLM2-135M's shape, before 8B."""
        small = dataclasses.replace(self, model_folder=self.small_model_folder, prefix=SMALL_STEPS)
        if self.size == "8b":
            return dataclasses.replace(small, size="135m")
        return small

    @property
    def weights(self) -> Path:
        """The folder of the model."""
        return self.model_folder or self.out / f"{self.prefix}random-model"

    @property
    def shots(self) -> Path:
        """The worked examples of its prompts, written after a random model: if they exist, it is complete."""
        return self.out / f"{self.prefix}shots.jsonl"

    @property
    def sampler(self) -> str:
        return "vllm" if self.vllm else "hf"

    @property
    def model(self) -> list[str]:
        """Settings of a run of the model, on generated problems after worked examples."""
        size = SIZES[self.size]
        settings = [
            "model=llama3_8b",
            f"model.name={self.weights.name}",
            f"model.path={self.weights}",
            "data=gsm8k",
            "data.source=embedded",
            f"data.shots={self.shots}",
            f"data.train_problems={size.problems}",
            "data.test_problems=8",
            "data.n=4",
            "data.eval_n=2",
            f"sampler.max_new_tokens={size.tokens}",
            "sampler.top_k=0",
            f"sampler.prompts_per_shard={size.problems // 2}",
            "checkpoint.every_seconds=3600",
        ]
        if self.vllm:
            return [*settings, "sampler=vllm", f"sampler.python={self.vllm}", *size.settings]
        return [*settings, "sampler=hf", *size.settings]

    def folder_of_runs(self, name: str) -> Path:
        return self.out / "runs" / f"{self.prefix}{name}"

    def runs(self, name: str, file: str) -> list[Path]:
        """List a file of each run of a name."""
        return list(self.folder_of_runs(name).glob(f"*/{file}"))


class Command:
    """A command of a step, its output in OUT/NAME.log. When the block ends, so does all that it started.

    Its processes form a group of their own; a run's engines end with their run.
    """

    def __init__(self, place: Place, name: str, command: list[str]) -> None:
        self.log = place.out / f"{name}.log"
        self.until = place.until
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, is_done: Callable[[], object] = lambda: False) -> int | None:
        """Wait for its end, or until `is_done()`; returns its status or None. TimeOverError at the step's limit."""
        while self.process.poll() is None and not is_done():
            if time.monotonic() > self.until:
                raise TimeOverError(f"not done within the step's limit; {self.log.name} says how far it came")
            time.sleep(0.2)
        return self.process.poll()

    @property
    def last_line(self) -> str:
        """The last line of its output, at most 200 characters."""
        lines = self.output.strip().splitlines()
        if not lines:
            return "no output"
        return lines[-1].strip()[:200]

    @property
    def output(self) -> str:
        """Its output so far."""
        return self.log.read_bytes()[self.log_start :].decode(errors="replace")


def execute(place: Place, name: str, command: list[str]) -> str:
    """Run a command, and return its last line; FailedStepError if it does not end well and in time."""
    with Command(place, name, command) as running:
        status = running.wait()
    if status:
        raise FailedStepError(f"{running.last_line} (status {status}, {name}.log)")
    return running.last_line


def measure(place: Place, measurement: str, *arguments: str) -> dict[str, Any]:
    """Take a measurement of gpu_check_steps.py in a separate process; returns its figures."""
    name = place.prefix + measurement
    answer = place.out / f"{name}.json"
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.gpu_check_steps", measurement, str(answer), *arguments]
    execute(place, name, command)
    figures: dict[str, Any] = json.loads(answer.read_text())
    return figures


def experiment(place: Place, name: str, settings: list[str]) -> dict[str, Any]:
    """Run an experiment below OUT/runs, from where an earlier check was broken off; returns its summary."""
    execute(place, place.prefix + name, run_command(place, name, settings))
    run_folder = newest_run(place, name)
    if place.size == "8b":  # 32 GB, which nobody reads
        shutil.rmtree(run_folder / "model", ignore_errors=True)
    summary: dict[str, Any] = json.loads((run_folder / "summary.json").read_text())
    return summary


def run_command(place: Place, name: str, settings: list[str]) -> list[str]:
    overrides = last_of_each([f"output_dir={place.out / 'runs'}", f"name={place.prefix}{name}", *settings])
    return [sys.executable, "-m", "topr_exp", *overrides]


def last_of_each(words: Sequence[str]) -> list[str]:
    """Return settings once each, with their last value; options stay."""
    word_by_key = {}
    for word in words:
        key, _, _ = word.partition("=")
        word_by_key[key] = word
    return list(word_by_key.values())


def newest_run(place: Place, name: str) -> Path:
    """Return the folder of the run of a name that ended last; there are several after a change of the settings."""
    return max(place.runs(name, "summary.json"), key=lambda path: path.stat().st_mtime).parent


def forget(place: Place, name: str) -> None:
    """Remove an earlier check's run that is to be disturbed; completions and scores stay in the store."""
    shutil.rmtree(place.folder_of_runs(name), ignore_errors=True)


def figures_of(place: Place, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the sampler and the seconds of each stage."""
    figures: dict[str, Any] = {"sampler": place.sampler}
    for stage, seconds in summary["seconds"].items():
        figures[f"s {stage}"] = round(seconds, 1)
    return figures


def gate(place: Place, name: str) -> dict[str, float]:
    """Read from a run's log how far log π − log μ of a completion was from 0 before its first update."""
    log = place.out / f"{name}.log"
    matches = GATE.findall(log.read_text(errors="replace"))
    if not matches:
        raise FailedStepError(f"no line about log π − log μ before the first update in {log.name}")
    median, quantile_99, largest = map(float, matches[-1])
    return {
        "gate: |log π − log μ| median": median,
        "gate: |log π − log μ| 99 %": quantile_99,
        "gate: |log π − log μ| largest": largest,
    }


def bytes_held(place: Place) -> int:
    """Count the bytes that the check has written itself."""
    total = 0
    for path in place.out.rglob("*"):
        if path.is_file():
            total += path.stat().st_blocks * BLOCK_BYTES
    return total
