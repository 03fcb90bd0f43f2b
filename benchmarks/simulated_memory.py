"""Memory and traffic of an update of the paper's 8B model, without a GPU: the update on tensors without numbers.

    python benchmarks/simulated_memory.py [--micro 8 4 1] [--processes 1 8 16] [--lora 16] [--gather float32]
        [--question 100] [--completion 200]
    python benchmarks/simulated_memory.py --preset [NAME ...]      presets of one 24 GB card (presets.py)

torch's FakeTensorMode runs every operation on shapes alone. The bytes of all tensors alive are counted as they come
and go, so that the peak is exact but for the workspaces of a GPU's kernels, unused memory of its allocator and the CUDA
context (about half a GiB). Weights are float32, the forward pass is bfloat16 by autocast, the optimizer
Adafactor, the batch 8 completions of 200 tokens to questions of 100 after 900 tokens that all share. With --lora RANK
the weights are bfloat16 and frozen, and an adapter of that rank on all linear layers is trained by AdamW.

With several processes (torch's fake process group) an update has one completion for each; the weights are sharded over
all of them (fsdp), and over 8 a machine (hsdp) as well where there are more. Then the bytes that one process sends in
an update are counted, by ring algorithms: of a message of S bytes between N processes (N - 1) / N S to gather it or to
scatter its sum, twice that to sum it on all. Rings within a machine and between machines are counted separately. With
--gather float32 blocks are gathered in float32, as FSDP does by itself.

With --preset an update is the preset's in the worst case: each completion as long as it may be, after prompts of 200
tokens, the first 25 of which (the chat template) are shared. The memory of sampling is added up: the policy
in float32, and for sampler=hf its copy in bfloat16 and the keys and values of one shard at full length.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import measure
import numpy as np
import presets
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from training import LLAMAS
from transformers import AutoModelForCausalLM, LlamaConfig

import topr_exp
from topr_exp.config.groups import OptimConfig
from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.models.adapter import trained_weights
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.training import parallel, split_product
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import TokenScores
from topr_exp.training.optimizers import make_optimizer

GIB = 2**30
BATCH = 8
SHARED_TOKENS = 900
PRESET_PROMPT, PRESET_SHARED = 200, 25  # tokens
PROCESSES_OF_MACHINE = 8


@dataclass(frozen=True)
class Case:
    """An update, and the layout of its weights."""

    micro: int
    recompute: bool
    processes: int = 1
    by_machine: bool = False
    gather: str = "bfloat16"  # precision in which blocks are gathered
    lora: int | None = None  # rank
    question: int = 100  # tokens
    completion: int = 200
    model: str = "8b"  # of LLAMAS or of presets.SHAPES
    batch: int = BATCH
    shared: int = SHARED_TOKENS
    optimizer: str = "adafactor"

    @property
    def layout(self) -> str:
        if self.processes == 1:
            return "one process"
        return f"{self.processes} {self.parallel}"

    @property
    def parallel(self) -> str:
        if self.by_machine:
            return "hsdp"
        return "fsdp"


def is_distributed(types: Any) -> bool:
    """True for an operation on DTensors, by the types of its arguments."""
    return any(issubclass(kind, DTensor) for kind in types)


class MemoryCounter(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive while it is on, each storage once."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.sizes: dict[StorageWeakRef, int] = {}
        self.upper_bound = 0  # of the bytes alive, with storages freed since the last count
        self.resize = torch.UntypedStorage.resize_

    def __enter__(self) -> MemoryCounter:
        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            self.resize(storage, size)
            self.count(storage)

        torch.UntypedStorage.resize_ = resize_  # how FSDP frees what it gathered, and takes room for it again
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self.resize

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_distributed(types):
            return NotImplemented  # it has the size of the whole; the operation on its local part follows
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor):
                continue
            if tensor.device.type != "meta":
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        key = StorageWeakRef(storage)
        size = storage.nbytes()
        self.upper_bound += size - self.sizes.get(key, 0)
        self.sizes[key] = size
        if self.upper_bound > self.peak:
            self.peak = max(self.peak, self.bytes_alive())

    def bytes_alive(self) -> int:
        self.sizes = {storage: size for storage, size in self.sizes.items() if not storage.expired()}
        self.upper_bound = sum(self.sizes.values())
        return self.upper_bound

    def peak_of(self, work: Callable[[], Any]) -> float:
        """Return the GiB alive at the most while `work` runs."""
        self.peak = self.bytes_alive()
        work()
        return self.peak / GIB


class Message(NamedTuple):
    """A collective operation."""

    content: str
    rounds: int  # how often a byte goes round the ring
    group: Callable[[Any], Any]  # from the operation's arguments


MESSAGES = {
    "c10d::_allgather_base_": Message("weights", 1, lambda args: ProcessGroup.unbox(args[2])),
    "c10d::_reduce_scatter_base_": Message("sums", 1, lambda args: ProcessGroup.unbox(args[2])),
    "c10d::allreduce_": Message("sums", 2, lambda args: ProcessGroup.unbox(args[1])),
    "_c10d_functional::all_reduce": Message("sums", 2, lambda args: _resolve_process_group(args[2])),
}
WAITING = ("wait_tensor", "_wrap_tensor_autograd")  # operations that follow a message


class TrafficCounter(TorchDispatchMode):
    """Counts the GiB that this process sends while it is on, by content and by within or between machines."""

    def __init__(self) -> None:
        super().__init__()
        self.gib: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_distributed(types):
            return NotImplemented
        name = function.name()
        if name.startswith(("c10d::", "_c10d_functional::")) and function._opname not in WAITING:
            self.count(MESSAGES[name], args)  # a KeyError is a message that would go uncounted
        return function(*args, **(kwargs or {}))

    def count(self, message: Message, args: Any) -> None:
        ranks = torch.distributed.get_process_group_ranks(message.group(args))
        sizes = [tensor.nbytes for tensor in tree_iter(args) if isinstance(tensor, torch.Tensor)]
        size = max(sizes)  # of the whole, not of a part
        if message.rounds == 2:
            size = sum(sizes)
        machines = {rank // PROCESSES_OF_MACHINE for rank in ranks}
        reach = "within a machine"
        if len(machines) > 1:
            reach = "between machines"
        share = (len(ranks) - 1) / len(ranks)
        self.gib[f"{message.content} {reach}"] += message.rounds * share * size / GIB


@contextlib.contextmanager
def processes(case: Case) -> Iterator[None]:
    """Make this process rank 0 of a case's processes; no other one exists."""
    if case.processes == 1:
        yield
        return
    count = case.processes
    torch.distributed.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
    os.environ["LOCAL_WORLD_SIZE"] = str(PROCESSES_OF_MACHINE)
    distributed._world_size = count  # noqa: SLF001 - of processes that do not exist
    device_mesh = parallel.device_mesh
    mesh = device_mesh("cpu", by_machine=case.by_machine)
    parallel.device_mesh = lambda device, by_machine: mesh  # it looks at numbers, which fake tensors don't have
    fsdp: Any = torch.distributed.fsdp
    precision_policy = fsdp.MixedPrecisionPolicy
    if case.gather == "float32":
        fsdp.MixedPrecisionPolicy = lambda param_dtype, **options: precision_policy(None, **options)
    try:
        yield
    finally:
        parallel.device_mesh = device_mesh
        distributed._world_size = 1  # noqa: SLF001
        fsdp.MixedPrecisionPolicy = precision_policy
        torch.distributed.destroy_process_group()


def skeleton(size: str, lora: int | None) -> Policy:
    """Make a model in training, all of it or an adapter of the rank `lora`, without memory for its weights."""
    if size in LLAMAS:
        config = LlamaConfig(**LLAMAS[size], max_position_embeddings=8192)
    else:
        config = presets.model_config(size)
    if lora is not None:
        torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        policy = Policy(model.eval(), None, "simulated", torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    if lora is not None:
        policy.add_adapter(LoRA(lora, 2.0 * lora, ALL_LINEAR), 0, base_path="simulated", trained_folder=None)
    return policy


def allocate(model: Any) -> None:
    """Give a skeleton's weights their memory, and compute its rotary frequencies."""
    weights = {}
    for name, weight in model.named_parameters():
        weights[name] = torch.empty(weight.shape, dtype=weight.dtype)
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    rotary_class = type(model.model.rotary_emb)
    model.model.rotary_emb = rotary_class(model.config)


class UpdateCost(NamedTuple):
    """GiB of an update."""

    peaks: dict[str, float]  # by part
    sent: dict[str, float]  # by one process, by content and reach


def update(case: Case) -> UpdateCost:
    """Simulate an update."""
    rng = np.random.default_rng(0)
    policy = skeleton(case.model, case.lora)
    memory, traffic = MemoryCounter(), TrafficCounter()
    with on_tensor_cores(), processes(case), FakeTensorMode(allow_non_fake_inputs=True), memory, traffic:
        allocate(policy.model)
        layout = parallel.parallelize(policy, case.parallel)
        traffic.gib.clear()
        peaks = {"weights": memory.bytes_alive() / GIB, "forward": 0.0, "backward": 0.0}
        config = optimizer_config(case)
        weights = [weight for _, weight in trained_weights(policy.model)]
        optimizer: Any = make_optimizer(weights, config)
        clip = layout.clip
        if config.name == "adafactor":
            clip = optimizer.clip
        scores: list[TokenScores] = []

        def forward() -> None:
            inputs = Inputs(sequences(rng, case, policy.vocabulary), policy.device)
            with policy.autocast():
                scores.append(layout.score(inputs, entropy=True, recompute=case.recompute))

        def backward() -> None:
            scores.pop().logp.sum().backward()

        passes = max(1, case.batch // case.micro // case.processes)
        for _ in range(min(2, passes)):  # the second starts with gradients in memory, as all later ones
            peaks["forward"] = max(peaks["forward"], memory.peak_of(forward))
            peaks["backward"] = max(peaks["backward"], memory.peak_of(backward))
        peaks["clip"] = memory.peak_of(lambda: clip(1.0))
        peaks["step"] = memory.peak_of(optimizer.step)
    return UpdateCost(peaks, dict(traffic.gib))


@contextlib.contextmanager
def on_tensor_cores() -> Iterator[None]:
    """Have the output layer compute as on a GPU while the block runs: by products of halves, added in place."""
    originals = split_product.has_tensor_cores, split_product.add_matrix_product
    split_product.has_tensor_cores = lambda weight: True
    split_product.add_matrix_product = lambda total, lhs, rhs: None
    try:
        yield
    finally:
        split_product.has_tensor_cores, split_product.add_matrix_product = originals


def optimizer_config(case: Case) -> OptimConfig:
    name = case.optimizer
    if case.lora is not None:
        name = "adamw"
    return OptimConfig(
        name=name,
        lr=5e-7,
        grad_clip=1.0,
        batch_size=case.batch,
        micro_batch_size=case.micro,
        gradient_checkpointing=case.recompute,
        epochs=1,
        reduction="sequences",
        warmup_steps=0,
        schedule="constant",
    )


def sequences(rng: np.random.Generator, case: Case, vocabulary: int) -> list[tuple[Any, Any]]:
    """Draw the prompts of a micro-batch, which share a prefix, and a completion of each."""

    def tokens(count: int) -> Any:
        return rng.integers(3, vocabulary, count, dtype=np.int32)

    shared = tokens(case.shared)
    prompts = [np.concatenate([shared, tokens(case.question)]) for _ in range(case.micro)]
    return [(prompt, tokens(case.completion)) for prompt in prompts]


def preset_case(name: str, recompute: bool) -> Case:
    """Return the longest update of a preset on one GPU."""
    config = presets.settings(name)
    return Case(
        config.optim.micro_batch_size,
        recompute,
        model=name,
        batch=config.optim.batch_size,
        shared=PRESET_SHARED,
        question=PRESET_PROMPT - PRESET_SHARED,
        completion=config.sampler.max_new_tokens,
        optimizer=config.optim.name,
    )


def sampling_memory(name: str) -> float:
    """Count the GiB of `sampler=hf` for a preset: weights in float32 and in bfloat16, keys and values of a shard."""
    config = topr_exp.compose([f"model={name}", "data=gsm8k", "sampler=hf"])
    weights = skeleton(name, None).model.num_parameters()
    weight_bytes = (4 + 2) * weights
    completions = config.data.n * config.sampler.prompts_per_shard
    tokens = completions * (PRESET_PROMPT + config.sampler.max_new_tokens)
    cache_bytes = tokens * presets.cache_bytes(name)
    return (weight_bytes + cache_bytes) / GIB


def preset_rows(names: list[str]) -> list[dict[str, Any]]:
    """Simulate and print the presets, a row each."""
    rows = []
    for name in names:
        with_recompute = update(preset_case(name, recompute=True)).peaks
        without_recompute = update(preset_case(name, recompute=False)).peaks
        row = {
            "preset": name,
            "recompute": max(with_recompute.values()),
            "keep": max(without_recompute.values()),
            "sampling": sampling_memory(name),
        }
        rows.append(row)
        peaks = f"{row['recompute']:.1f} GiB with checkpointing, {row['keep']:.1f} without"
        print(f"{name}: an update {peaks}; sampler=hf {row['sampling']:.1f}", flush=True)
    return rows


def cases_of(options: argparse.Namespace) -> list[Case]:
    """List the cases of the command line."""
    names = ("lora", "gather", "question", "completion", "model")
    common_fields = {name: getattr(options, name) for name in names}
    layouts = [(count, False) for count in options.processes]
    if 16 in options.processes:
        layouts.append((16, True))
    cases = []
    for processes, by_machine in layouts:
        micro_batches = [1]
        if processes == 1:
            micro_batches = options.micro
        for micro in micro_batches:
            for recompute in (True, False):
                cases.append(Case(micro, recompute, processes, by_machine, **common_fields))
    return cases


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--micro",
        type=int,
        nargs="+",
        default=[8, 4, 1],
        choices=[1, 2, 4, 8],
        help="of one process",
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8, 16], choices=[1, 8, 16])
    parser.add_argument("--lora", type=int, metavar="RANK")
    parser.add_argument("--gather", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--question", type=int, default=100, metavar="TOKENS")
    parser.add_argument("--completion", type=int, default=200, metavar="TOKENS")
    parser.add_argument("--model", default="8b", choices=LLAMAS)
    parser.add_argument(
        "--preset",
        nargs="*",
        choices=presets.SHAPES,
        metavar="NAME",
        help="without a name: all",
    )
    return parser.parse_args()


def joined(gib_by_name: dict[str, float]) -> str:
    return ", ".join(f"{name} {gib:.1f}" for name, gib in gib_by_name.items())


def main() -> None:
    torch.set_num_threads(1)
    options = parse_options()
    if options.preset is not None:
        names = options.preset or list(presets.SHAPES)
        measure.write("simulated-memory-presets", {"rows": preset_rows(names)})
        return
    rows = []
    for case in cases_of(options):
        cost = update(case)
        rows.append({"layout": case.layout, **asdict(case), **cost.peaks, "sent": cost.sent})
        checkpointing = "without checkpointing"
        if case.recompute:
            checkpointing = "with checkpointing"
        peak = f"{max(cost.peaks.values()):.1f} GiB ({joined(cost.peaks)})"
        sent = joined(cost.sent) or "nothing"
        print(f"{case.layout}, micro-batches of {case.micro}, {checkpointing}: {peak}; sent: {sent}", flush=True)
    measure.write("simulated-memory", {"rows": rows})
    sys.stdout.flush()
    os._exit(0)  # torch's fake process group often crashes as the interpreter ends


if __name__ == "__main__":
    main()
