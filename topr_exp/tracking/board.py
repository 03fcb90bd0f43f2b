"""A run in TensorBoard, by torch's writer."""

from __future__ import annotations

from typing import Any

from topr_exp.runs.records import Record
from topr_exp.tracking.follower import AXES, COLUMNS, Follower, flat, sample_rows

FOLDER = "tensorboard"  # of a run


class Board(Follower):
    """One run folder and the event file that shows it.

    Every attempt writes all of it again in place of the file before, since the run's own files hold all of it: so no
    point is there twice, and none after the checkpoint that a killed run went back to.
    """

    writer: Any = None

    def open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        target = self.folder / FOLDER
        for old in target.glob("events.out.tfevents.*"):
            old.unlink()
        # A TensorBoard that has read the file before forgets what it held from step 0 on.
        self.writer = SummaryWriter(str(target), purge_step=0)
        settings = (self.folder / "config.yaml").read_text(encoding="utf-8")
        self.writer.add_text("settings", fenced(settings), 0)
        self.report("opened", path=str(target))

    def put(self, step: int, kind: str, record: Record) -> None:
        for name, value in flat(kind, record).items():
            if name not in AXES and value is not None:
                self.writer.add_scalar(name, value, record["optimizer_step"])
        rows = list(sample_rows(record)) if kind == "eval" else []
        if rows:
            shown = (dict(zip(COLUMNS, row, strict=True)) for row in rows)
            text = "\n\n".join("\n".join(f"{name}: {value}" for name, value in one.items()) for one in shown)
            self.writer.add_text("completions", fenced(text), record["optimizer_step"])

    def close(self, end: dict[str, Any] | None) -> None:
        self.writer.close()


def fenced(text: str) -> str:
    """A text that TensorBoard, which renders Markdown, shows as it is: indented, as no text can end that."""
    return "\n".join(f"    {line}" for line in text.splitlines())
