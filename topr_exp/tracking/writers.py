"""Write a run's records by the clients of W&B and TensorBoard. Any call may block or raise: `Tracker` bounds that."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from topr_exp.config.groups import TrackingConfig
from topr_exp.runs.attempt import overrides
from topr_exp.runs.records import Record
from topr_exp.runtime.files import read_lines, read_object

AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")
COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")
UPLOAD_SECONDS = 25.0  # for W&B's client to upload the rest at the end


@dataclass
class Writer:
    """One run in a tracker: `open`, `log`, `finish` and `release` are called from one thread, in this order."""

    tracking: TrackingConfig
    folder: Path
    warn: Callable[[str], None]
    sent: int = -1  # the last step that the tracker has
    shown: str = ""  # a line for the user: where to find the run
    run: Any = None  # of the client

    def open(self) -> None: ...

    def log(self, step: int, kind: str, record: Record) -> None:
        """Write a record; kind: train, curve (an evaluation on a part of the test set) or eval (on all of it)."""

    def finish(self, exit_code: int, *, preempted: bool) -> None: ...

    def release(self) -> None:
        """Free what the client holds, also after an error."""

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
        for kind in ("train", "curve", "eval"):
            run.define_metric(f"{kind}/*", step_metric="optimizer_step")

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

        config, environment = (read_object(self.folder / name)[0] for name in ("config.json", "environment.json"))
        quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        return wandb.init(
            **{name: getattr(self.tracking, name) for name in ("project", "entity", "group", "job_type")},
            name=self.folder.name,
            id=run_id(self.folder),
            resume="allow",
            dir=str(self.folder),
            mode=mode,
            config={**config["resolved"], "overrides": overrides(self.folder), "environment": environment},
            settings=wandb.Settings(**quiet, finish_timeout=UPLOAD_SECONDS, finish_timeout_raises=True),
        )

    def log(self, step: int, kind: str, record: Record) -> None:
        import wandb

        rows = sample_rows(self.folder, record["iteration"]) if kind == "eval" else []
        table = {"completions": wandb.Table(columns=list(COLUMNS), data=rows)} if rows else {}
        self.run.log({**numbers(kind, record), **table}, step=step)

    def finish(self, exit_code: int, *, preempted: bool) -> None:
        if (self.folder / "DONE").exists():
            self.run.summary.update(dict(leaves(read_object(self.folder / "summary.json")[0])))
            if self.tracking.model_artifact:
                self.run.log_model(str(self.folder / "model"), name=f"model-{self.run.id}")
        if preempted:
            self.run.mark_preempting()
        self.run.finish(exit_code=exit_code)

    def release(self) -> None:
        import wandb

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


# ---- records as rows


def numbers(kind: str, record: Record) -> dict[str, float]:
    """Name a record's numbers train/loss, curve/pass_at_1, eval/pass_at_1; the axes stand bare.

    kind: train, curve (part of the test set) or eval (all of it).
    """
    samples = record["samples"] if kind == "train" else record["samples_seen"]
    row = {"optimizer_step": record["optimizer_step"], "samples": samples, "iteration": record["iteration"]}
    row |= {f"{kind}/{name}": value for name, value in record.items() if name not in AXES and is_number(value)}
    for curve in ("pass@k", "maj@k"):  # of an evaluation
        for k, point in record.get(curve, {}).items():
            name = f"{kind}/{curve[:-1]}{k}"
            row |= {f"{name}_{end}": point[end] for end in ("low", "high") if is_number(point.get(end))}
            row[name] = point["value"]
    return {allowed(name): value for name, value in row.items()}


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the summary's values by path, as final/pass_at_1; lists (the iterations' records) are curves already."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{prefix}{name}/")
        elif not isinstance(item, list):
            yield allowed(f"{prefix}{name}"), item


def allowed(name: str) -> str:
    """Rewrite a name so that trackers can sort and filter by it: letters, digits, _ and /."""
    return "".join(ch if ch.isalnum() or ch in "_/" else "_" for ch in name.replace("@", "_at_"))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sample_rows(folder: Path, iteration: int) -> list[list[Any]]:
    """Read rows of COLUMNS from a run's completions.jsonl: those of the evaluation after an iteration."""
    entries = [entry for entry in read_lines(folder / "completions.jsonl")[0] if entry.get("set") == "test"]
    return [[entry.get(name) for name in COLUMNS] for entry in entries if entry.get("iteration") == iteration]
