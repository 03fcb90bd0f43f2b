"""Settings of training (the `optim` group and `checkpoint`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class Optimizer(Enum):
    adamw = "adamw"
    adafactor = "adafactor"


@dataclass(frozen=True)
class OptimConfig:
    """One update: which optimizer, how many examples, how far."""

    name: Optimizer
    lr: float
    betas: list[float] | None
    weight_decay: float
    grad_clip: float  # largest norm of the whole gradient; .inf for none
    batch_size: int  # examples an update, over all devices
    micro_batch_size: int  # examples a forward pass with gradients, a device
    gradient_checkpointing: bool  # layers keep their inputs only and compute the rest again in the backward pass
    score_batch_size: int  # examples a forward pass without gradients
    epochs: int
    skip_nonfinite: bool  # leave out an update whose loss or gradient is not finite, instead of stopping

    # Fields that say how much fits into memory, no more: no part of a run's name, so that one that ran out goes on.
    PLACE: ClassVar[frozenset[str]] = frozenset({"micro_batch_size", "gradient_checkpointing", "score_batch_size"})

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be above 0; got {self.lr}")
        if self.name is Optimizer.adafactor and self.betas is not None:
            raise ValueError(f"betas must be null for adafactor; got {self.betas}")
        if self.name is Optimizer.adamw and not (
            self.betas is not None and len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas)
        ):
            raise ValueError(f"betas must be two numbers in [0, 1) for adamw; got {self.betas}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more; got {self.weight_decay}")
        if not self.grad_clip > 0:
            raise ValueError(f"grad_clip must be above 0 (.inf for none); got {self.grad_clip}")
        for field in ("batch_size", "micro_batch_size", "score_batch_size", "epochs"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be 1 or more; got {getattr(self, field)}")


@dataclass(frozen=True)
class ScheduleConfig:
    """How often new completions are sampled from the policy in training (the `schedule` group)."""

    prompts: int | None  # problems that are sampled at a time; None: all at once, then one pass over the set
    updates: int | None  # optimizer steps before sampling again
    rounds: int | None  # how many times that is done
    replay: float  # probability that a problem's completions come from an earlier round instead

    def __post_init__(self) -> None:
        if self.prompts is None:
            if (self.updates, self.rounds, self.replay) != (None, None, 0.0):
                raise ValueError(
                    "prompts must be set where updates, rounds or replay are (schedule=on_policy); got null"
                )
            return
        for field in ("prompts", "updates", "rounds"):
            value = getattr(self, field)
            if value is None or value < 1:
                raise ValueError(
                    f"{field} must be 1 or more for an on-policy schedule; got {str(value).replace('None', 'null')}"
                )
        if not 0 <= self.replay < 1:
            raise ValueError(f"replay must be in [0, 1); got {self.replay:g}")


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run saves what it needs to go on after a kill, and what it keeps on disk."""

    every_seconds: float
    keep_iterations: list[int] | None  # iterations whose weights are kept besides the last; None keeps all

    def __post_init__(self) -> None:
        if not self.every_seconds >= 0:
            raise ValueError(f"every_seconds must be 0 (after every update) or more; got {self.every_seconds}")
        if any(iteration < 1 for iteration in self.keep_iterations or ()):
            raise ValueError(f"keep_iterations must be numbers from 1, null for all; got {self.keep_iterations}")
