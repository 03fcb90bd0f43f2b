"""Settings of a sampler (the `sampler` group)."""

from __future__ import annotations

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        if self.name != "hf":
            raise ValueError(f"name must be hf; got {self.name}")
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
