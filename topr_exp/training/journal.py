"""What the loops tell the outside: the record of every update, and when a checkpoint is about to be written."""

from __future__ import annotations

from typing import Protocol


class Journal(Protocol):
    """Keeps the records of a run."""

    def log(self, record: dict[str, float]) -> None:
        """Take the record of an update."""

    def before_checkpoint(self, step: int, steps: int) -> None:
        """Make everything logged durable: the checkpoint that follows counts on it."""
