"""Training on a fixed set: every example once an epoch, in an order that the seed fixes (the paper's setting)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from topr_exp import interrupts
from topr_exp.progress import Progress
from topr_exp.training.examples import Examples
from topr_exp.training.trainer import Trainer


def train_offline(
    trainer: Trainer,
    examples: Examples,
    seed: int,
    iteration: int,
    log: Callable[[dict[str, float]], None],
    save_every: float,
    before_save: Callable[[int, int], None],
) -> None:
    """Every remaining update. `log` gets each record; `before_save(step, steps)` comes right before a checkpoint.

    A checkpoint is written every `save_every` seconds and when a signal asks the run to stop.
    """
    batch = trainer.config.batch_size
    per_epoch = math.ceil(len(examples) / batch)
    steps = per_epoch * trainer.config.epochs
    saved = time.monotonic()
    order = None
    with (
        Progress("training", steps, "updates", done=trainer.step, rate_unit="tokens") as progress,
        interrupts.deferred(),
    ):
        while trainer.step < steps:
            epoch, position = divmod(trainer.step, per_epoch)
            if order is None or position == 0:
                order = examples.training_set.order(seed, iteration, epoch)
            chosen = order[position * batch : (position + 1) * batch]
            record = trainer.update(examples, chosen, fresh=trainer.step == 0)
            log({"iteration": iteration, **record})
            progress.update(1, record["tokens"], f"loss {record['loss']:.3g}")
            if interrupts.asked() or (trainer.step < steps and time.monotonic() - saved >= save_every):
                before_save(trainer.step, steps)
                trainer.save()
                interrupts.check()
                saved = time.monotonic()
