"""Losses for the tests of runs that are disturbed: an update takes a second as long as a file is there."""

import dataclasses
import time
from pathlib import Path

from topr_exp.algorithms.agro import RLOO
from topr_exp.algorithms.topr import Tapered

SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Slowed:
    """Waits at every batch while the file is there, so that a test disturbs a run long before its end."""

    file: str = ""

    def __call__(self, batch):
        end = time.monotonic() + SECONDS
        while self.file and Path(self.file).exists() and time.monotonic() < end:
            time.sleep(0.01)
        return super().__call__(batch)


@dataclasses.dataclass(frozen=True)
class Slow(Slowed, Tapered):
    """TOPR."""


@dataclasses.dataclass(frozen=True)
class SlowRLOO(Slowed, RLOO):
    """RLOO."""
