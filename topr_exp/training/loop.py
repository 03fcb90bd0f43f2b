"""The loop over an iteration's updates, whatever its global batches come from.

Offline they are of one set, composed before training: `FixedSet`. Else the policy in training samples completions every
few updates: `Rounds`; those of an asynchronous run are of older weights: `LaggedRounds` and `ClockedRounds`.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from topr_exp.composition.training_set import Examples, TrainingSet
from topr_exp.config.groups import CheckpointConfig, OptimConfig
from topr_exp.runtime.progress import Progress
from topr_exp.runtime.terminal import plural, warn, warn_once
from topr_exp.training.batches import GlobalBatch
from topr_exp.training.trainer import Journal, Trainer
from topr_exp.types import TOPRError


class BatchSource(Protocol):
    """Source of an iteration's global batches."""

    @property
    def update_count(self) -> int:
        """Return the number of updates of the iteration."""

    def global_batch(self, step: int, progress: Progress) -> GlobalBatch | None:
        """Return what is trained on after `step` updates; counts the tokens sampled for it in `progress`.

        None: nothing is left to train on.
        """

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return what a checkpoint after the last update has to hold of this source, by name of file."""

    def restore(self, checkpoint: Path) -> None:
        """Restore what `checkpoint_files` returned."""


def train(
    trainer: Trainer,
    source: BatchSource,
    journal: Journal,
    config: CheckpointConfig,
    keep_weights: Callable[[], None],
    *,
    iteration: int,
) -> None:
    """Make every remaining update, with a checkpoint every `every_seconds` and when a signal asks to stop.

    keep_weights: saves the policy; it is called after the updates that `config` keeps, before their checkpoints.

    Raises TOPRError after a pass over the first iteration's set without any gradient: positives alone where nothing is
    correct, a group-relative loss where no group is mixed. A later iteration may have learnt, or lost, all of it.
    """
    update_count = source.update_count
    if trainer.restored is not None:
        source.restore(trainer.restored)
    if config.weights_every is not None and config.weights_every > update_count:
        effect = f"keeps no weights of {plural(update_count, 'update')}"
        warn_once(f"checkpoint.weights_every={config.weights_every} {effect}")
    progress = Progress("training", update_count, "updates", kind="training", done=trainer.step, rate_unit="tokens")
    with progress:
        trainer.report_tokens_to(progress.advance)
        while trainer.step < update_count:
            global_batch = source.global_batch(trainer.step, progress)
            if global_batch is None:
                break
            metrics = trainer.update(global_batch, update_count)
            record = {"iteration": iteration, **global_batch.round_metrics, **metrics}
            journal.log(record)
            tokens = record["tokens"] + record["prompt_tokens"]
            progress.update(1, tokens, progress_note(record), of_completions=record["tokens"])
            if iteration == 1 and global_batch.ends_first_pass and not trainer.had_gradient:
                share = 100 * global_batch.training_set.description["positive_share"]
                raise TOPRError(
                    f"algo={trainer.loss.name} has nothing to learn from: {share:.1f} % of the completions of the "
                    "training set are correct, and none of them has a gradient"
                )
            if config.keeps_update(trainer.step, update_count):
                keep_weights()
            trainer.checkpoint(journal, update_count, config.every_seconds, source.checkpoint_files)
    if trainer.step and not trainer.had_gradient:
        warn(f"algo={trainer.loss.name} learnt nothing: no update had a gradient")


def progress_note(record: dict[str, float]) -> str:
    """Format what the line of progress says of an update: the loss, or in rounds how much of the samples is correct."""
    if "sampled_correct" not in record:
        return f"loss {record['loss']:.3g}"
    share = record["sampled_correct"]
    if math.isnan(share):  # nothing was sampled
        return ""
    return f"{100 * share:.0f} % of the samples correct"


@dataclass(frozen=True)
class FixedSet:
    """The global batches of `optim.epochs` passes over one training set; a checkpoint's step says where they go on."""

    training_set: TrainingSet
    config: OptimConfig
    _: KW_ONLY
    seed: int
    iteration: int
    mu_is_start: bool  # log μ is by the weights that training begins with
    orders: dict[int, Examples] = field(default_factory=dict, init=False, repr=False)  # by pass: the newest alone

    @property
    def update_count(self) -> int:
        return count_updates(self.training_set, self.config) * self.config.epochs

    def global_batch(self, step: int, progress: Progress) -> GlobalBatch:
        examples = choose_examples(self.training_set, self.config, step, self.order_of_pass)
        return GlobalBatch(
            self.training_set,
            examples,
            mu_is_policy=self.mu_is_start and step == 0,
            ends_first_pass=step + 1 == count_updates(self.training_set, self.config),
        )

    def order_of_pass(self, epoch: int) -> Examples:
        """Draw the order of a pass and keep it: of a million examples it takes as long as a small model's update."""
        if epoch not in self.orders:
            self.orders.clear()
            whole_groups = self.config.whole_groups
            self.orders[epoch] = self.training_set.order(self.seed, self.iteration, epoch, whole_groups=whole_groups)
        return self.orders[epoch]

    def checkpoint_files(self) -> dict[str, bytes]:
        return {}

    def restore(self, checkpoint: Path) -> None:
        """Nothing to restore: the set is composed again of what the store and the log hold."""


class NoUpdates:
    """The global batches of an iteration whose completions leave nothing to train on."""

    update_count = 0

    def global_batch(self, step: int, progress: Progress) -> None:
        return None

    def checkpoint_files(self) -> dict[str, bytes]:
        return {}

    def restore(self, checkpoint: Path) -> None:
        """Nothing to restore."""


def count_updates(training_set: TrainingSet, config: OptimConfig) -> int:
    """Count the updates of a pass over the set; the last one may have fewer examples."""
    return math.ceil(len(training_set) / config.batch_size)


def choose_examples(
    training_set: TrainingSet, config: OptimConfig, position: int, order_of_pass: Callable[[int], Examples]
) -> Examples:
    """Choose the examples of an update: consecutive parts of an order that is drawn for each pass over the set.

    position: updates on the set before this one. order_of_pass: by the number of the pass.
    """
    epoch, part = divmod(position, count_updates(training_set, config))
    order = order_of_pass(epoch)
    start = part * config.batch_size
    return order[start : start + config.batch_size]
