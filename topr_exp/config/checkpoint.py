"""Settings of checkpoints (`checkpoint`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from topr_exp.config.section import Range, Section, at_least

FROM_1 = Range("numbers from 1, null for all", lambda given: all(number >= 1 for number in given))


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """How often a run saves what it needs to go on after a kill, and what it keeps on disk."""

    every_seconds: Annotated[float, at_least(0, "0 (after every update) or more")]
    keep_iterations: Annotated[list[int] | None, FROM_1]  # whose weights are kept besides the last's; None keeps all
