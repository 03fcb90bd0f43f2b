"""The run's side of tracking: starts the process that copies the run folder, and waits for it a bounded time.

The client of W&B or TensorBoard runs in a process of its own (`mirror`) that reads the files which the run writes in
any case. Whatever happens to it or to the network can therefore neither stop nor slow a run, nor lose a point: the next
attempt sends what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from topr_exp.config.settings import Config
from topr_exp.runs.console import say, warn
from topr_exp.runs.provenance import overrides
from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted

FINISH_SECONDS = 30.0  # most that the end of a run waits for the last points to be sent
STOP_SECONDS = 10.0  # the same where the run was stopped or failed
TITLES = {"wandb": "W&B", "tensorboard": "TensorBoard"}


class Tracker:
    """Follows a run folder for the time of a `with` block; does nothing where tracking=none or the run is done."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.home = folder / config.tracking.name  # of what the client writes
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread | None = None
        self._events: dict[str, Any] = {}  # of the mirror, by name

    def __enter__(self) -> Tracker:
        if (
            distributed.is_main_process()
            and self.config.tracking.name != "none"
            and not (self.folder / "DONE").exists()
        ):
            try:
                self._start()
            except OSError as error:
                self._warn(f"its process did not start ({error})")
        return self

    def _start(self) -> None:
        self.home.mkdir(exist_ok=True)
        with (self.home / "client.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "topr_exp.tracking.mirror"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # an interrupt from the keyboard is the run's; it ends the mirror in order
            )
        request = {"folder": str(self.folder), "pid": os.getpid(), "overrides": overrides(self.folder)}
        self._send({**request, "tracking": vars(self.config.tracking)})
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone: `_close` finds out why
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Note what the mirror reports; its one warning is passed on at once."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                self._events[event.pop("event")] = event
                if "warning" in event:
                    self._warn(event["warning"])

    def _warn(self, text: str) -> None:
        if "warned" not in self._events:
            self._events["warned"] = True
            warn(f"{TITLES[self.config.tracking.name]}: {text}; the run goes on, and its files are complete")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        self._send({"exit_code": 0 if error is None else 1, "preempted": stopped})
        self._close(FINISH_SECONDS if error is None else STOP_SECONDS)
        opened = self._events.get("opened", {})
        if self.config.tracking.name == "tensorboard" and opened:
            say(f"TensorBoard: tensorboard --logdir {shlex.quote(str(self.folder.parent))}")
        elif opened.get("mode") == "offline":
            say(f"W&B, offline: wandb sync {shlex.quote(opened['path'])}")
        elif opened.get("url"):
            say(f"W&B: {opened['url']}")

    def _close(self, seconds: float) -> None:
        """Wait for the mirror's end; kill it, with W&B's own process, when it takes longer."""
        assert self._process is not None
        assert self._listener is not None
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._warn(f"it did not finish within {seconds:.0f} s of the run's end and was ended")
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        else:
            if code != 0 and "warned" not in self._events:
                self._listener.join(1.0)
                self._warn(f"its client ended with code {code} (see {self.home / 'client.log'})")
        self._listener.join(1.0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # of what could not be told any more
            self._process.stdin.close()
        if not self._listener.is_alive():
            self._process.stdout.close()
