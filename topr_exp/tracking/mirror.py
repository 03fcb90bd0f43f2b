"""The process that copies a run folder to a tracker while the run writes it: `python -m topr_exp.tracking.mirror`.

The run starts it, tells it on standard input what to follow, and later how the run ended; it answers with events
on standard output, one JSON object a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from typing import IO, Any

from topr_exp.tracking.follower import Follower

NICENESS = 10  # the run comes first


def main() -> None:
    """Follow one run until it ends; exit code 1 after the one warning when the tracker fails."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not stand among the events
    messages = listen(sys.stdin)
    request = messages.get()
    if request is None:
        return
    shown = follower(request, events)
    try:
        shown.follow(messages)
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        shown.report("failed", warning=f"{type(error).__name__}: {text}".rstrip(": "))
        sys.stderr.flush()
        os._exit(1)  # the client's own clean-up may hang on what just failed


def listen(stream: IO[str]) -> queue.Queue[dict[str, Any] | None]:
    """The messages of the run, and None when it is gone."""
    messages: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            with contextlib.suppress(ValueError):  # half a line of a run that was killed
                messages.put(json.loads(line))
        messages.put(None)

    threading.Thread(target=read, daemon=True).start()
    return messages


def follower(request: dict[str, Any], events: IO[str]) -> Follower:
    """What shows the run where it asks to be shown; its client is imported with it."""
    if request["tracking"]["name"] == "tensorboard":
        from topr_exp.tracking.board import Board

        return Board(request, events)
    from topr_exp.tracking.wandb_run import WandbRun

    return WandbRun(request, events)


if __name__ == "__main__":
    main()
