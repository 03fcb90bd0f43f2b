"""Share of a GPU's memory that an engine takes beside a policy and other runs."""

import math

import torch

from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed

MARGIN_BYTES = 3 << 30  # the engine's CUDA context, and growth in this process
MAX_SHARE = 0.9
# Room to train: twice the bytes of each weight with its gradient and AdamW's state, and room for activations.
TRAINING_BYTES_PER_WEIGHT = 2 * 16
ACTIVATION_BYTES = 16 << 30


def has_room_to_train(policy: Policy, engine_share: float | None) -> bool:
    """True if the memory that an engine leaves free is plenty to train this policy in; False without a GPU.

    engine_share: fraction of the GPU's memory that the engine takes; None: half of the free memory.
    """
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    room = free / 2
    if engine_share is not None:
        room = free - engine_share * total
    weight_count = sum(weight.numel() for weight in policy.model.parameters())
    training_bytes = TRAINING_BYTES_PER_WEIGHT * weight_count + ACTIVATION_BYTES
    return room >= training_bytes * distributed.runs_per_gpu()


def free_share(*, stays: bool) -> float:
    """Return the fraction of the GPU's memory for an engine: all free memory but a margin, half of it if it stays.

    The other half is for gradient and activations of a policy that trains meanwhile. Each of several runs on a GPU
    takes at most its part of the whole, its policy included. Rounded down to hundredths, at least one hundredth.
    Without a GPU: 1, which nobody reads.
    """
    if not torch.cuda.is_available():
        return 1
    free, total = torch.cuda.mem_get_info()
    share = min((free - MARGIN_BYTES) / total, MAX_SHARE)
    run_count = distributed.runs_per_gpu()
    if run_count > 1:
        share = min(share, MAX_SHARE / run_count - torch.cuda.memory_reserved() / total)
    if stays:
        share /= 2
    return max(0.01, math.floor(100 * share) / 100)


def others_hold_memory() -> bool:
    """True if other processes hold memory of this process's GPU."""
    if not torch.cuda.is_available():
        return False
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > MARGIN_BYTES
