"""The learning rate of every update of an iteration, a function of its number alone: nothing of it is to be resumed."""

from __future__ import annotations

import math

from topr_exp.config.optim import OptimConfig, Schedule
from topr_exp.types import TOPRError


def learning_rate(config: OptimConfig, done: int, updates: int) -> float:
    """The rate of the update after `done` others, of `updates` in the iteration.

    lr · min(1, (done + 1) / (W + 1)) · f(x) with W = optim.warmup_steps and x the share that is left of the updates
    after the warm-up: f = 1 (constant), x (linear) or (1 − cos πx) / 2 (cosine). It is 0 for no update.
    """
    warmup = config.warmup_steps
    if updates <= warmup:
        raise TOPRError(f"optim.warmup_steps must be below {updates}, the updates of an iteration; got {warmup}")
    left = min(1.0, (updates - done) / (updates - warmup))
    share = {Schedule.constant: 1.0, Schedule.linear: left, Schedule.cosine: (1 - math.cos(math.pi * left)) / 2}
    return config.lr * min(1.0, (done + 1) / (warmup + 1)) * share[config.schedule]
