"""Training offline: passes over completions that are there before the first update."""

import math

from topr_exp.runtime.progress import Progress
from topr_exp.training.examples import Examples
from topr_exp.training.trainer import Journal, Trainer
from topr_exp.types import TOPRError


def train_offline(
    trainer: Trainer,
    examples: Examples,
    journal: Journal,
    seed: int,
    iteration: int,
    save_every: float,
    mu_is_start: bool,
) -> None:
    """Every remaining update, with a checkpoint every `save_every` seconds and when a signal asks the run to stop.

    mu_is_start: log μ was scored by the weights at step 0, so that Δ must vanish there.
    Raises TOPRError after a pass in which no example had a gradient: positives only where nothing is correct, or a loss
    relative to its group where all groups are of one kind.
    """
    batch = trainer.config.batch_size
    per_epoch = math.ceil(len(examples) / batch)
    steps = per_epoch * trainer.config.epochs
    with Progress("training", steps, "updates", done=trainer.step, rate_unit="tokens") as progress:
        while trainer.step < steps:
            epoch, position = divmod(trainer.step, per_epoch)
            order = examples.training_set.order(seed, iteration, epoch, trainer.config.whole_groups)
            chosen = order[position * batch : (position + 1) * batch]
            record = trainer.update(examples, chosen, steps, expect_unit_ratio=mu_is_start and trainer.step == 0)
            journal.log({"iteration": iteration, **record})
            progress.update(1, record["tokens"], f"loss {record['loss']:.3g}")
            if trainer.step == per_epoch and not trainer.moved:
                share = 100 * examples.training_set.description["positive_share"]
                raise TOPRError(
                    f"algo={trainer.loss.name} has nothing to learn from: {share:.1f} % of the completions of the "
                    "training set are correct, and none of them has a gradient"
                )
            trainer.checkpoint(journal, steps, save_every)
