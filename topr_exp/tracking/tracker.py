"""Forward a run's records to a tracker from a thread, so that no network, disk or client slows or ends the run.

The run's files hold all: an attempt first forwards what the tracker lacks. `Tracker` bounds calls that block or raise.
"""

import contextlib
import hashlib
import logging
import queue
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from topr_exp.config.groups import TrackingConfig
from topr_exp.runs.finished import MARK
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.provenance import user_overrides
from topr_exp.runs.records import Record, is_update, on_one_axis
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime import distributed
from topr_exp.runtime.json_files import as_number, read_lines
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import say, warn
from topr_exp.schema import flatten
from topr_exp.types import TOPRError

FINISH_SECONDS = 30.0  # longest wait for the tracker at the end of a run
STOP_SECONDS = 10.0  # the same where the run was stopped or failed
UPLOAD_SECONDS = 25.0  # for W&B's client to upload the rest at the end
MODEL_SECONDS = 3600.0  # more for both where the trained model is uploaded, 32 GB of an 8B model
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard"}
# What is shown at the top, with maj@K; the rest has a separate section.
CHARTS = {"train": ("loss", "ess", "log_ratio_pos", "log_ratio_neg"), "eval": ("pass@1", "length")}
AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")
COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")


class Tracker:
    """Forwards what a run records during a `with` block; a no-op for tracking=none and for finished runs."""

    def __init__(self, tracking: TrackingConfig, folder: RunFolder) -> None:
        self.name, self._tracking, self._folder = tracking.name, tracking, folder
        self._queue: queue.SimpleQueue[tuple[list[Record], list[Record]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._forward, name="tracker", daemon=True)
        self._exit_code, self._preempted, self._given_up = 0, False, False
        self._writer: Writer

    def __enter__(self) -> "Tracker":
        if distributed.is_main_process() and self.name != "none" and not self._folder.done:
            metrics, evaluations = self._folder.metrics, self._folder.evaluations
            self._writer = writer_of(self._tracking, self._folder.path, self._warn)
            self._thread.start()
            self._queue.put((read_lines(metrics.path)[0], read_lines(evaluations.path)[0]))
            metrics.listen(lambda record: self._queue.put(([record], [])))
            evaluations.listen(lambda record: self._queue.put(([], [record])))
        return self

    def _forward(self) -> None:
        """Write what arrives until the run ends; runs in the thread."""
        try:
            self._writer.open()
            while (records := self._queue.get()) is not None:
                self._writer.write(*records)
            self._writer.finish(self._exit_code, preempted=self._preempted)
        except (Exception, SystemExit) as error:  # W&B's client exits where its process failed
            self._give_up(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": "))
        finally:
            with contextlib.suppress(Exception, SystemExit):
                self._writer.release()

    def _warn(self, text: str) -> None:
        warn(f"{TITLES[self.name]}: {text}; the run goes on, and its files are complete")

    def _give_up(self, text: str) -> None:
        if not self._given_up:
            self._given_up = True
            self._warn(text)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._thread.ident is None:
            return
        self._exit_code, self._preempted = int(error is not None), isinstance(error, (Interrupted, KeyboardInterrupt))
        self._queue.put(None)
        uploads = self._tracking.model_artifact and self._writer.shown  # and the client did answer
        seconds = STOP_SECONDS if error is not None else FINISH_SECONDS + MODEL_SECONDS * bool(uploads)
        began, asked = time.monotonic(), self._folder.stop_flag.requested
        while self._thread.is_alive() and time.monotonic() - began < (STOP_SECONDS if asked() else seconds):
            self._thread.join(min(seconds, 1.0))
        if self._thread.is_alive():
            waited = time.monotonic() - began
            self._give_up(f"it did not finish within {waited:.0f} s of the run's end and was ended")
            self._writer.kill()
            self._thread.join(1.0)
        if self._writer.shown:
            say(self._writer.shown)


def send_finished(tracking: TrackingConfig, folder: Path) -> str:
    """Send all that a finished run recorded, but for what the tracker has; returns a line that says where it is."""
    writer = writer_of(tracking, folder, warn)
    try:
        writer.open()
        writer.write(read_lines(folder / "metrics.jsonl")[0], read_lines(folder / "eval.jsonl")[0])
        writer.finish(0, preempted=False)
    except (Exception, SystemExit) as error:  # W&B's client exits where its process failed
        reason = " ".join(str(error).split())[:300]
        raise TOPRError(f"{TITLES[tracking.name]}: {type(error).__name__}: {reason}".rstrip(": ")) from error
    finally:
        with contextlib.suppress(Exception, SystemExit):
            writer.release()
    return writer.shown


def writer_of(tracking: TrackingConfig, folder: Path, warn: Callable[[str], None]) -> "Writer":
    return (TensorBoardWriter if tracking.name == "tensorboard" else WandbWriter)(tracking, folder, warn)


@dataclass
class Writer:
    """One run in a tracker: `open`, `log`, `finish` and `release` are called from one thread, in this order.

    kind of a record: train, eval, or whole: an evaluation on the whole test set where others are on a part of it.
    """

    tracking: TrackingConfig
    folder: Path
    warn: Callable[[str], None]
    sent: int = -1  # the last step that the tracker has
    shown: str = ""  # a line for the user: where to find the run
    run: Any = None  # of the client
    ends: dict[int, Record] = field(default_factory=dict)  # iteration -> its last update
    has_curve: bool = False  # of evaluations on a part of the test set; it comes before those on all of it

    def open(self) -> None: ...

    def log(self, step: int, kind: str, record: Record) -> None: ...

    def write(self, metrics: list[Record], evaluations: list[Record]) -> None:
        """Write records in order, without those that the tracker has.

        After s updates an update, an evaluation on a part of the test set and one on all of it have the steps 3s,
        3s + 1 and 3s + 2, so that the last step says what the tracker has.
        """
        updates, tests = on_one_axis([*self.ends.values(), *metrics], evaluations)
        self.has_curve |= any(record.get("subset") for record in tests)
        whole = "whole" if self.has_curve else "eval"
        rows = [(0, "train", record) for record in updates]
        rows += [(1, "eval", record) if record.get("subset") else (2, whole, record) for record in tests]
        for place, kind, record in sorted(rows, key=lambda row: (row[2]["optimizer_step"], row[0])):
            if (step := 3 * record["optimizer_step"] + place) > self.sent:
                self.log(step, kind, record)
                self.sent = step
        self.ends |= {record["iteration"]: record for record in filter(is_update, metrics)}

    def finish(self, exit_code: int, *, preempted: bool) -> None: ...

    def release(self) -> None: ...

    def kill(self) -> None:
        """Make a call that hangs fail, from another thread."""


class WandbWriter(Writer):
    """A W&B run with an id that all attempts share.

    Online W&B says by its last step what it has. Offline each attempt writes all records into a new folder.
    """

    def open(self) -> None:
        import wandb

        logging.raiseExceptions = False  # else its debug log prints a traceback a line when the disk is full
        wandb.setup(wandb.Settings(silent=True))
        earlier = list((self.folder / "wandb").glob("offline-run-*"))
        run = self.run = self._start()
        if run.settings.mode == "offline":
            for folder in earlier:  # superseded by the new one
                shutil.rmtree(folder, ignore_errors=True)
            self.shown = f"W&B, offline: wandb sync {shlex.quote(str(run.settings.sync_dir))}"
        elif run.url:
            self.shown = f"W&B: {run.url}"
        if run.resumed:
            self.sent = int(run.step) - 1
        for section in ("train", "eval", "rest"):
            run.define_metric(f"{section}/*", step_metric="optimizer_step")

    def _start(self) -> Any:
        """Start online where somebody is logged in and W&B answers, else offline; obey WANDB_MODE."""
        import wandb

        mode: Literal["offline"] | None = None
        if wandb.setup().settings.mode == "online":
            try:
                if wandb.login(prompt=False):
                    return self._init()
            except Exception as error:
                self.warn(f"going on offline ({' '.join(str(error).split())[:200]})")
                wandb.teardown()  # the failed attempt holds the id
            mode = "offline"
        return self._init(mode)

    def _init(self, mode: Literal["offline"] | None = None) -> Any:
        import wandb

        config, environment = (read_run_file(self.folder / name)[0] for name in ("config.json", "environment.json"))
        quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        upload = UPLOAD_SECONDS + MODEL_SECONDS * self.tracking.model_artifact
        return wandb.init(
            **{name: getattr(self.tracking, name) for name in ("project", "entity", "group", "job_type")},
            name=self.folder.name,
            id=run_id(self.folder),
            resume="allow",
            reinit="create_new",  # a run of the caller's stays theirs
            dir=str(self.folder),
            mode=mode,
            config={**config["resolved"], "overrides": user_overrides(self.folder), "environment": environment},
            settings=wandb.Settings(**quiet, finish_timeout=upload, finish_timeout_raises=True),
        )

    def log(self, step: int, kind: str, record: Record) -> None:
        import wandb

        whole = kind != "train" and not record.get("subset")
        rows = sample_rows(self.folder, record["iteration"]) if whole else []
        table = {"completions": wandb.Table(columns=list(COLUMNS), data=rows)} if rows else {}
        self.run.log({**numbers(kind, record), **table}, step=step)

    def finish(self, exit_code: int, *, preempted: bool) -> None:
        if (self.folder / MARK).exists():
            for name, value in flatten(read_run_file(self.folder / "summary.json")[0]):
                if not isinstance(value, (dict, list)):
                    self.run.summary[allowed(name.replace(".", "/"))] = value
            if self.tracking.model_artifact:
                self.run.log_model(str(self.folder / "model"), name=f"model-{self.run.id}")
        if preempted:
            self.run.mark_preempting()
        self.run.finish(exit_code=exit_code)

    def release(self) -> None:
        import wandb

        logging.raiseExceptions = True
        if wandb.run is None:  # none of the caller's
            wandb.teardown(exit_code=1)  # which else waits for its process when the interpreter exits

    def kill(self) -> None:
        import wandb

        with contextlib.suppress(AttributeError):  # not started yet
            wandb.setup()._connection._proc._process.kill()  # there is no public way; the constraints pin the version


def run_id(folder: Path) -> str:
    """The W&B id: equal for every attempt at a run, another one when the folder was removed and made again."""
    made = (folder / "environment.json").read_bytes()
    return f"{folder.name[:48]}-{hashlib.sha256(made).hexdigest()[:8]}"


class TensorBoardWriter(Writer):
    """Numbers in event files of the run's folder; each attempt writes all records, which supersede those before."""

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run = SummaryWriter(str(self.folder / "tensorboard"), purge_step=0)  # TensorBoard forgets earlier points
        self.shown = f"TensorBoard: tensorboard --logdir {shlex.quote(str(self.folder.parent))}"

    def log(self, step: int, kind: str, record: Record) -> None:
        for name, value in numbers(kind, record).items():
            if name not in AXES and value is not None:
                self.run.add_scalar(name, value, record["optimizer_step"])

    def release(self) -> None:
        if self.run is not None:
            self.run.close()


def numbers(kind: str, record: Record) -> dict[str, float]:
    """Name a record's numbers train/loss, eval/pass_at_1 and so on (CHARTS), others rest/...; the axes stand bare."""
    samples = record["samples"] if kind == "train" else record["samples_seen"]
    row = {"optimizer_step": record["optimizer_step"], "samples": samples, "iteration": record["iteration"]}
    charts = {*CHARTS.get(kind, ()), *(name for name in record if name.startswith("maj@") and kind == "eval")}
    found = dict(record)
    for curve in ("pass@k", "maj@k"):
        found |= {f"{curve[:-1]}{k}": point["value"] for k, point in record.get(curve, {}).items()}
    for name, value in found.items():
        if as_number(value) is not None and not name.endswith("_se") and name not in (*AXES, "maj@1"):
            row[f"{kind}/{name}" if name in charts else f"rest/{kind}_{name}"] = value
    return {allowed(name): value for name, value in row.items()}


def allowed(name: str) -> str:
    """Rewrite a name so that trackers can sort and filter by it: letters, digits, _ and /."""
    return "".join(ch if ch.isalnum() or ch in "_/" else "_" for ch in name.replace("@", "_at_"))


def sample_rows(folder: Path, iteration: int) -> list[list[Any]]:
    """Read rows of COLUMNS from a run's completions.jsonl: those of the evaluation after an iteration."""
    entries = [entry for entry in read_lines(folder / "completions.jsonl")[0] if entry.get("set") == "test"]
    return [[entry.get(name) for name in COLUMNS] for entry in entries if entry.get("iteration") == iteration]
