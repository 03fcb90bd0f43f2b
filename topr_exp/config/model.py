"""Settings of the model (the `model` group)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from topr_exp.config.section import Section


class Precision(Enum):
    """Numbers of the forward pass; weights are float32 in any case."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Attention(Enum):
    sdpa = "sdpa"
    eager = "eager"
    flash_attention_2 = "flash_attention_2"


@dataclass(frozen=True)
class ModelConfig(Section):
    """The model that samples and is trained."""

    name: str
    path: str  # a shipped model (tiny), a folder or a name on the hub
    revision: str | None  # of a model on the hub: a branch, tag or commit; None takes the newest
    dtype: Precision
    attention: Attention
    reference: str | None  # path of π_ref, for losses that have one; None is `path`
    trust_remote_code: bool  # True lets a model folder run code of its own

    def check(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not self.path:
            raise ValueError("path must be a shipped model, a folder or a name on the hub; got nothing")
