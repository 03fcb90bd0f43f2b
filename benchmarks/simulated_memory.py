"""What an update of the paper's 8B model needs, without a GPU: the update itself on tensors that hold no numbers.

    python benchmarks/simulated_memory.py [--micro 8 4 1] [--lora 16]

torch's FakeTensorMode runs every operation on shapes alone. The bytes of all tensors alive are counted as they come
and go, so that the peak is exact but for what a GPU's kernels use inside themselves, what its allocator leaves unused
and the CUDA context (about half a GiB). Weights are float32, the forward pass is bfloat16 by autocast, the optimizer
Adafactor, the batch 8 completions of 200 tokens to questions of 100 after 900 tokens that all share. With --lora RANK
the weights are bfloat16 and frozen, and an adapter of that rank on all linear layers is trained by AdamW.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable
from typing import Any

import measure
import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from training import LLAMAS
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.config.optim import OptimConfig, Optimizer, Reduction, Schedule
from topr_exp.models.adapter import trained_weights
from topr_exp.models.policy import Policy
from topr_exp.training.logprobs import TokenScores, collate, score_tokens
from topr_exp.training.optimizers import make_optimizer
from topr_exp.training.parallel import set_weight

GIB = 2**30
BATCH, SHARED, QUESTION, COMPLETION = 8, 900, 100, 200


class Alive(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive while it is on, each storage once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return made

    def count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def peak_of(self, work: Callable[[], Any]) -> float:
        """GiB alive at the most while `work` runs."""
        self.peak = self.now
        work()
        return self.peak / GIB


def skeleton(lora: int | None) -> Policy:
    """The 8B model as it is trained, all of it or an adapter of the rank `lora`, without memory for its weights."""
    config = LlamaConfig(**LLAMAS["8b"], max_position_embeddings=8192, attn_implementation="sdpa")
    torch.set_default_dtype(torch.float32 if lora is None else torch.bfloat16)
    with torch.device("meta"):
        policy = Policy(LlamaForCausalLM(config).eval(), None, "simulated", torch.bfloat16)
    torch.set_default_dtype(torch.float32)
    if lora is not None:
        policy.add_adapter(LoRA(lora, 2.0 * lora, ALL_LINEAR), 0, "simulated", None)
    return policy


def allocate(model: Any) -> None:
    """Give a skeleton's weights their memory, and what it computes when it is made."""
    for name, weight in list(model.named_parameters()):
        set_weight(model, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), weight.requires_grad))
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)


def update(micro: int, recompute: bool, lora: int | None = None) -> dict[str, float]:
    """The peak of each part of an update in GiB."""
    draw = np.random.default_rng(0)
    policy = skeleton(lora)
    with FakeTensorMode(allow_non_fake_inputs=True), Alive() as alive:
        allocate(policy.model)
        found = {"weights": alive.now / GIB, "forward": 0.0, "backward": 0.0}
        name, betas = (Optimizer.adafactor, None) if lora is None else (Optimizer.adamw, [0.9, 0.999])
        options = OptimConfig(
            name=name, lr=5e-7, betas=betas, weight_decay=0.0, grad_clip=1.0, batch_size=BATCH, micro_batch_size=micro,
            gradient_checkpointing=recompute, score_batch_size=32, epochs=1, skip_nonfinite=False,
            reduction=Reduction.sequences, warmup_steps=0, schedule=Schedule.constant,
        )  # fmt: skip
        trained = [weight for _, weight in trained_weights(policy.model)]
        optimizer: Any = make_optimizer(trained, options)
        clip = optimizer.clip if lora is None else lambda limit: torch.nn.utils.clip_grad_norm_(trained, limit)
        scores: list[TokenScores] = []

        def forward() -> None:
            inputs = collate(sequences(draw, micro, policy.vocabulary), policy.device)
            with policy.autocast():
                scores.append(score_tokens(policy.model, inputs, entropy=True, recompute=recompute))

        def backward() -> None:
            scores.pop().logp.sum().backward()

        for _ in range(BATCH // micro):
            found["forward"] = max(found["forward"], alive.peak_of(forward))
            found["backward"] = max(found["backward"], alive.peak_of(backward))
        found["clip"] = alive.peak_of(lambda: clip(1.0))
        found["step"] = alive.peak_of(optimizer.step)
    return found


def sequences(draw: np.random.Generator, count: int, vocabulary: int) -> list[tuple[Any, Any]]:
    shared = draw.integers(3, vocabulary, SHARED, dtype=np.int32)
    prompts = [np.concatenate([shared, draw.integers(3, vocabulary, QUESTION, dtype=np.int32)]) for _ in range(count)]
    return [(prompt, draw.integers(3, vocabulary, COMPLETION, dtype=np.int32)) for prompt in prompts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 4, 1], choices=[1, 2, 4, 8])
    parser.add_argument("--lora", type=int, metavar="RANK")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for micro in options.micro:
        for recompute in (True, False):
            found = update(micro, recompute, options.lora)
            rows.append({"micro_batch_size": micro, "gradient_checkpointing": recompute, "lora": options.lora, **found})
            parts = ", ".join(f"{name} {gib:.1f}" for name, gib in found.items())
            print(f"micro-batches of {micro}, {'with' if recompute else 'without'} checkpointing: "
                  f"{max(found.values()):.1f} GiB ({parts})", flush=True)  # fmt: skip
    measure.write("simulated-memory", {"rows": rows})


if __name__ == "__main__":
    main()
