"""Seconds of work per stage of a run, over all its attempts."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# An engine that starts is timed as "engine", nested in sampling and evaluation.
STAGES = ("problems", "sampling", "grading", "composition", "scoring", "training", "evaluation")


class StageTimer:
    """Stopwatch of the stage at work; a nested stage stops the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.stage = ""
        self._added_until = time.monotonic()

    def add_earlier_attempts(self, seconds: Mapping[str, float]) -> None:
        """Start from the seconds that earlier attempts took."""
        self.seconds |= seconds

    def begin(self, stage: str) -> None:
        """Time a stage from now on."""
        assert stage in STAGES, stage
        self.stage = stage
        self._added_until = time.monotonic()

    def add_elapsed(self) -> None:
        """Add the seconds since they were last added to those of the stage at work."""
        time_now = time.monotonic()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + time_now - self._added_until
        self._added_until = time_now

    @contextmanager
    def nested(self, stage: str) -> Iterator[None]:
        """Time the block as another stage."""
        self.add_elapsed()
        outer_stage = self.stage
        self.stage = stage
        try:
            yield
        finally:
            self.add_elapsed()
            self.stage = outer_stage
