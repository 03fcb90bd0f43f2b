"""Forward a run's records to a tracker from a thread, so that no network, disk or client slows or ends the run.

The run's files hold every record: each attempt begins by forwarding what the tracker does not have.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from types import TracebackType

from topr_exp.config.groups import TrackingConfig
from topr_exp.runs.folder import RunFolder
from topr_exp.runs.records import Record, is_update, on_one_axis
from topr_exp.runtime import distributed
from topr_exp.runtime.exit_status import say, warn
from topr_exp.runtime.files import read_lines
from topr_exp.runtime.stop import Interrupted

FINISH_SECONDS = 30.0  # longest wait for the tracker at the end of a run
STOP_SECONDS = 10.0  # the same where the run was stopped or failed
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard"}


class Tracker:
    """Forwards what a run records during a `with` block; a no-op for tracking=none and for finished runs."""

    def __init__(self, tracking: TrackingConfig, folder: RunFolder) -> None:
        self.name, self._tracking, self._folder = tracking.name, tracking, folder
        self._queue: queue.SimpleQueue[tuple[list[Record], list[Record]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._forward, name="tracker", daemon=True)
        self._ends: dict[int, Record] = {}  # iteration -> its last update
        self._exit_code, self._preempted, self._warned = 0, False, False

    def __enter__(self) -> Tracker:
        if distributed.is_main_process() and self.name != "none" and not self._folder.done:
            from topr_exp.tracking.writers import TensorBoardWriter, WandbWriter

            metrics, evaluations = self._folder.metrics, self._folder.evaluations
            kind = TensorBoardWriter if self.name == "tensorboard" else WandbWriter
            self._writer = kind(self._tracking, self._folder.path, self._warn)
            self._thread.start()
            self._queue.put((read_lines(metrics.path)[0], read_lines(evaluations.path)[0]))
            metrics.listener = lambda record: self._queue.put(([record], []))
            evaluations.listener = lambda record: self._queue.put(([], [record]))
        return self

    def _forward(self) -> None:
        """Write what arrives until the run ends; runs in the thread."""
        try:
            self._writer.open()
            while (records := self._queue.get()) is not None:
                self._write(*records)
            self._writer.finish(self._exit_code, preempted=self._preempted)
        except (Exception, SystemExit) as error:  # W&B's client exits where its process failed
            self._warn(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}".rstrip(": "))
        finally:
            with contextlib.suppress(Exception, SystemExit):
                self._writer.release()

    def _write(self, metrics: list[Record], evaluations: list[Record]) -> None:
        """Write records in order, without those that the tracker has.

        After s updates an update, an evaluation on a part of the test set and one on all of it have the steps 3s,
        3s + 1 and 3s + 2, so that the last step says what the tracker has.
        """
        updates, tests = on_one_axis([*self._ends.values(), *metrics], evaluations)
        rows = [(0, "train", record) for record in updates]
        rows += [(1, "curve", record) if record.get("subset") else (2, "eval", record) for record in tests]
        for place, kind, record in sorted(rows, key=lambda row: (row[2]["optimizer_step"], row[0])):
            if (step := 3 * record["optimizer_step"] + place) > self._writer.sent:
                self._writer.log(step, kind, record)
                self._writer.sent = step
        self._ends |= {record["iteration"]: record for record in filter(is_update, metrics)}

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"{TITLES[self.name]}: {text}; the run goes on, and its files are complete")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.ident is None:
            return
        self._exit_code, self._preempted = int(error is not None), isinstance(error, (Interrupted, KeyboardInterrupt))
        self._queue.put(None)
        seconds = FINISH_SECONDS if error is None else STOP_SECONDS
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(f"it did not finish within {seconds:.0f} s of the run's end and was ended")
            self._writer.kill()
            self._thread.join(1.0)
        if self._writer.shown:
            say(self._writer.shown)
