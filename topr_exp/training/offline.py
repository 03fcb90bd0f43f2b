"""Training on a fixed set: every example once an epoch, in an order that the seed fixes (the paper's setting)."""

from __future__ import annotations

import math

from topr_exp.runtime.progress import Progress
from topr_exp.training.examples import Examples
from topr_exp.training.trainer import Journal, Trainer


def train_offline(
    trainer: Trainer,
    examples: Examples,
    journal: Journal,
    seed: int,
    iteration: int,
    save_every: float,
    *,
    mu_is_start: bool,
) -> None:
    """Every remaining update, with a checkpoint every `save_every` seconds and when a signal asks the run to stop.

    mu_is_start: log μ was scored by the weights at step 0, so that Δ must vanish there.
    """
    batch = trainer.config.batch_size
    per_epoch = math.ceil(len(examples) / batch)
    steps = per_epoch * trainer.config.epochs
    order = None
    progress = Progress("training", steps, "updates", done=trainer.step, rate_unit="tokens")
    with progress:
        while trainer.step < steps:
            epoch, position = divmod(trainer.step, per_epoch)
            if order is None or position == 0:
                order = examples.training_set.order(seed, iteration, epoch)
            chosen = order[position * batch : (position + 1) * batch]
            record = trainer.update(examples, chosen, steps, expect_unit_ratio=mu_is_start and trainer.step == 0)
            journal.log({"iteration": iteration, **record})
            progress.update(1, record["tokens"], f"loss {record['loss']:.3g}")
            trainer.checkpoint(journal, steps, save_every)
