"""All settings of a run in one object, with a section for each group of `conf/`; the name and the folder of the run.

The values stand in the YAMLs, the names, types and ranges in the dataclasses of this package.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from topr_exp.config.cluster import ClusterConfig
from topr_exp.config.data import DataConfig, Grading, Reward
from topr_exp.config.groups import (
    CheckpointConfig,
    ComposeConfig,
    EvaluationConfig,
    OptimConfig,
    ScheduleConfig,
    TaskConfig,
    TrackingConfig,
)
from topr_exp.config.identity import identity, run_name
from topr_exp.config.model import ModelConfig, SamplerConfig
from topr_exp.config.schema import FINITE, Count, Section, Seed, within


class Mu(Enum):
    """Source of log μ of sampled completions: a forward pass of training, or the sampler's own."""

    scored = "scored"
    sampler = "sampler"


SOLVE = TaskConfig()


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """One run, checked."""

    name: str
    seed: Seed
    baseline: Annotated[float | None, FINITE] = None
    effective_positive: Annotated[float | None, within("[0, 1]")] = None
    iterations: Count = 1
    mu: Mu = Mu.scored
    dry_run: bool
    output_dir: str
    task: TaskConfig = SOLVE
    algo: Any  # a loss of topr_exp.algorithms, or a user's
    data: DataConfig
    model: ModelConfig
    sampler: SamplerConfig
    compose: ComposeConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    cluster: ClusterConfig
    tracking: TrackingConfig

    @property
    def reward(self) -> Reward:
        """The rewards: the data's if set, else those of the algorithm's paper (1 and -1 where it names none)."""
        return self.data.reward or Reward[getattr(self.algo, "rewards", Reward.pm1.name)]

    @property
    def reference(self) -> ModelConfig:
        """The model that π_ref is: the one that model.reference names, else the model in training as it was."""
        path = self.model.reference or self.model.path
        revision = None if self.model.reference else self.model.revision
        return dataclasses.replace(self.model, path=path, revision=revision)

    @property
    def solver(self) -> ModelConfig:
        """The model that writes the solutions which a verifier reads."""
        assert self.task.solver is not None
        return dataclasses.replace(self.model, path=self.task.solver, revision=None, lora=None)

    @property
    def grader_name(self) -> str:
        """The grader of the completions; of a verifier's, the one that compares its verdict with the truth."""
        return "verdict" if self.task.verifies else self.data.grader_name

    @property
    def grading(self) -> Grading:
        """Settings of grading the completions."""
        if self.task.verifies:
            return Grading(self.grader_name)
        return Grading(self.grader_name, self.reward is Reward.graded, self.data.threshold)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that decide the result, as plain values: they name the run, and a stored run is compared in them."""
        return identity(self)

    @property
    def folder(self) -> Path:
        """The run's folder: the same for the same experiment, however it is started."""
        return Path(self.output_dir) / self.name / run_name(self)

    @property
    def store(self) -> Path:
        """The folder of the store that all runs share."""
        return Path(self.output_dir) / "store"
