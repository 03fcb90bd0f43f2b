"""Losses for the tests of runs: TOPR's and RLOO's that are slow enough to be disturbed, and one that looks around."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from topr_exp.algorithms.agro import RLOO
from topr_exp.algorithms.tapered import Tapered
from topr_exp.grading.grader import cores
from topr_exp.runtime import distributed


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


@dataclasses.dataclass(frozen=True)
class Looking(Tapered):
    """Writes into `folder` how many CPUs each process takes for its own, and those that it may use."""

    folder: str = ""

    def __call__(self, batch: Any) -> Any:
        Path(self.folder, str(distributed.rank())).write_text(f"{cores()} of {sorted(os.sched_getaffinity(0))}")
        return super().__call__(batch)
