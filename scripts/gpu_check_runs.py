"""What the steps of gpu_check.py are made of: sizes, the machine, and commands that end with all that they started."""

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
GATE = re.compile(r"before the first update, .*: (\S+) \(median\), (\S+) \(99 %\), (\S+) \(largest\)")


@dataclass(frozen=True)
class Size:
    """A model, what it needs, and how much it is asked to do."""

    gigabytes: float  # of its weights in bfloat16
    memory: int  # GiB of a GPU that an update needs (benchmarks/simulated_memory.py)
    problems: int  # to train on; on a CPU fewer, and shorter answers
    tokens: int  # of an answer, at most
    shots: int  # worked examples in a prompt: fourteen make 900 tokens
    settings: tuple[str, ...] = ()


SIZES = {
    "8b": Size(16.1, 62, 32, 128, 14),
    "135m": Size(0.27, 4, 32, 128, 1, ("optim=tiny",)),
    "100m": Size(0.21, 0, 12, 24, 14, ("optim.lr=1e-4",)),  # so that an update that is lost shows in the weights
    "small": Size(0.01, 0, 12, 48, 1, ("optim.lr=1e-4", "sampler.cpu_cache_gib=0.25")),
}
CHECKED = ("8b", "100m", "small")  # by --size
SMALL_STEPS = "small-"  # how the steps at the smaller size begin, and what they write


class Failed(Exception):
    """A step did not do what it should; one line."""


class TimeOver(Failed):
    """A step's limit came before its end, which says nothing against the machine."""


@dataclass(frozen=True)
class Place:
    """What this machine has and what is asked of it."""

    out: Path
    size: str
    gpus: int
    memory: float  # GiB of the first GPU
    vllm: str | None  # the Python that has it
    until: float = float("inf")  # when the step's time is over, by time.monotonic()
    given: Path | None = None  # the folder of a model to check with; None: a random one is written
    given_small: Path | None = None  # the same for the steps at the smaller size
    prefix: str = ""  # of what a step writes: SMALL_STEPS for those at the smaller size

    def small(self) -> Place:
        """The same machine for the steps at the smaller size: SmolLM2-135M's shape, before 8B."""
        size = "135m" if self.size == "8b" else self.size
        return dataclasses.replace(self, size=size, given=self.given_small, prefix=SMALL_STEPS)

    @property
    def weights(self) -> Path:
        """The folder of the model."""
        return self.given or self.out / f"{self.prefix}random-model"

    @property
    def shots(self) -> Path:
        """The worked examples of its prompts, written after a random model: where they are, it is whole."""
        return self.out / f"{self.prefix}shots.jsonl"

    @property
    def sampler(self) -> str:
        return "vllm" if self.vllm else "hf"

    @property
    def model(self) -> list[str]:
        """A run of the model, on generated problems after worked examples."""
        size = SIZES[self.size]
        sampler = ["sampler=vllm", f"sampler.python={self.vllm}"] if self.vllm else ["sampler=hf"]
        more = [text for text in size.settings if self.vllm or not text.startswith("sampler.")]
        return [
            "model=llama3_8b", f"model.name={self.weights.name}", f"model.path={self.weights}",
            "data=gsm8k", "data.source=embedded", f"data.fewshot_file={self.shots}", f"data.shots={size.shots}",
            f"data.train_problems={size.problems}", "data.test_problems=8", "data.n=4", "data.eval_n=2",
            f"sampler.max_new_tokens={size.tokens}", "sampler.top_k=0",
            f"sampler.prompts_per_shard={size.problems // 2}", "checkpoint.every_seconds=3600", *sampler, *more,
        ]  # fmt: skip

    def runs(self, name: str, file: str) -> list[Path]:
        """A file of each run of that name."""
        return [*(self.out / "runs" / f"{self.prefix}{name}").glob(f"*/{file}")]


class Command:
    """A command of a step, its output in OUT/NAME.log. When the block ends, so does all that it started.

    Its processes form a group of their own; a run's engines end with their run.
    """

    def __init__(self, place: Place, name: str, command: list[str]) -> None:
        self.log, self.until = place.out / f"{name}.log", place.until
        with self.log.open("ab") as log:
            self.begins = log.tell()
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, done: Callable[[], object] = lambda: False) -> int | None:
        """Its status, or None as soon as `done` is true; TimeOver where the step's time is over before."""
        while self.process.poll() is None and not done():
            if time.monotonic() > self.until:
                raise TimeOver(f"not done within the step's limit; {self.log.name} says how far it came")
            time.sleep(0.2)
        return self.process.poll()

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.text.splitlines() if line.strip()]
        return lines[-1][:200] if lines else "no output"

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.log.read_bytes()[self.begins :].decode(errors="replace")


def execute(place: Place, name: str, command: list[str]) -> str:
    """Run a command, and return its last line; Failed where it does not end well and in time."""
    with Command(place, name, command) as running:
        status = running.wait()
    if status:
        raise Failed(f"{running.last_line} (status {status}, {name}.log)")
    return running.last_line


def child(place: Place, measurement: str, *arguments: str) -> dict[str, Any]:
    """A measurement of gpu_check_steps.py; returns what it writes."""
    name = place.prefix + measurement
    answer = place.out / f"{name}.json"
    answer.unlink(missing_ok=True)
    module = [sys.executable, "-m", "scripts.gpu_check_steps"]
    execute(place, name, [*module, measurement, str(answer), *arguments])
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def experiment(place: Place, name: str, settings: list[str]) -> dict[str, Any]:
    """A run below OUT/runs; returns its summary. It goes on where an earlier check was broken off."""
    execute(place, place.prefix + name, run_command(place, name, settings))
    newest = newest_run(place, name)
    if place.size == "8b":  # 32 GB, which nobody reads
        shutil.rmtree(newest / "model", ignore_errors=True)
    found: dict[str, Any] = json.loads((newest / "summary.json").read_text())
    return found


def run_command(place: Place, name: str, settings: list[str]) -> list[str]:
    words = last_of_each([f"output_dir={place.out / 'runs'}", f"name={place.prefix}{name}", *settings])
    return [sys.executable, "-m", "topr_exp", *words]


def last_of_each(words: Sequence[str]) -> list[str]:
    """Settings of which each is given once, with its last value; options stay."""
    last = {word.partition("=")[0] if "=" in word else word: word for word in words}
    return list(last.values())


def newest_run(place: Place, name: str) -> Path:
    """The folder of the run of that name that ended last; there are several after a change of the settings."""
    return max(place.runs(name, "summary.json"), key=lambda path: path.stat().st_mtime).parent


def forget(place: Place, name: str) -> None:
    """Remove what an earlier check left of a run that is to be disturbed; completions and scores stay in the store."""
    shutil.rmtree(place.out / "runs" / name, ignore_errors=True)


def figures_of(place: Place, summary: dict[str, Any]) -> dict[str, Any]:
    """What samples, and the seconds of each stage."""
    return {"sampler": place.sampler} | {f"s {stage}": round(s, 1) for stage, s in summary["seconds"].items()}


def gate(place: Place, name: str) -> dict[str, float]:
    """How far log π − log μ of a completion was from 0 before a run's first update, by the line that it wrote."""
    found = GATE.findall((place.out / f"{name}.log").read_text(errors="replace"))
    if not found:
        raise Failed(f"no line about log π − log μ before the first update in {name}.log")
    parts = zip(("median", "99 %", "largest"), found[-1], strict=True)
    return {f"gate: |log π − log μ| {part}": float(value) for part, value in parts}


def held(place: Place) -> int:
    """Bytes that the check has written itself."""
    return sum(path.stat().st_blocks * 512 for path in place.out.rglob("*") if path.is_file())
