"""A run's folder: what it is, how far it got, what it measured. Every file is whole or absent, `DONE` comes last."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any

from topr_exp import attempt, interrupts, progress, world
from topr_exp.config import Config
from topr_exp.files import write_json, write_text
from topr_exp.provenance import environment
from topr_exp.schema import plain
from topr_exp.store.files import disk_errors, write_whole
from topr_exp.types import TOPRError

STAGES = ("problems", "sampling", "grading", "composition", "scoring", "training", "evaluation")


class RunFolder:
    """The folder of a run, this process's alone within a `with` block, which also notes how the attempt ended.

    Opening raises TOPRError when the folder holds another experiment, when another process is at work in it, or when
    it can't be written. What a finished run left may be read by many.
    """

    def __init__(self, config: Config) -> None:
        self.path, self._config = config.folder, config
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.counts: dict[str, int] = {}
        self.stage_name = ""
        self._began = time.monotonic()
        self._attempt: dict[str, Any] = {}
        self._progress: dict[str, Any] | None = None
        self._metrics: IO[str] | None = None
        self._held = contextlib.ExitStack()

    def __enter__(self) -> RunFolder:
        with disk_errors(f"write in {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)
        self.refuse_another(self.read("config.json"))
        if self.done:
            return self
        with contextlib.ExitStack() as held:
            held.enter_context(attempt.occupy(self.path))
            if self.read("config.json") is None:
                self._describe(self._config)
            state = self.read("state.json") or {}
            self.seconds |= state.get("seconds", {})
            self.counts |= state.get("counts", {})
            self._attempt = attempt.description(state.get("attempt", {}).get("number", 0) + 1)
            attempt.clear(self.path)
            self.save_state()
            self._held = held.pop_all()
        progress.listener = self._note
        world.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        progress.listener = None
        if self._metrics is not None:
            with contextlib.suppress(OSError):  # each line was flushed when it was written
                self._metrics.close()
        with self._held:
            if error is None or not self._attempt:
                return
            stopped = isinstance(error, (interrupts.Interrupted, KeyboardInterrupt))
            reason = world.cause(error)
            if not stopped and not (isinstance(reason, world.Gone) and (self.path / attempt.ERROR).exists()):
                attempt.record_error(self.path, reason)
            with contextlib.suppress(TOPRError):  # a full disk: the error on its way says so
                self.save_state("stopped" if stopped else "failed")

    def refuse_another(self, stored: Any) -> None:
        """Raise TOPRError, with the differences, when `stored` (config.json) is of another experiment."""
        if stored is not None and (differences := differing(stored["experiment"], self._config.experiment)):
            raise TOPRError(f"{self.path} holds another experiment ({'; '.join(differences[:4])}); set another name")

    def refuse_changed(self, what: str, found: dict[str, str]) -> None:
        """Raise TOPRError when one of these hashes is not what an earlier attempt noted; note what is new.

        what: `files`, by setting and file, or `models`, by setting.
        """
        stored = self.read("inputs.json") or {}
        if what not in stored:
            if not self.done:
                write_json(self.path / "inputs.json", {**stored, what: found})
            return
        before = stored[what]
        if changed := [key for key in {**before, **found} if before.get(key) != found.get(key)]:
            raise TOPRError(f"{changed[0]} has changed since {self.path} was begun; set another name, or remove that")

    def _describe(self, config: Config) -> None:
        """Write down what will run and with what; the config last, since it says that the rest is there."""
        from omegaconf import OmegaConf

        write_text(self.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain(config))))
        write_json(self.path / "environment.json", environment(config))
        write_json(self.path / "config.json", {"experiment": config.experiment, "resolved": plain(config)})

    def read(self, name: str) -> Any:
        """A JSON file of the folder; None where it is absent."""
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise TOPRError(f"{self.path / name} is damaged; move the folder away to start again") from None

    @property
    def done(self) -> bool:
        return (self.path / "DONE").exists()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, then the mark that everything is there."""
        write_json(self.path / "summary.json", summary)
        self._progress = None
        self.save_state("done")
        write_text(self.path / "DONE", "")

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under `name`; the seconds of earlier, killed attempts are kept."""
        assert name in STAGES, name
        interrupts.check()
        self.stage_name, self._began, self._progress = name, time.monotonic(), None
        self.save_state()
        try:
            yield
        finally:
            self.lap()
        self.save_state()

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Time a block within a stage under the name of another one."""
        self.lap()
        stage, self.stage_name = self.stage_name, name
        try:
            yield
        finally:
            self.lap()
            self.stage_name = stage

    def lap(self) -> None:
        """Book the seconds since the last lap to the stage at hand."""
        now = time.monotonic()
        self.seconds[self.stage_name] += now - self._began
        self._began = now

    def count(self, name: str, amount: int) -> None:
        """Add to a counter of work done by this run (tokens sampled, tokens scored) what all its processes did."""
        self.counts[name] = self.counts.get(name, 0) + world.total(amount)

    def save_state(self, status: str = "running") -> None:
        """Write what `python -m topr_exp.sweeps status` shows, and what a later attempt needs of this one."""
        state = {"status": status, "stage": self.stage_name, "progress": self._progress, "attempt": self._attempt}
        write_json(self.path / "state.json", {**state, "seconds": self.seconds, "counts": self.counts})

    def _note(self, done: dict[str, Any]) -> None:
        self._progress = done
        self.save_state()

    # ---- metrics.jsonl: one line an update

    def rewind(self, iteration: int, step: int) -> None:
        """Drop the lines after `step` of `iteration` (and a half-written one): they will be written again."""
        path = self.path / "metrics.jsonl"
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if (record["iteration"], record["step"]) <= (iteration, step):
                    kept.append(line)
        write_text(path, "".join(line + "\n" for line in kept))
        with disk_errors(f"write {path}"):
            if self._metrics is not None:
                self._metrics.close()
            self._metrics = path.open("a", encoding="utf-8")

    def log(self, record: dict[str, float]) -> None:
        """Append the record of an update; null for what is not finite, which JSON does not have."""
        assert self._metrics is not None, "rewind first"
        with disk_errors(f"write {self.path / 'metrics.jsonl'}"):
            known = {name: value if math.isfinite(value) else None for name, value in record.items()}
            self._metrics.write(json.dumps(known) + "\n")
            self._metrics.flush()

    def before_checkpoint(self, step: int, steps: int) -> None:
        """Make every logged line durable, since the checkpoint counts on them, and note how far the run got."""
        assert self._metrics is not None, "rewind first"
        with disk_errors(f"write {self.path / 'metrics.jsonl'}"):
            os.fsync(self._metrics.fileno())
        self.lap()
        self._progress = {**(self._progress or {}), "done": step, "total": steps, "unit": "updates"}
        self.save_state()

    def save_training_set(
        self, iteration: int, examples: Any, summary: dict[str, Any], sources: dict[str, str]
    ) -> None:
        """Which completions (rows of the rollouts) an iteration trains on, what they are and where they lie."""
        import numpy as np

        target = self.path / f"iteration-{iteration}"
        with disk_errors(f"write in {target}"):
            target.mkdir(exist_ok=True)
            buffer = io.BytesIO()
            np.save(buffer, examples)
            write_whole(target / "examples.npy", buffer.getvalue())
        write_json(target / "sources.json", sources)
        write_json(target / "training_set.json", summary)

    def save_rounds(self, iteration: int, trained: int, baseline: float) -> None:
        """What an iteration of rounds trained on, from its metrics."""
        import numpy as np

        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        shares = [record["positive_share"] for record in map(json.loads, lines) if record["iteration"] == iteration]
        target = self.path / f"iteration-{iteration}"
        target.mkdir(exist_ok=True)
        summary = {"n_train": trained, "positive_share": float(np.mean(shares)), "baseline": baseline}
        write_json(target / "training_set.json", {**summary, "effective_positive": None})

    def evaluations(self) -> list[dict[str, Any]]:
        """The records of eval.jsonl on the whole test set, one an iteration."""
        lines = (self.path / "eval.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if not record.get("subset")]

    def add_evaluation(self, record: dict[str, Any]) -> None:
        """Put an evaluation into eval.jsonl, in place of an earlier one of the same weights and problems."""
        path = self.path / "eval.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        keys = [evaluated(json.loads(line)) for line in lines]
        place = keys.index(evaluated(record)) if evaluated(record) in keys else len(lines)
        lines[place : place + 1] = [json.dumps(record)]  # a resumed run must not change the order
        write_text(path, "".join(line + "\n" for line in lines))


class Onlooker(RunFolder):
    """A run's folder for its processes that don't lead: they read it, and leave all writing to process 0."""

    def __enter__(self) -> RunFolder:
        if not self.done:
            world.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(reason := world.cause(error), world.Gone):
            attempt.record_error(self.path, reason)  # all that process 0 may learn is that this one is gone

    def refuse_changed(self, what: str, found: dict[str, str]) -> None:
        pass

    def finish(self, summary: dict[str, Any]) -> None:
        pass

    def save_state(self, status: str = "running") -> None:
        pass

    def rewind(self, iteration: int, step: int) -> None:
        pass

    def log(self, record: dict[str, float]) -> None:
        pass

    def before_checkpoint(self, step: int, steps: int) -> None:
        self.lap()

    def save_training_set(
        self, iteration: int, examples: Any, summary: dict[str, Any], sources: dict[str, str]
    ) -> None:
        pass

    def save_rounds(self, iteration: int, trained: int, baseline: float) -> None:
        pass

    def add_evaluation(self, record: dict[str, Any]) -> None:
        pass


def open_run(config: Config) -> RunFolder:
    """The folder of a run, for a process of it."""
    return RunFolder(config) if world.leads() else Onlooker(config)


def evaluated(record: dict[str, Any]) -> tuple[Any, ...]:
    """What an evaluation is of: the iteration, the update within it (None: its end), and whether a part of the test."""
    return record["iteration"], record.get("step"), record.get("subset", False)


def differing(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The settings that differ, as `key: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted({*old, *new}):
            found += differing(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
        return found
    return [] if old == new else [f"{prefix}: {old} -> {new}"]
