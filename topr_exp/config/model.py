"""Settings of the model (the `model` group)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from topr_exp.config.section import Count, Section, above

ALL_LINEAR = "all-linear"


class Precision(Enum):
    """Numbers of the forward pass; weights are float32, but for those that LoRA leaves as they are."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Size(Enum):
    """Which of two values `${size:TINY,LARGE}` in a YAML takes."""

    tiny = "tiny"
    large = "large"


class Attention(Enum):
    sdpa = "sdpa"
    eager = "eager"
    flash_attention_2 = "flash_attention_2"


@dataclass(frozen=True)
class LoRA(Section):
    """Adapter beside frozen weights: to the weight W of a linear layer (alpha / rank) B A is added.

    A has `rank` rows, B as many columns and begins with zeros (https://arxiv.org/abs/2106.09685).
    """

    rank: Count
    alpha: Annotated[float, above(0)]
    targets: str | list[str]  # all-linear: those of all blocks; or names, as q_proj or layers.0.self_attn.q_proj

    def check(self) -> None:
        if not self.names and self.targets != ALL_LINEAR:
            raise ValueError(f"targets must be {ALL_LINEAR} or names of linear layers; got nothing")

    @property
    def names(self) -> list[str]:
        """The names that `targets` lists; none where they are all."""
        listed = [self.targets] if isinstance(self.targets, str) else self.targets
        return [name for name in listed if name and name != ALL_LINEAR]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The model that samples and is trained."""

    name: str  # a label: nothing follows from it
    size: Size  # for ${size:...}
    learning_rates: str | None = None  # the entry of conf/learning_rates.json for `experiment=...`; None: there is none
    path: str  # a shipped model (tiny), a folder or a name on the hub
    revision: str | None = None  # of a model on the hub: a branch, tag or commit; None takes the newest
    dtype: Precision
    attention: Attention
    reference: str | None = None  # path of π_ref, for losses that have one; None is `path`
    trust_remote_code: bool = False  # True lets a model folder run code of its own
    float32_head: bool  # scores and trains with the output layer in float32, where dtype is less precise
    lora: LoRA | None = None  # trains small matrices beside the weights, which stay as they are, in `dtype`

    def check(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if not self.path:
            raise ValueError("path must be a shipped model, a folder or a name on the hub; got nothing")
