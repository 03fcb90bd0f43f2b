"""Settings of training (the `optim` group)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from topr_exp.config.section import Count, Range, Section, above, at_least

RATE = Range("above 0", lambda rate: 0 < rate < math.inf)


class Optimizer(Enum):
    adamw = "adamw"
    adafactor = "adafactor"


class Reduction(Enum):
    """Divisor of a global batch's summed losses: its sequences, or all their completion tokens."""

    sequences = "sequences"
    tokens = "tokens"


class Schedule(Enum):
    """Course of the learning rate between the warm-up and the end of an iteration."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


@dataclass(frozen=True, kw_only=True)
class OptimConfig(Section):
    """One update: which optimizer, how many examples, how far."""

    name: Optimizer
    lr: Annotated[float, RATE]
    betas: list[float] | None
    weight_decay: Annotated[float, at_least(0)]
    grad_clip: Annotated[float, above(0, "above 0 (.inf for none)")]  # largest norm of the whole gradient
    batch_size: Count  # examples an update, over all devices
    micro_batch_size: Count  # examples a forward pass with gradients, a device
    # Layers keep their inputs only and compute the rest again in the backward pass; None: where there is no room else.
    gradient_checkpointing: bool | None = None
    score_batch_size: Count  # examples a forward pass without gradients
    epochs: Count
    skip_nonfinite: bool = False  # leave out an update whose loss or gradient is not finite, instead of stopping
    reduction: Reduction = Reduction.sequences
    warmup_steps: Annotated[int, at_least(0)] = 0  # updates of an iteration before the rate is lr
    schedule: Schedule = Schedule.constant

    def check(self) -> None:
        if self.name is Optimizer.adafactor and self.betas is not None:
            raise ValueError(f"betas must be null for adafactor; got {self.betas}")
        if self.name is Optimizer.adamw and not (
            self.betas is not None and len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas)
        ):
            raise ValueError(f"betas must be two numbers in [0, 1) for adamw; got {self.betas}")
