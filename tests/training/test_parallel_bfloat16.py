"""In bfloat16 several processes compute what one computes: sharded on one machine, and on two of four processes."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.processes import together
from tests.training.test_parallel import one_thread, policy, weights
from tests.training.test_trainer import TOPR, make_examples, optim
from topr_exp.config.groups import Optimizer
from topr_exp.training.checkpoint import place_of
from topr_exp.training.parallel import parallelize
from topr_exp.training.trainer import Trainer

LAYOUTS = {"fsdp": 8, "hsdp": 4}  # with the processes among which they divide a weight
UPDATES = 3
__all__ = ["one_thread"]  # a fixture of all tests here


class Rounded(nn.Module):
    """A weight as FSDP gathers it."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.bfloat16()


def updates(folder: Path, parallel: str) -> tuple[dict[str, Tensor], list[dict[str, float]], int]:
    """How far updates of 8 examples, each computed alone, move the weights; their records; a weight's parts."""
    ours = policy()
    ours.compute = torch.bfloat16
    if parallel == "ddp":  # matrices are rounded by autocast, the blocks' norms by FSDP alone
        for name, module in list(ours.model.model.layers.named_modules()):
            if name.endswith("layernorm"):
                nn.utils.parametrize.register_parametrization(module, "weight", Rounded(), unsafe=True)
    config = optim(name=Optimizer.adafactor, micro_batch_size=1, lr=1e-3)
    trainer = Trainer(ours, TOPR, None, config, folder, parallelize(ours, parallel))
    before, examples = weights(trainer), make_examples(policy(), TOPR)
    batches = np.resize(examples.training_set.order(0, 1, 0), (UPDATES, 8))
    records = [trainer.update(examples, batch, UPDATES, expect_unit_ratio=False) for batch in batches]
    moved = {name.replace("parametrizations.weight.original", "weight"): weight - before[name]
             for name, weight in weights(trainer).items()}  # fmt: skip
    parts = 1 if parallel == "ddp" else place_of(next(ours.model.parameters()))[1]
    return moved, records, parts


def on_two_machines(folder: Path) -> dict[str, Any]:
    """What one of 8 processes computes, 4 on each of two machines."""
    os.environ["LOCAL_WORLD_SIZE"] = "4"
    return {parallel: updates(folder / parallel, parallel) for parallel in LAYOUTS}


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return together(8, on_two_machines, tmp_path_factory.mktemp("eight"))


@pytest.mark.parametrize("parallel", LAYOUTS)
def test_eight_processes_compute_in_bfloat16_what_one_computes(
    tmp_path: Path, eight: list[dict[str, Any]], parallel: str
) -> None:
    expected, theirs, _ = updates(tmp_path, "ddp")
    for one in eight:
        moved, records, parts = one[parallel]
        assert parts == LAYOUTS[parallel]
        assert set(moved) == set(expected)
        for name, step in expected.items():
            assert float((moved[name] - step).norm() / step.norm()) < 1e-4, name
        for record, other in zip(records, theirs, strict=True):
            for key in ("loss", "grad_norm", "kl_mu", "entropy", "weight_neg", "tokens"):
                assert record[key] == pytest.approx(other[key], rel=1e-4), key


def step_in_bfloat16(folder: Path, parallel: str, lr: float) -> tuple[Any, Any, dict[str, int]]:
    """Weights before and after a step whose forward pass is bfloat16, and the bytes that were gathered in it."""
    ours = policy()
    ours.compute = torch.bfloat16
    examples = make_examples(ours, TOPR)
    config = optim(name=Optimizer.adafactor, micro_batch_size=8, lr=lr)
    trainer = Trainer(ours, TOPR, None, config, folder, parallelize(ours, parallel))
    before = weights(trainer)
    with Gathered() as gathered:
        trainer.update(examples, np.arange(8), 1, expect_unit_ratio=True)
    return before, weights(trainer), dict(gathered.bytes)


class Gathered(TorchDispatchMode):
    """Counts the bytes that collectives give, by the type of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            name = "gather" if "gather" in function._opname else "sum"
            for tensor in tree_leaves(args[0]):
                if isinstance(tensor, torch.Tensor):
                    self.bytes[f"{name} {str(tensor.dtype).removeprefix('torch.')}"] += tensor.nbytes
        return function(*args, **(kwargs or {}))


def test_in_bfloat16_sharded_blocks_are_gathered_at_half_the_bytes_and_float32_weights_move(tmp_path: Path) -> None:
    (before, after, moved), *_ = together(2, step_in_bfloat16, tmp_path / "fsdp", "fsdp", 5e-7)
    (start, alone, _), *_ = together(2, step_in_bfloat16, tmp_path / "ddp", "ddp", 5e-7)
    for name, weight in before.items():
        assert torch.equal(weight, start[name])
        assert after[name].dtype is torch.float32
        step, other = after[name] - weight, alone[name] - weight
        assert float((step != 0).float().mean()) > 0.5, name
        assert float(((weight.bfloat16() + step.bfloat16()) == weight.bfloat16()).float().mean()) > 0.9
        assert float((step - other).norm() / other.norm()) < 0.3, name  # rounded in another order
    blocks = sum(weight.numel() for name, weight in before.items() if ".layers." in name)
    rest = sum(weight.numel() for weight in before.values()) - blocks
    assert moved["gather bfloat16"] == 2 * 2 * blocks  # forward and backward, of 2 bytes
    assert 4 * rest <= moved["gather float32"] < 5 * rest  # embeddings, last norm, output layer
    assert moved["sum float32"] >= 4 * (blocks + rest) / 2  # each process has the sums of its half
    assert not any(name.startswith("sum bfloat16") for name in moved)
