"""Whether layers are computed again in the backward pass where `optim.gradient_checkpointing` leaves it open."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from topr_exp.runs.gpu_memory import ADAMW, free_gib, shards_of
from topr_exp.runs.sampler_memory import CAST, GIB, MASTER
from topr_exp.runtime import distributed

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.data.questions import Questions
    from topr_exp.models.policy import Policy

SHARE = 0.9  # of the memory there is for it that the estimate may reach


def peak(
    *, weights: int, layers: int, hidden: int, mlp: int, vocabulary: int, tokens: int, pairs: int, in_one: bool,
    adamw: bool, shards: int,
) -> float:  # fmt: skip
    """GiB of an update without checkpointing: what benchmarks/simulated_memory.py counts, to 1 GiB, as a formula.

    weights: of the layers. tokens: of a micro-batch, shared ones once. pairs: its queries' rows times their longest
    keys, which a GPU's kernels want copied for each head. in_one: a process's part of a batch is one micro-batch, so
    that gradients come as activations go.
    """
    output = MASTER * vocabulary * hidden
    all_weights = weights + 2 * vocabulary * hidden
    master = MASTER * all_weights / shards
    kept = CAST * weights + layers * (tokens * (8 * mlp + 37 * hidden) + 4 * pairs * hidden)
    both = max(kept, master) if in_one else kept + master
    state = ADAMW * all_weights / shards if adamw else 0
    return (master + both + 3 * output + state) / GIB


def settle(config: Config, policy: Policy, train: Questions) -> tuple[Config, str]:
    """The settings with `optim.gradient_checkpointing` chosen where they leave it open, and why; process 0 chooses."""
    optim = config.optim
    if optim.gradient_checkpointing is not None:
        return config, ""
    again, why = distributed.broadcast(choose(config, policy, train, distributed.world_size()))
    return dataclasses.replace(config, optim=dataclasses.replace(optim, gradient_checkpointing=again)), why


def choose(config: Config, policy: Policy, train: Questions, processes: int) -> tuple[bool, str]:
    """Whether to compute layers again, and why, in words for the header of a run."""
    if policy.device.type != "cuda":
        return True, "layers are computed again in the backward pass: no GPU whose memory is known"
    if config.model.lora is not None:
        return True, "layers are computed again in the backward pass: what they keep with model.lora is not estimated"
    if config.data.completions is not None or config.schedule.prompts is not None or needs_reference(config):
        return True, "layers are computed again in the backward pass: how much else lies on the GPU is not known before"
    if not hasattr(policy.model.config, "intermediate_size"):
        return True, "layers are computed again in the backward pass: what they keep of this model is not estimated"
    need, room = estimate(config, policy, train, processes), room_of(config, policy)
    fits = need <= SHARE * room
    what = "kept for the backward pass" if fits else "computed again in the backward pass"
    return not fits, f"layers are {what}: kept they need at most {need:.0f} GiB by estimate, {room:.0f} are there"


def room_of(config: Config, policy: Policy) -> float:
    """GiB for an update: what is free, and what its weights, which the estimate counts, hold already."""
    held = sum(weight.numel() * weight.element_size() for weight in policy.model.parameters()) / GIB
    return (free_gib(config.cluster.device.name) or 0) + held


def needs_reference(config: Config) -> bool:
    return bool({"ref_logp", "vocab_kl"} & config.algo.needs)


def estimate(config: Config, policy: Policy, train: Questions, processes: int) -> float:
    """The peak with the longest prompts, all of whose completions have as many tokens as they may."""
    from topr_exp.training.packing import common_prefix
    from topr_exp.training.tree_attention import use_tree_attention

    model, optim = policy.model.config, config.optim
    own = -(-optim.batch_size // processes)
    rows = min(optim.micro_batch_size, own) * (2 if "pairs" in config.algo.needs else 1)
    longest = max(map(len, train.prompts)) + config.sampler.max_new_tokens
    shared = common_prefix(train.prompts) if use_tree_attention(policy.model) else 0
    return peak(
        weights=policy.parameters - 2 * policy.vocabulary * model.hidden_size,
        layers=model.num_hidden_layers,
        hidden=model.hidden_size,
        mlp=model.intermediate_size,
        vocabulary=policy.vocabulary,
        tokens=shared + rows * (longest - shared),
        pairs=rows * longest,
        in_one=optim.micro_batch_size >= own,
        adamw=optim.name.name == "adamw",
        shards=shards_of(config, policy.parameters, processes),
    )
