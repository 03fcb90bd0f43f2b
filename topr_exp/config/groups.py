"""Settings of the small groups: task, schedule, evaluation, checkpoint, tracking."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from topr_exp.config.data import check_line_breaks
from topr_exp.config.section import OptionalCount, Range, Section, Seed, at_least, within

PLACES = ("{question}", "{solution}")


class TaskName(Enum):
    """To answer the problems, or to verify answers of another model."""

    solve = "solve"
    verifier = "verifier"


@dataclass(frozen=True)
class TaskConfig(Section):
    """Task of the model; all but `name` are a verifier's."""

    name: TaskName = TaskName.solve
    solver: str | None = None  # path of the model that writes the solutions: shipped, a folder or a name on the hub
    solutions: OptionalCount = None  # solutions a training problem
    test_solutions: OptionalCount = None  # solutions a test problem: the K of weighted self-consistency
    template: str | None = None  # the verifier's prompt, with {question} and {solution}
    chat: bool | None = None  # whether it goes through the verifier's chat template

    def check(self) -> None:
        if not self.verifies:
            return
        if not self.solver:
            raise ValueError("solver must be a model for task=verifier (a shipped one, a folder or a name on the hub)")
        for field in ("solutions", "test_solutions", "chat"):
            if getattr(self, field) is None:
                raise ValueError(f"{field} must be set for task=verifier; got null")
        if self.template is None or any(self.template.count(place) != 1 for place in PLACES):
            raise ValueError(f"template must hold {' and '.join(PLACES)} once each; got {self.template!r}")
        check_line_breaks("template", r'task.template="{question}\n{solution}"', self.template)

    @property
    def verifies(self) -> bool:
        return self.name is TaskName.verifier


@dataclass(frozen=True)
class ScheduleConfig(Section):
    """Schedule of sampling new completions from the policy in training."""

    prompts: OptionalCount = None  # problems that are sampled at a time; None: all at once, then one pass over the set
    updates: OptionalCount = None  # optimizer steps before sampling again
    rounds: OptionalCount = None  # how many times that is done
    replay: Annotated[float, within("[0, 1)")] = 0.0  # chance that completions come from an earlier round

    def check(self) -> None:
        if self.prompts is None:
            return
        for field in ("updates", "rounds"):
            if getattr(self, field) is None:
                raise ValueError(f"{field} must be 1 or more where prompts is set; got null")


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """Evaluation samples with the sampler's settings and this seed, the same for every run that is compared."""

    seed: Seed
    every: OptionalCount = None  # updates between two evaluations while training; None: only before and after
    problems: OptionalCount = None  # test problems (the first ones) that these use; None: all


FROM_1 = Range("numbers from 1, null for all", lambda given: all(number >= 1 for number in given))


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """Intervals of checkpoints, and the weights that stay on disk."""

    every_seconds: Annotated[float, at_least(0, "0 (after every update) or more")]
    keep_iterations: Annotated[list[int] | None, FROM_1]  # whose weights are kept besides the last's; None keeps all


@dataclass(frozen=True)
class TrackingConfig(Section):
    """Files are always written; `wandb` sends the same to Weights & Biases, `tensorboard` writes it for TensorBoard."""

    name: str
    project: str | None = None  # of W&B, as all below
    entity: str | None = None
    group: str | None = None  # W&B shows the runs of a group together
    job_type: str | None = None
    model_artifact: bool = False  # upload the trained weights too

    def check(self) -> None:
        if self.name not in ("none", "wandb", "tensorboard"):
            raise ValueError(f"name must be none, wandb or tensorboard; got {self.name}")
        if self.name == "wandb" and not self.project:
            raise ValueError(f"project must be set for wandb; got {self.project}")
