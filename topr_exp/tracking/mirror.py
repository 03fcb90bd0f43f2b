"""The process that copies a run folder to W&B while the run writes it: `python -m topr_exp.tracking.mirror`.

The run starts it, tells it on standard input what to follow, and later how the run ended; it answers with events
on standard output, one JSON object a line. Metrics, evaluations on a part of the test set and on all of it have steps
of their own (3s, 3s + 1 and 3s + 2 after s updates), so that what W&B already has is known by its last step, and a
resumed run sends just the rest. Offline everything is written again into one new folder: the files of the run hold
all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from topr_exp.runs.records import Lines, Record, on_one_axis
from topr_exp.tracking.login import wanted_mode
from topr_exp.tracking.samples import COLUMNS, sample_rows

POLL_SECONDS = 1.0
INIT_SECONDS = 60.0  # to reach W&B, unless WANDB_INIT_TIMEOUT is set
NICENESS = 10  # the run comes first
AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")


def main() -> None:
    """Follow one run until it ends; exit code 1 after the one warning when W&B fails."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not stand among the events
    messages = listen(sys.stdin)
    request = messages.get()
    if request is None:
        return
    try:
        Mirror(request, events).follow(messages)
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        report(events, "failed", warning=f"{type(error).__name__}: {text}".rstrip(": "))
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


def report(events: IO[str], event: str, **values: Any) -> None:
    """Tell the run; it may be gone."""
    with contextlib.suppress(OSError):
        events.write(json.dumps({"event": event, **values}) + "\n")
        events.flush()


class Mirror:
    """One run folder and the W&B run that shows it."""

    def __init__(self, request: dict[str, Any], events: IO[str]) -> None:
        self.folder, self.request, self.events = Path(request["folder"]), request, events
        self.metrics, self.evaluations = Lines(self.folder / "metrics.jsonl"), Lines(self.folder / "eval.jsonl")
        self.sent = -1  # the last W&B step
        self.run: Any = None

    def follow(self, messages: queue.Queue[dict[str, Any] | None]) -> None:
        """Send what the run has written and goes on writing, until it ends."""
        self.open()
        while True:
            try:
                end = messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                self.send(settled=False)
                continue
            self.send(settled=True)
            self.close(end)
            return

    # ---- opening

    def open(self) -> None:
        """Start the W&B run, or go on with it under the same id."""
        import wandb

        mode, old = wanted_mode(), list((self.folder / "wandb").glob("offline-run-*"))
        try:
            self.run = self.init(wandb, mode)
        except Exception as error:
            if mode == "offline":
                raise
            text = " ".join(str(error).split())[:200]
            report(self.events, "unreachable", warning=f"going on offline ({text})")
            wandb.teardown()  # the failed attempt holds the id
            self.run = self.init(wandb, "offline")
        if self.run.settings.mode == "offline":
            for folder in old:  # superseded: everything is written again
                shutil.rmtree(folder, ignore_errors=True)
        elif self.run.resumed:
            self.sent = int(self.run.step) - 1
        for kind in ("train", "curve", "eval"):
            self.run.define_metric(f"{kind}/*", step_metric="optimizer_step")
        for axis in ("optimizer_step", "samples"):
            self.run.define_metric(axis, hidden=True)
        mode = self.run.settings.mode
        url = self.run.url if mode == "online" else None
        report(self.events, "opened", mode=mode, path=str(Path(self.run.settings.sync_dir)), url=url)

    def init(self, wandb: Any, mode: str | None) -> Any:
        tracking, config, identity = self.request["tracking"], self.read("config.json"), run_id(self.folder)
        resolved = config["resolved"]
        tags = [resolved["algo"]["name"], resolved["data"]["name"], resolved["data"].get("source", "")]
        return wandb.init(
            project=tracking["project"],
            entity=tracking["entity"],
            group=tracking["group"],
            job_type=tracking["job_type"],
            name=self.folder.name,
            id=identity,
            resume="allow" if mode != "offline" else None,
            dir=str(self.folder),
            mode=mode,
            tags=[tag[:64] for tag in [*tags, resolved["model"]["name"]] if tag],
            config={**resolved, "overrides": self.request["overrides"], "environment": self.read("environment.json")},
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS)),
                x_stats_pid=self.request["pid"],
            ),
        )

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    # ---- sending

    def send(self, *, settled: bool) -> None:
        """Send the new records in order; settled: the run writes no more.

        An evaluation stands in its file before the next update stands in the other. Updates are therefore read
        first, and evaluations after the last of them wait for the next call.
        """
        self.metrics.refresh()
        limit = self.last_update()
        self.evaluations.refresh()
        self.metrics.refresh()
        updates, tests = on_one_axis(self.metrics.records, self.evaluations.records)
        rows = [(3 * record["optimizer_step"], "train", record) for record in updates]
        rows += [
            (3 * record["optimizer_step"] + 1 + part, kind, record)
            for part, kind in enumerate(("curve", "eval"))
            for record in tests
            if (kind == "curve") == record.get("subset", False)
        ]
        for step, kind, record in sorted(rows, key=lambda row: row[0]):
            if step > self.sent and (settled or record["optimizer_step"] <= limit):
                self.run.log({**flat(kind, record), **self.table(kind, record)}, step=step)
                self.sent = step

    def last_update(self) -> int:
        updates, _ = on_one_axis(self.metrics.records, [])
        return updates[-1]["optimizer_step"] if updates else 0

    def table(self, kind: str, record: Record) -> dict[str, Any]:
        """Some completions of an evaluation on the whole test set; their text stays text."""
        import wandb

        rows = list(sample_rows(record)) if kind == "eval" else []
        return {"completions": wandb.Table(columns=list(COLUMNS), data=rows)} if rows else {}

    # ---- closing

    def close(self, end: dict[str, Any] | None) -> None:
        """Send the summary and finish; end: how the run ended, None when it was killed."""
        if (self.folder / "DONE").exists():
            summary = {allowed(name): value for name, value in leaves(self.read("summary.json"))}
            self.run.summary.update(summary)
            if self.request["tracking"]["model_artifact"]:
                self.run.log_model(str(self.folder / "model"), name=f"model-{self.run.id}")
        if end is None or end["preempted"]:
            self.run.mark_preempting()
        self.run.finish(exit_code=end["exit_code"] if end is not None else 1)


def run_id(folder: Path) -> str:
    """The W&B id: the same for every attempt at this run, another one when the folder was removed and made again."""
    made = (folder / "environment.json").read_bytes()
    return f"{folder.name[:48]}-{hashlib.sha256(made).hexdigest()[:8]}"


def flat(kind: str, record: Record) -> dict[str, float]:
    """A record's numbers by W&B's names: train/loss, curve/pass_at_1, eval/pass_at_1; the axes stand bare."""
    samples = record["samples"] if kind == "train" else record["samples_seen"]
    row = {"optimizer_step": record["optimizer_step"], "samples": samples, "iteration": record["iteration"]}
    row |= {f"{kind}/{name}": value for name, value in record.items() if name not in AXES and is_number(value)}
    for curve in ("pass@k", "maj@k") if kind != "train" else ():
        for k, point in record.get(curve, {}).items():
            name = f"{kind}/{curve[:-1]}{k}"
            row |= {f"{name}_{end}": point[end] for end in ("low", "high") if is_number(point.get(end))}
            row[name] = point["value"]
    return {allowed(name): value for name, value in row.items()}


def allowed(name: str) -> str:
    """A name that W&B can sort and filter by: letters, digits, _ and /."""
    return "".join(ch if ch.isalnum() or ch in "_/" else "_" for ch in name.replace("@", "_at_"))


def leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The summary's values by path, as final/pass@1; lists (the iterations' records) are curves already."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{prefix}{name}/")
        elif not isinstance(item, list):
            yield f"{prefix}{name}", item


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


if __name__ == "__main__":
    main()
