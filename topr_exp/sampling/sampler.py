"""Samplers: one interface to what draws completions, and the choice that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
import transformers

from topr_exp.config.model import SamplerConfig, VLLMConfig
from topr_exp.models.policy import Policy, memory_for
from topr_exp.sampling.hf import Sample, sample_completions
from topr_exp.sampling.seeds import seed_of


class Sampler(Protocol):
    """Draws completions from policies; `prepare` comes before `sample`, `close` gives back what it holds."""

    lanes: int  # calls of `sample` that may run at once, in threads

    @property
    def config(self) -> SamplerConfig: ...

    def prepare(self, policy: Policy, length: int) -> None:
        """From now on sample from this policy, at most `length` tokens of prompt and completion together.

        Every process of the run has to call it.
        """

    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        """n completions of each prompt, a function of the weights and the arguments.

        seed: numbers that together name the randomness. stop: texts that end a completion. Raises TOPRError (one
        line) for an engine that could not be started or broke.
        """

    def made_by(self) -> dict[str, str]:
        """Program, versions and device that drew the completions. Kept with them; no part of their key."""

    def rest(self) -> None:
        """Free what can be freed at once: the policy trains next, and is sampled from again afterwards."""

    def close(self) -> None:
        """End all processes and free their memory; a later `sample` starts them again."""

    def stop(self) -> None:
        """Close for good: calls of `sample` that are under way fail."""


class HFSampler:
    """transformers, on the device of the policy."""

    lanes = 1

    def __init__(self, config: SamplerConfig) -> None:
        self.config = config
        self.device = ""

    def prepare(self, policy: Policy, length: int) -> None:
        self.device = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else "cpu"

    def sample(
        self, policy: Policy, prompts: Sequence[Sequence[int]], n: int, seed: tuple[int, ...], stop: Sequence[str]
    ) -> list[list[Sample]]:
        generator = torch.Generator(device=policy.device).manual_seed(seed_of(*seed))
        stopped = policy.stopper(stop) if stop else None
        work = f"sampling {len(prompts) * n} completions at a time"
        with policy.autocast(keep=True), memory_for(work, "lower sampler.prompts_per_shard, or take sampler=vllm"):
            return sample_completions(policy.model, prompts, n, self.config, policy.eos_ids, generator, stopped)

    def made_by(self) -> dict[str, str]:
        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        return {"sampler": "hf", **versions, "device": self.device}

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self) -> None:
        pass


@contextlib.contextmanager
def open_sampler(
    config: SamplerConfig, scratch: Path, trust_remote_code: bool, *, beside_training: bool = False
) -> Iterator[Sampler]:
    """The sampler that the settings name, closed at the end of the block.

    scratch: a folder of the run for engines' logs and weights. beside_training: the policy trains while it is open.
    Raises ConfigError where the program is not installed.
    """
    if not isinstance(config, VLLMConfig):
        yield HFSampler(config)
        return
    from topr_exp.sampling.vllm import VLLM

    sampler = VLLM(config, scratch, trust_remote_code, beside_training)
    try:
        yield sampler
    finally:
        sampler.close()
