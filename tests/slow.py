"""Losses for the tests of runs: TOPR's and RLOO's that are slow enough to be disturbed."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from topr_exp.algorithms.agro import RLOO
from topr_exp.algorithms.tapered import Tapered


@dataclasses.dataclass(frozen=True)
class Slow(Tapered):
    """Sleeps for `seconds` at every batch."""

    seconds: float = 0.0

    def __call__(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return super().__call__(batch)


@dataclasses.dataclass(frozen=True)
class SlowRLOO(RLOO):
    """The same."""

    seconds: float = 0.0

    def __call__(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return super().__call__(batch)
