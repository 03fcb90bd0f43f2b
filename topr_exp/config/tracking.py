"""Settings of tracking (the `tracking` group)."""

from __future__ import annotations

from dataclasses import dataclass

from topr_exp.config.section import Section


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
