"""What follows a run folder while the run writes it, and passes its records on to a tracker, each once and in order."""

from __future__ import annotations

import contextlib
import json
import queue
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from topr_exp.runs.records import Lines, Record, on_one_axis
from topr_exp.store import Store
from topr_exp.types import VERDICTS, TOPRError

POLL_SECONDS = 1.0
AXES = ("iteration", "step", "optimizer_step", "samples", "samples_seen")


class Follower(ABC):
    """One run folder, and what shows it elsewhere.

    Metrics, evaluations on a part of the test set and on all of it have steps of their own (3s, 3s + 1 and 3s + 2
    after s updates), so that one number says what was passed on.
    """

    def __init__(self, request: dict[str, Any], events: IO[str]) -> None:
        self.folder, self.request, self.events = Path(request["folder"]), request, events
        self.metrics, self.evaluations = Lines(self.folder / "metrics.jsonl"), Lines(self.folder / "eval.jsonl")
        self.sent = -1  # the last of those steps

    @abstractmethod
    def open(self) -> None:
        """Start; `sent` tells what an earlier attempt passed on, unless all of it goes again."""

    @abstractmethod
    def put(self, step: int, kind: str, record: Record) -> None:
        """Pass one record on; kind: train, curve (a part of the test set) or eval (all of it)."""

    @abstractmethod
    def close(self, end: dict[str, Any] | None) -> None:
        """Finish; end: how the run ended, None when it was killed."""

    def follow(self, messages: queue.Queue[dict[str, Any] | None]) -> None:
        """Pass on what the run has written and goes on writing, until it ends."""
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

    def send(self, *, settled: bool) -> None:
        """Pass the new records on in order; settled: the run writes no more.

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
                self.put(step, kind, record)
                self.sent = step

    def last_update(self) -> int:
        updates, _ = on_one_axis(self.metrics.records, [])
        return updates[-1]["optimizer_step"] if updates else 0

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def report(self, event: str, **values: Any) -> None:
        """Tell the run; it may be gone."""
        with contextlib.suppress(OSError):
            self.events.write(json.dumps({"event": event, **values}) + "\n")
            self.events.flush()


def flat(kind: str, record: Record) -> dict[str, float]:
    """A record's numbers by their names: train/loss, curve/pass_at_1, eval/pass_at_1; the axes stand bare."""
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
    """A name that trackers can sort and filter by: letters, digits, _ and /."""
    return "".join(ch if ch.isalnum() or ch in "_/" else "_" for ch in name.replace("@", "_at_"))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


PER_VERDICT = 8
LONGEST = 4000  # characters of a completion
COLUMNS = ("iteration", "verdict", "problem", "sample", "completion", "answer", "gold")


def sample_rows(record: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of COLUMNS: the first completions of each verdict; none where the store's tables are gone.

    record: an evaluation of eval.jsonl, whose `rollouts` and `verdicts` are folders of the store.
    """
    import pyarrow as pa

    try:
        rollouts, verdicts = (Path(record[name]) for name in ("rollouts", "verdicts"))
        completions = Store(rollouts.parent.parent).open(rollouts).read(["problem", "sample", "text"])
        graded = Store(verdicts.parent.parent).open(verdicts)
        marks = graded.read(["verdict", "answer"])
    except (KeyError, TOPRError):
        return
    golds = graded.key["golds"]
    names = marks["verdict"].to_pylist()
    for verdict in VERDICTS:
        chosen = pa.array([row for row, name in enumerate(names) if name == verdict][:PER_VERDICT], pa.int64())
        for one, mark in zip(completions.take(chosen).to_pylist(), marks.take(chosen).to_pylist(), strict=True):
            problem = one["problem"]
            text = one["text"] if len(one["text"]) <= LONGEST else one["text"][:LONGEST] + " …"
            yield (record["iteration"], verdict, problem, one["sample"], text, mark["answer"], golds[problem])
