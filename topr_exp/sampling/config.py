"""Settings of a sampler (the `sampler` group)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from topr_exp.types import ConfigError


@dataclass(frozen=True)
class SamplerConfig:
    """How completions are drawn from a model; everything here but `prompts_per_shard` decides the distribution."""

    name: str
    seed: int
    temperature: float
    top_p: float
    top_k: int  # 0 keeps the whole vocabulary
    max_new_tokens: int
    prompts_per_shard: int

    PLACE: ClassVar[frozenset[str]] = frozenset()  # fields that say where it computes, no more: no part of a run's name

    def __post_init__(self) -> None:
        if self.name not in SCHEMAS:
            raise ValueError(f"name must be one of {', '.join(SCHEMAS)}; got {self.name}")
        if self.seed < 0:
            raise ValueError(f"seed must be 0 or more; got {self.seed}")
        if not 0 < self.temperature <= 10:
            raise ValueError(f"temperature must be in (0, 10]; got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1]; got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (the whole vocabulary) or more; got {self.top_k}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be 1 or more; got {self.max_new_tokens}")
        if self.prompts_per_shard < 1:
            raise ValueError(f"prompts_per_shard must be 1 or more; got {self.prompts_per_shard}")

    def distribution(self, vocabulary: int) -> dict[str, Any]:
        """What decides the distribution of a completion, by which it is stored; top_k at most the vocabulary."""
        names = ("name", "temperature", "top_p", "top_k", "max_new_tokens")
        return {**{name: getattr(self, name) for name in names}, "top_k": min(self.top_k, vocabulary)}


@dataclass(frozen=True)
class VLLMConfig(SamplerConfig):
    """vLLM engines in processes of their own."""

    python: str | None  # of an environment that has vLLM; None: the one that runs this
    tensor_parallel: int  # GPUs an engine
    gpu_memory_utilization: float  # share of a GPU's memory that an engine takes, weights included
    cpu_cache_gib: float  # keys and values of an engine on the CPU
    eager: bool  # no CUDA graphs: starts sooner, samples more slowly
    sleep: bool  # on-policy: the engine gives its GPU memory back while the policy trains

    PLACE: ClassVar[frozenset[str]] = frozenset(
        {"python", "tensor_parallel", "gpu_memory_utilization", "cpu_cache_gib", "eager", "sleep"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel must be 1 or more; got {self.tensor_parallel}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1]; got {self.gpu_memory_utilization}")
        if not self.cpu_cache_gib > 0:
            raise ValueError(f"cpu_cache_gib must be above 0; got {self.cpu_cache_gib}")


SCHEMAS: dict[str, type[SamplerConfig]] = {"hf": SamplerConfig, "vllm": VLLMConfig}


def sampler_schema(values: Any) -> type[SamplerConfig]:
    """The settings that a sampler of this name has; ConfigError for a name that is none."""
    name = values.get("name") if isinstance(values, Mapping) else values
    if name not in SCHEMAS:
        raise ConfigError(f"sampler.name={name}: expected one of {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def sampler_with(key: str) -> str | None:
    """The sampler whose settings have this dotted key."""
    return next((n for n, schema in SCHEMAS.items() if key in {f"sampler.{f.name}" for f in fields(schema)}), None)
