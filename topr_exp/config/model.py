"""Settings of the model and of sampling from it (groups `model` and `sampler`)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from topr_exp.schema import (
    Count,
    OptionalCount,
    Range,
    Rule,
    Section,
    Seed,
    above,
    at_least,
    drop_keys,
    identity,
    within,
)

ALL_LINEAR = "all-linear"
MODEL = Range("a shipped model, a folder or a name on the hub", bool)


@dataclass(frozen=True)
class LoRA(Section):
    """Adapter beside frozen weights: to the weight W of a linear layer (alpha / rank) B A is added.

    A has `rank` rows, B as many columns and begins with zeros (https://arxiv.org/abs/2106.09685).
    """

    rank: Count
    alpha: Annotated[float, above(0)]
    targets: str | list[str]  # all-linear: all layers of the blocks; or names, as q_proj or layers.0.self_attn.q_proj

    def check(self) -> Iterator[Rule]:
        has_targets = bool(self.target_names) or self.targets == ALL_LINEAR
        yield "targets", has_targets, f"{ALL_LINEAR} or names of linear layers"

    @property
    def target_names(self) -> list[str]:
        """The names that `targets` lists; none where they are all."""
        targets = [self.targets] if isinstance(self.targets, str) else self.targets
        return [name for name in targets if name and name != ALL_LINEAR]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """The model that samples and is trained."""

    name: Annotated[str, Range("a text", bool)]  # a label, and the entry in conf/learning_rates.yaml
    path: Annotated[str, MODEL]
    revision: str | None = None  # on the hub: a branch, tag or commit; None: the newest
    dtype: Literal["float32", "bfloat16"]
    reference: str | None = None  # path of π_ref, for losses with a reference; None: `path`
    trust_remote_code: bool = False  # true: run the model folder's own code
    lora: LoRA | None = None  # train an adapter; the weights are frozen, in `dtype`

    @property
    def retired_settings(self) -> dict[str, Any]:
        return {"float32_head": self.dtype != "float32", "attention": "sdpa"}


Share = Annotated[float, within("(0, 1]")]
OptionalShare = Annotated[float | None, within("(0, 1]")]


@dataclass(frozen=True)
class Mismatch(Section):
    """Changes to the policy that completions to train on are drawn from, as an engine that disagrees would have them.

    bfloat16 rounds all weights, the smaller types only the matrices of the blocks, with one scale an output channel.
    """

    weights: Literal["none", "bfloat16", "float8_e4m3", "int8", "int4"] = "none"
    logits_noise: Annotated[float, within("[0, 10]")] = 0.0  # standard deviation; a function of seed and prefix


@dataclass(frozen=True, kw_only=True)
class SamplerConfig(Section):
    """Settings of sampling; everything here but `prompts_per_shard` decides the distribution."""

    name: str  # `sampler=NAME` chooses; of a sampler of your own, another one than hf and vllm
    seed: Seed  # of the completions to train on; evaluations have a fixed one
    temperature: Annotated[float, within("(0, 10]")]
    top_p: Share
    top_k: Annotated[int, at_least(0, "0 (the whole vocabulary) or more")]
    max_new_tokens: Count
    prompts_per_shard: Count
    mismatch: Mismatch = Mismatch()
    top_logprobs: OptionalCount = None  # likeliest tokens whose log q is noted at each place

    @property
    def has_mismatch(self) -> bool:
        """True where completions to train on are drawn from a changed policy."""
        return self.mismatch != Mismatch()

    @property
    def has_truncation(self) -> bool:
        """True where top_k or top_p keep some tokens from being drawn."""
        return self.top_k > 0 or self.top_p < 1

    def distribution_key(self, vocabulary: int) -> dict[str, Any]:
        """Key of the distribution of a completion in the store; counts of tokens are at most the vocabulary."""
        top_logprobs = self.top_logprobs
        if top_logprobs is not None:
            top_logprobs = min(top_logprobs, vocabulary)
        within_vocabulary = replace(self, top_k=min(self.top_k, vocabulary), top_logprobs=top_logprobs)
        settings = identity(within_vocabulary, "sampler.")
        return drop_keys(settings, "seed", "prompts_per_shard")


@dataclass(frozen=True, kw_only=True)
class VLLMConfig(SamplerConfig):
    """A vLLM engine in a separate process."""

    python: str | None = None  # Python of an environment with vLLM; None: the current one
    gpu_memory_utilization: OptionalShare = None  # fraction for an engine with its weights; None: all that is free
    sleep: bool  # on-policy: the engine frees its GPU memory during training


SAMPLERS: dict[str, type[SamplerConfig]] = {"hf": SamplerConfig, "vllm": VLLMConfig}
