"""Layout of the model in training over the processes of a run: replicated or sharded.

`ddp`: every process holds all weights; gradients are summed once an update.
`fsdp`: every process holds a part of each weight, of its gradient and of the optimizer's state; torch's FSDP2 gathers
a block's weights when it computes and sums the gradients by parts.
`hsdp`: the same within each machine, so that weights are gathered over its links; between machines go sums alone.

All sum over processes, where torch would average: the trainer has divided by the global batch's number of examples.
"""

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from topr_exp.config.groups import OptimConfig
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.layers import layers_for
from topr_exp.training.logprobs import TokenScores, score_tokens
from topr_exp.types import TOPRError

MIN_SHARDED_WEIGHTS = 1_000_000_000  # in float32 with gradient and AdamW's state they take 16 GB


class ScoringModule(nn.Module):
    """`score_tokens` of a model as the forward pass of a module, which torch's wrappers wrap."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs | None, options: dict[str, Any]) -> TokenScores | None:
        """Score the inputs, as a tuple in which the wrappers find tensors; None without inputs."""
        if inputs is None:
            return None
        return score_tokens(self.model, inputs, **options)


class ProcessLayout:
    """The model on one process; other layouts change what they do otherwise."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def score(self, inputs: Inputs, **options: Any) -> TokenScores:
        """Call `score_tokens` of the model; every process has to call it as often as the others."""
        return score_tokens(self.model, inputs, **options)

    def sum_gradients(self) -> None:
        """Sum the gradient of an update over the processes, where its backward passes have not."""

    def clip(self, limit: float) -> Tensor:
        """Clip the gradient to a norm of at most `limit`; returns the norm of the whole gradient before that."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    @contextlib.contextmanager
    def gathered_weights(self) -> Iterator[None]:
        """Hold all weights on this process while the block runs, which may differ from process to process."""
        yield


class DDP(ProcessLayout):
    """The whole model on every process.

    Not torch's DistributedDataParallel: to sum during the backward pass saves milliseconds of an update of seconds.
    """

    def sum_gradients(self) -> None:
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        has_gradient_here = [weight.grad is not None for weight in weights]
        has_gradient = torch.tensor(has_gradient_here, device=weights[0].device).int()
        torch.distributed.all_reduce(has_gradient, torch.distributed.ReduceOp.MAX)  # on any process
        reductions = []
        for weight, is_summed in zip(weights, has_gradient.tolist(), strict=True):
            if not is_summed:
                continue
            if weight.grad is None:  # of an expert that no token of this process chose
                weight.grad = torch.zeros_like(weight)
            reductions.append(torch.distributed.all_reduce(weight.grad, async_op=True))
        for reduction in reductions:
            reduction.wait()


class FSDP(ProcessLayout):
    """A part of every weight on each process, by rows.

    Where the forward pass computes below float32, blocks are gathered as they are computed with, at half the bytes;
    the parts, their gradients' sums, the last norm and the output layer are float32. (In one process a block's norms
    multiply by float32 weights, here by rounded ones, as its matrices do in both.)
    """

    def __init__(self, policy: Policy, *, by_machine: bool = False) -> None:
        """by_machine: each machine has all parts."""
        super().__init__(policy.model)
        self.policy = policy
        self.unsharded_model = without_numbers(policy.model)  # `gathered_weights` gives it weights
        self.empty_weights = dict(self.unsharded_model.named_parameters(remove_duplicate=False))
        self.root = shard(policy, device_mesh(policy.device.type, by_machine=by_machine))
        with torch.no_grad():
            self.root(None, {})  # FSDP wants to see the root before any block
        self.root.reshard()

    def score(self, inputs: Inputs, **options: Any) -> TokenScores:
        return self.root(inputs, options)

    def clip(self, limit: float) -> Tensor:
        norm: Any = super().clip(limit)
        return norm.full_tensor()

    @contextlib.contextmanager
    def gathered_weights(self) -> Iterator[None]:
        """Replace the policy's model by an unsharded one in float32, since FSDP would gather blocks as they compute."""
        self.root.reshard()  # after a pass without gradients it may still be gathered
        gathered = {}  # by sharded weight: one with two names is gathered once
        for weight in self.model.parameters():
            # As the weight: autocast keeps what it casts only of weights that are trained.
            gathered[weight] = nn.Parameter(weight.detach().full_tensor(), requires_grad=weight.requires_grad)
        named_weights = self.model.named_parameters(remove_duplicate=False)
        state = {name: gathered[weight] for name, weight in named_weights}
        self.unsharded_model.load_state_dict(state, strict=False, assign=True)
        self.policy.replace_model(self.unsharded_model)
        try:
            yield
        finally:
            self.policy.replace_model(self.model)
            self.unsharded_model.load_state_dict(self.empty_weights, strict=False, assign=True)


def without_numbers(model: Any) -> Any:
    """Copy a model with weights that have shapes and no numbers."""
    empty_weights = {}
    for weight in model.parameters():
        empty_weights[id(weight)] = nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
    return copy.deepcopy(model, memo=empty_weights)  # taken for copies of the weights


def shardable_blocks(model: Any) -> list[Any]:
    """List the blocks whose weights FSDP gathers together; TOPRError where it does not fit."""
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise TOPRError(f"cluster.parallel=fsdp needs a newer torch than {torch.__version__}; set ddp")
    block_classes = set(model._no_split_modules or ())
    blocks = [module for module in model.modules() if type(module).__name__ in block_classes]
    if not blocks:
        raise TOPRError(f"cluster.parallel=fsdp: {type(model).__name__} does not name its blocks; set ddp")
    return blocks


def shard(policy: Policy, mesh: Any) -> Any:
    """Shard a policy's model in place; returns the module that scores with it. TOPRError where FSDP does not fit."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = policy.model
    blocks = shardable_blocks(model)
    compute_dtype = None if policy.full_precision else policy.compute_dtype
    # Inputs stay as they are: states between blocks are float32 under autocast.
    precision = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    # Embeddings, last norm and output layer stay together: the first and the last may be one tensor.
    root: Any = fully_shard(ScoringModule(model), mesh=mesh)
    for module in (root, *blocks):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return root


def device_mesh(device: str, *, by_machine: bool) -> Any:
    """Arrange the processes in one row, or in a row for each machine."""
    from torch.distributed.device_mesh import init_device_mesh

    process_count = distributed.world_size()
    if not by_machine:
        return init_device_mesh(device, (process_count,))
    per_machine = int(os.environ["LOCAL_WORLD_SIZE"])
    shape = (process_count // per_machine, per_machine)
    return init_device_mesh(device, shape, mesh_dim_names=("machines", "processes"))


def parallelize(policy: Policy, kind: str | None) -> ProcessLayout:
    """Lay a policy's model over the processes of this run: by `ddp`, `fsdp`, `hsdp`, or (None) as suits its size.

    This may replace the model's parameters, so make the optimizer afterwards.
    """
    chosen_kind = layout_kind(policy.model, kind)
    if chosen_kind is None:
        return ProcessLayout(policy.model)
    if chosen_kind == "ddp":
        return DDP(policy.model)
    return FSDP(policy, by_machine=chosen_kind == "hsdp")


def layout_kind(model: Any, kind: str | None) -> str | None:
    """Return the layout of a model over the processes of this run, None on a single one; kind: as `parallelize`'s."""
    if distributed.world_size() == 1:
        return None
    if kind is not None:
        return kind
    return "fsdp" if model.num_parameters() >= MIN_SHARDED_WEIGHTS else "ddp"


def check_layers(model: Any, config: OptimConfig, kind: str | None) -> None:
    """Raise TOPRError for a model that can't be trained as the settings ask; kind: as `parallelize`'s."""
    for setting in ("compile", "gradient_checkpointing"):
        if getattr(config, setting):
            layers_for(setting, model)
    if layout_kind(model, kind) in ("fsdp", "hsdp"):
        shardable_blocks(model)
