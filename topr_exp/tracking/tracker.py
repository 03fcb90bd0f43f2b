"""Forwarding of a run's records to a tracker, by a thread, so that no network, disk or client slows or ends the run.

The run's files hold all: an attempt first forwards the records that the tracker lacks. `Tracker` bounds calls that
block or raise.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from topr_exp.config.groups import TrackingConfig
from topr_exp.runs.attempt import error_line
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.records import Record
from topr_exp.runtime import distributed
from topr_exp.runtime.files import refuse_linked_folders
from topr_exp.runtime.json_files import read_lines
from topr_exp.runtime.stop import Interrupted
from topr_exp.runtime.terminal import say, warn
from topr_exp.tracking.tensorboard_writer import TensorBoardWriter
from topr_exp.tracking.wandb_writer import WandbWriter
from topr_exp.tracking.writer import Writer
from topr_exp.types import TOPRError

FINISH_SECONDS = 30.0  # longest wait for the tracker at the end of a run
STOP_SECONDS = 10.0  # of one that was stopped or failed
KILL_SECONDS = 1.0
POLL_SECONDS = 1.0  # between looks at the stop flag
MAX_ERROR_LENGTH = 300
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard"}


class Records(NamedTuple):
    """Lines of a run's files, to be forwarded."""

    metrics: list[Record]
    evaluations: list[Record]


class Tracker:
    """Forwards a run's records during a `with` block; a no-op for tracking=none and for finished runs."""

    def __init__(self, tracking: TrackingConfig, folder: RunFolder) -> None:
        self.name = tracking.name
        self._folder = folder
        self._queue: queue.SimpleQueue[Records | None] = queue.SimpleQueue()  # None: the run ended
        self._thread = threading.Thread(target=self._forward, name="tracker", daemon=True)
        self._writer: Writer | None = None
        self._exit_code = 0
        self._preempted = False
        self._has_given_up = False

    def __enter__(self) -> "Tracker":
        folder = self._folder
        if distributed.is_main_process() and self.name != "none" and not folder.done:
            self._writer = make_writer(self.name, folder.path, self._warn)
            self._thread.start()
            self._queue.put(read_records(folder.path))
            folder.metrics.listen(lambda record: self._queue.put(Records([record], [])))
            folder.evaluations.listen(lambda record: self._queue.put(Records([], [record])))
        return self

    def _forward(self) -> None:
        """Write the records of the queue until the run ends; runs in the thread."""
        assert self._writer is not None
        try:
            self._writer.open()
            while (records := self._queue.get()) is not None:
                self._writer.write(*records)
            self._writer.finish(self._exit_code, preempted=self._preempted)
        except (Exception, SystemExit) as error:  # W&B's client exits if its process failed
            self._give_up(error_line(error)[:MAX_ERROR_LENGTH])
        finally:
            with contextlib.suppress(Exception, SystemExit):
                self._writer.release()

    def _warn(self, text: str) -> None:
        warn(f"{TITLES[self.name]}: {text}; the run goes on, and its files are complete")

    def _give_up(self, reason: str) -> None:
        """Warn why the tracker gets no more records; the first reason alone."""
        if not self._has_given_up:
            self._has_given_up = True
            self._warn(reason)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._writer is None:
            return
        self._exit_code = int(error is not None)
        self._preempted = isinstance(error, (Interrupted, KeyboardInterrupt))
        self._queue.put(None)
        self._wait(STOP_SECONDS if error is not None else FINISH_SECONDS)
        if self._writer.location:
            say(self._writer.location)

    def _wait(self, seconds: float) -> None:
        """Wait for the thread, but not for long once a stop signal came; end it after so many seconds."""
        assert self._writer is not None
        began = time.monotonic()
        while self._thread.is_alive():
            limit = STOP_SECONDS if self._folder.stop_flag.requested() else seconds
            if time.monotonic() - began >= limit:
                break
            self._thread.join(POLL_SECONDS)
        if self._thread.is_alive():
            waited = time.monotonic() - began
            self._give_up(f"it did not finish within {waited:.0f} s of the run's end and was ended")
            self._writer.kill()
            self._thread.join(KILL_SECONDS)


def send_finished(name: str, folder: Path) -> str:
    """Upload the records of a finished run that a tracker lacks; returns the line that says where the run is."""
    writer = make_writer(name, folder, warn)
    records = read_records(folder)
    try:
        writer.open()
        writer.write(*records)
        writer.finish(0, preempted=False)
    except (Exception, SystemExit) as error:  # W&B's client exits if its process failed
        raise TOPRError(f"{TITLES[name]}: {error_line(error)[:MAX_ERROR_LENGTH]}") from error
    finally:
        with contextlib.suppress(Exception, SystemExit):
            writer.release()
    return writer.location


def make_writer(name: str, folder: Path, warn_user: Callable[[str], None]) -> Writer:
    """Return the writer of a tracker; TOPRError where the folder of its files, of the same name, is a link."""
    refuse_linked_folders(folder, name)
    writer_class = TensorBoardWriter if name == "tensorboard" else WandbWriter
    return writer_class(folder, warn_user)


def read_records(folder: Path) -> Records:
    """Read all records of a run."""
    metrics, _ = read_lines(folder / "metrics.jsonl")
    evaluations, _ = read_lines(folder / "eval.jsonl")
    return Records(metrics, evaluations)
