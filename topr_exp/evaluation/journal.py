"""Evaluations during training, each after its update."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.training.trainer import Journal


@dataclass(frozen=True)
class EvaluatingJournal:
    """A journal that passes everything on, and evaluates after every `every`-th update (None: never)."""

    journal: Journal
    every: int | None
    evaluate: Callable[[int, int], None]  # by the number of an update and its samples
    stop: StopFlag
    check: Callable[[], None]  # raises where nothing may be saved any more

    def log(self, record: dict[str, float]) -> None:
        self.journal.log(record)
        self.evaluate_if_due(int(record["step"]), int(record["samples"]))

    def before_checkpoint(self, step: int, steps: int) -> None:
        self.check()
        self.journal.before_checkpoint(step, steps)

    def evaluate_if_due(self, step: int, samples: int) -> None:
        """Evaluate after every `every`-th update; after a stop signal, the resumed run does it instead."""
        if self.every is None or step == 0 or step % self.every != 0:
            return
        if self.stop.share():
            return
        with contextlib.suppress(Interrupted):  # the training loop saves, then raises it again
            self.evaluate(step, samples)

    def resume(self, step: int, samples: int) -> None:
        """Evaluate at the step of the checkpoint, where an earlier attempt could not; then heed a stop signal."""
        self.evaluate_if_due(step, samples)
        if self.stop.share():  # after one more update this point of the curve would never be measured
            self.stop.check()
