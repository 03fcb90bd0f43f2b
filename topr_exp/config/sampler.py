"""Settings of a sampler (the `sampler` group)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from topr_exp.config.identity import identity
from topr_exp.config.section import Count, OptionalCount, Section, Seed, above, at_least, within

Share = Annotated[float, within("(0, 1]")]
OptionalShare = Annotated[float | None, within("(0, 1]")]


@dataclass(frozen=True, kw_only=True)
class SamplerConfig(Section):
    """Settings of sampling; everything here but `prompts_per_shard` decides the distribution."""

    name: str
    seed: Seed
    temperature: Annotated[float, within("(0, 10]")]
    top_p: Share
    top_k: Annotated[int, at_least(0, "0 (the whole vocabulary) or more")]
    max_new_tokens: Count
    prompts_per_shard: Count

    def distribution(self, vocabulary: int) -> dict[str, Any]:
        """Key of the distribution of a completion in the store; top_k at most the vocabulary."""
        decides = identity(dataclasses.replace(self, top_k=min(self.top_k, vocabulary)), "sampler.")
        return {key: value for key, value in decides.items() if key not in ("seed", "prompts_per_shard")}


class Transfer(Enum):
    """Way of a training policy's weights to engines that are up."""

    file = "file"  # that one process writes and all engines read
    memory = "memory"  # from their process, on the same GPU without leaving it


@dataclass(frozen=True, kw_only=True)
class VLLMConfig(SamplerConfig):
    """vLLM engines in processes of their own."""

    python: str | None = None  # of an environment that has vLLM; None: the one that runs this
    tensor_parallel: Count  # GPUs an engine
    gpu_memory_utilization: OptionalShare = None  # of a GPU that an engine takes, weights included; None: what is free
    cpu_cache_gib: Annotated[float, above(0)]  # keys and values of an engine on the CPU
    eager: bool  # no CUDA graphs: starts sooner, samples more slowly
    sleep: bool  # on-policy: the engine gives its GPU memory back while the policy trains
    timeout_min: Annotated[float, above(0)]  # minutes that an engine may take for a shard, and to start

    shards_at_once: OptionalCount = None  # of an engine; None: 2 on a GPU, else 1
    transfer: Transfer

    def check(self) -> None:
        if self.transfer is Transfer.memory and self.tensor_parallel > 1:
            raise ValueError(
                f"transfer=memory reaches engines on one GPU, not on tensor_parallel={self.tensor_parallel}; "
                "allowed: transfer=file"
            )


SCHEMAS: dict[str, type[SamplerConfig]] = {"hf": SamplerConfig, "vllm": VLLMConfig}
