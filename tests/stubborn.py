"""A loss for the tests of sweeps: TOPR's, but the third update of a run takes long once and answers no signal then."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from topr_exp.algorithms.tapered import Tapered


@dataclasses.dataclass(frozen=True)
class Stubborn(Tapered):
    """Sleeps for `seconds` at its third batch unless the file `mark` says that it did so before."""

    mark: str = ""
    seconds: float = 60.0

    def __call__(self, batch: Any) -> Any:
        mark = Path(self.mark)
        calls = len(mark.read_bytes()) if mark.exists() else 0
        mark.write_bytes(b"." * (calls + 1))
        if calls == 3:  # the first call tries the loss before training begins
            time.sleep(self.seconds)
        return super().__call__(batch)
