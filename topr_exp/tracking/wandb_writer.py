"""Weights & Biases: a run with an id that all attempts share, online or offline."""

import contextlib
import hashlib
import logging
import os
import shlex
import shutil
from pathlib import Path
from typing import Any, Literal

from topr_exp.runs.finished import DONE_FILE
from topr_exp.runs.provenance import user_overrides
from topr_exp.runs.records import Record
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.json_files import read_lines
from topr_exp.runtime.terminal import one_line
from topr_exp.schema import flatten
from topr_exp.tracking.writer import Point, Writer, chart_values, tracker_name

UPLOAD_SECONDS = 25.0  # for the client to upload the remaining records at the end
MAX_ERROR_LENGTH = 200
MAX_NAME_LENGTH = 48  # of the folder, in a run's id
SECTIONS = ("train", "eval", "rest")
COMPLETION_COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")


class WandbWriter(Writer):
    """A W&B run.

    Online W&B says by its last step which records it has. Offline each attempt writes all records into a new folder.
    """

    _run: Any = None  # of the client
    _has_callers_run = False  # a run of the caller's is under way, which `wandb.teardown` would end

    def open(self) -> None:
        import wandb

        logging.raiseExceptions = False  # else its debug log prints a traceback a line when the disk is full
        self._has_callers_run = most_recent_run() is not None
        if not self._has_callers_run:
            wandb.setup(wandb.Settings(silent=True))
        superseded_folders = list((self.folder / "wandb").glob("offline-run-*"))
        self._run = self._start()
        if self._run.settings.mode == "offline":
            for folder in superseded_folders:
                shutil.rmtree(folder, ignore_errors=True)
            self.location = f"W&B, offline: wandb sync {shlex.quote(str(self._run.settings.sync_dir))}"
        elif self._run.url:
            self.location = f"W&B: {self._run.url}"
        if self._run.resumed:
            self.last_step = int(self._run.step) - 1  # the client counts on to the next one
        for section in SECTIONS:
            self._run.define_metric(f"{section}/*", step_metric="optimizer_step")

    def _start(self) -> Any:
        """Start online if somebody is logged in and W&B answers, else offline; obey WANDB_MODE."""
        import wandb

        if wandb.setup().settings.mode != "online":
            return self._init(None)
        try:
            if wandb.login(prompt=False):
                return self._init(None)
        except Exception as error:
            self.warn(f"going on offline ({one_line(error, MAX_ERROR_LENGTH)})")
            if not self._has_callers_run:
                wandb.teardown()  # the failed attempt holds the id
        return self._init("offline")

    def _init(self, mode: Literal["offline"] | None) -> Any:
        """Start the client; mode None: WANDB_MODE's, else online."""
        import wandb

        config, _ = read_run_file(self.folder / "config.json")
        environment, _ = read_run_file(self.folder / "environment.json")
        return wandb.init(
            project=wandb_project(),
            group=self.folder.parent.name,
            job_type="train",
            name=self.folder.name,
            id=run_id(self.folder),
            resume="allow",
            reinit="create_new",  # a run of the caller's stays theirs
            dir=str(self.folder),
            mode=mode,
            config={**config.get("resolved", {}), "overrides": user_overrides(self.folder), "environment": environment},
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                finish_timeout=UPLOAD_SECONDS,
                finish_timeout_raises=True,
            ),
        )

    def log(self, point: Point) -> None:
        import wandb

        record = point.record
        values: Record = dict(chart_values(point.kind, record))
        # Of evaluations, those on the whole test set alone have completions in completions.jsonl.
        if point.kind != "train" and not record.get("subset"):
            rows = completion_rows(self.folder, record["iteration"])
            if rows:
                values["completions"] = wandb.Table(columns=list(COMPLETION_COLUMNS), data=rows)
        self._run.log(values, step=point.step)

    def finish(self, exit_code: int, *, preempted: bool) -> None:
        if (self.folder / DONE_FILE).exists():
            summary, _ = read_run_file(self.folder / "summary.json")
            for name, value in flatten(summary):
                if not isinstance(value, (dict, list)):
                    self._run.summary[tracker_name(name.replace(".", "/"))] = value
        if preempted:
            self._run.mark_preempting()
        self._run.finish(exit_code=exit_code)

    def release(self) -> None:
        import wandb

        logging.raiseExceptions = True
        if not self._has_callers_run and most_recent_run() in (None, self._run):  # none that began meanwhile
            wandb.teardown(exit_code=1)  # which else waits for its process when the interpreter exits

    def kill(self) -> None:
        import wandb

        with contextlib.suppress(AttributeError):  # not started yet
            wandb.setup()._connection._proc._process.kill()  # there is no public way; the constraints pin the version


def most_recent_run() -> Any:
    """Return the run that was begun last in this process, if it is under way; starts and prints nothing."""
    import wandb

    return wandb.sdk.wandb_setup.singleton().most_recent_active_run


def wandb_project() -> str:
    """Return the W&B project of this environment."""
    return os.environ.get("WANDB_PROJECT") or "topr_exp"


def run_id(folder: Path) -> str:
    """Return the W&B id: equal for every attempt at a run, another one if the folder was removed and made again."""
    environment = (folder / "environment.json").read_bytes()
    return f"{folder.name[:MAX_NAME_LENGTH]}-{hashlib.sha256(environment).hexdigest()[:8]}"


def completion_rows(folder: Path, iteration: int) -> list[list[Any]]:
    """Return rows of COMPLETION_COLUMNS from a run's completions.jsonl, of the evaluation after an iteration."""
    rows = []
    entries, _ = read_lines(folder / "completions.jsonl")
    for entry in entries:
        if entry.get("set") == "test" and entry.get("iteration") == iteration:
            rows.append([entry.get(name) for name in COMPLETION_COLUMNS])
    return rows
