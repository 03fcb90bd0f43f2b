"""Evaluations while a policy trains, every few updates on the same problems: the curves of Figures 1, 3 and 4."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.training.trainer import Journal


class EvaluatingJournal:
    """A journal that passes everything on, and evaluates after every `every`-th update."""

    def __init__(
        self, journal: Journal, every: int | None, evaluate: Callable[[int, int], None], stop: StopFlag
    ) -> None:
        self.journal, self.every, self.evaluate, self.stop = journal, every, evaluate, stop

    def log(self, record: dict[str, float]) -> None:
        self.journal.log(record)
        self.reach(int(record["step"]), int(record["samples"]))

    def before_checkpoint(self, step: int, steps: int) -> None:
        self.journal.before_checkpoint(step, steps)

    def reach(self, step: int, samples: int) -> None:
        """Evaluate if it is time; a run that is asked to stop saves instead, and evaluates when it goes on."""
        if self.every is not None and step > 0 and step % self.every == 0 and not self.stop.share():
            with contextlib.suppress(Interrupted):  # the training loop saves, then raises it again
                self.evaluate(step, samples)
