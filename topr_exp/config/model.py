"""Settings of the model (the `model` group)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

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
    float32_head: bool  # scores and trains with the output layer in float32, where dtype is less precise

    ADDED: ClassVar[Mapping[str, Any]] = {"float32_head": False}

    def check(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.float32_head and self.dtype is Precision.float32:
            raise ValueError(
                "float32_head must be false where dtype is float32, and the output layer with it; got true"
            )
        if not self.path:
            raise ValueError("path must be a shipped model, a folder or a name on the hub; got nothing")
