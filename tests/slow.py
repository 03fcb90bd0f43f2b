"""A loss for the tests that disturb a run: TOPR's, and slow enough that no machine ends the run before that."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from topr_exp.algorithms.tapered import Tapered


@dataclasses.dataclass(frozen=True)
class Slow(Tapered):
    """Sleeps for `seconds` at every batch."""

    seconds: float = 0.0

    def __call__(self, batch: Any) -> Any:
        time.sleep(self.seconds)
        return super().__call__(batch)
