"""How the model in training lies over the processes of a run: whole on each of them, or sharded.

`ddp`: every process holds all weights; gradients are summed by torch's DistributedDataParallel.
`fsdp`: every process holds a part of each weight, of its gradient and of the optimizer's state; torch's FSDP2 gathers
a block's weights when it computes and sums the gradients by parts.

Both sum over processes, where torch would average: the trainer has divided by the number of examples of the global
batch, so the sum is the gradient that one process computes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from topr_exp.runtime import distributed
from topr_exp.training.logprobs import Inputs, TokenScores, score_tokens
from topr_exp.types import TOPRError

LARGE = 1_000_000_000  # weights; in float32 with gradient and AdamW's state they take 16 GB


class ScoringModule(nn.Module):
    """`score_tokens` of a model as the forward pass of a module, since torch's wrappers wrap that."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs | None, options: dict[str, Any]) -> tuple[Tensor | None, ...]:
        """The fields of TokenScores, since the wrappers find tensors in tuples only; none without inputs."""
        if inputs is None:
            return ()
        scores = score_tokens(self.model, inputs, **options)
        return tuple(getattr(scores, field.name) for field in dataclasses.fields(scores))


class SingleProcess:
    """The model of a run of one process."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def score(self, inputs: Inputs, **options: Any) -> TokenScores:
        """`score_tokens` of the model; every process has to call it as often as the others."""
        return score_tokens(self.model, inputs, **options)

    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around the forward and backward pass of a micro-batch; the `last` one of an update sums over processes."""
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Clip the gradient to a norm of at most `limit`; returns the norm of the whole gradient before that."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    @contextlib.contextmanager
    def gathered_weights(self) -> Iterator[None]:
        """While the block runs, all weights are on this process: it may compute what the others don't."""
        yield


class DDP(SingleProcess):
    """The whole model on every process."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.wrapped = nn.parallel.DistributedDataParallel(ScoringModule(model), gradient_as_bucket_view=True)
        self.wrapped.register_comm_hook(None, lambda state, bucket: sum_over_processes(bucket))

    def score(self, inputs: Inputs, **options: Any) -> TokenScores:
        if not torch.is_grad_enabled():
            return super().score(inputs, **options)
        return TokenScores(*self.wrapped(inputs, options))

    def accumulating(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if last else self.wrapped.no_sync()


def sum_over_processes(bucket: torch.distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """The communication hook of DistributedDataParallel: sum a bucket of gradients."""
    work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class FSDP(SingleProcess):
    """A part of every weight on each process, by rows."""

    def __init__(self, model: Any) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise TOPRError(f"cluster.parallel=fsdp needs a newer torch than {torch.__version__}; set ddp")
        super().__init__(model)
        mesh = init_device_mesh(model.device.type, (distributed.world_size(),))
        kinds = set(model._no_split_modules or ())
        blocks = [module for module in model.modules() if type(module).__name__ in kinds]
        if not blocks:
            raise TOPRError(f"cluster.parallel=fsdp: {type(model).__name__} does not name its blocks; set ddp")
        for block in blocks:
            fully_shard(block, mesh=mesh)
        # Embeddings, last norm and output layer stay together: the first and the last may be one tensor.
        root: Any = fully_shard(ScoringModule(model), mesh=mesh)
        self.root = root
        self.blocks: list[Any] = blocks
        for part in (self.root, *self.blocks):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other
        with torch.no_grad():
            self.root(None, {})  # FSDP wants to see the root before any block
        self.root.reshard()

    def score(self, inputs: Inputs, **options: Any) -> TokenScores:
        return TokenScores(*self.root(inputs, options))

    def clip(self, limit: float) -> Tensor:
        norm: Any = super().clip(limit)
        whole: Tensor = norm.full_tensor()
        return whole

    @contextlib.contextmanager
    def gathered_weights(self) -> Iterator[None]:
        for block in self.blocks:
            block.set_reshard_after_forward(False)
        for part in (self.root, *self.blocks):
            part.unshard()
        try:
            yield
        finally:
            for block in self.blocks:
                block.set_reshard_after_forward(True)
            for part in (self.root, *self.blocks):
                part.reshard()


def parallelize(model: Any, kind: str | None) -> SingleProcess:
    """Lay a model over the processes of this run: by `ddp`, by `fsdp`, or (None) as suits its size.

    This may replace the model's parameters, so make the optimizer afterwards.
    """
    if distributed.world_size() == 1:
        return SingleProcess(model)
    return {"ddp": DDP, "fsdp": FSDP}[chosen(kind, sum(weight.numel() for weight in model.parameters()))](model)


def chosen(kind: str | None, weights: int) -> str:
    """`ddp` or `fsdp` as it was asked for, or (None) as suits a model of so many weights."""
    if kind is None:
        return "fsdp" if weights >= LARGE else "ddp"
    return kind
