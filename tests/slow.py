"""Losses for the tests of runs, slow enough to be disturbed."""

import dataclasses
import time

from topr_exp.algorithms.agro import RLOO
from topr_exp.algorithms.topr import Tapered


@dataclasses.dataclass(frozen=True)
class Sleeping:
    """Sleeps for `seconds` at every batch."""

    seconds: float = 0.0

    def __call__(self, batch):
        time.sleep(self.seconds)
        return super().__call__(batch)


@dataclasses.dataclass(frozen=True)
class Slow(Sleeping, Tapered):
    """TOPR."""


@dataclasses.dataclass(frozen=True)
class SlowRLOO(Sleeping, RLOO):
    """RLOO."""
