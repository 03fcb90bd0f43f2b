"""Losses for the tests of runs: slow enough to be disturbed, or deaf to signals for long."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from topr_exp.algorithms.agro import RLOO
from topr_exp.algorithms.topr import Tapered


@dataclasses.dataclass(frozen=True)
class Sleeping:
    """Sleeps for `seconds` at every batch."""

    seconds: float = 0.0

    def __call__(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return super().__call__(batch)  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class Slow(Sleeping, Tapered):
    """TOPR."""


@dataclasses.dataclass(frozen=True)
class SlowRLOO(Sleeping, RLOO):
    """RLOO."""


@dataclasses.dataclass(frozen=True)
class Stubborn(Tapered):
    """Sleeps for `seconds` at its third batch unless the file `mark` says that it did so before."""

    mark: str = ""
    seconds: float = 60.0

    def __call__(self, batch: Any) -> Any:
        with Path(self.mark).open("ab") as file:
            file.write(b".")
        if Path(self.mark).stat().st_size == 4:  # the first call tries the loss before training begins
            time.sleep(self.seconds)
        return super().__call__(batch)
