"""Adafactor is transformers', of whole weights and of sharded ones."""

import dataclasses
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers.optimization import Adafactor as Reference

from tests.processes import together
from tests.training.test_trainer import optim
from topr_exp.training import optimizers
from topr_exp.training.optimizers import Adafactor, make_optimizer

SHAPES = [(300, 200), (5, 700), (64,), (3, 40, 20), (1, 1)]  # the second has fewer rows than there are processes
LIMITS = [1e9, 1.0, 1e-3]  # of the gradient's norm: not clipped, clipped, clipped hard
LR = 1e-2


def weights() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradient(shape: tuple[int, ...], step: int) -> Tensor:
    """Rows and columns of very different sizes."""
    generator = torch.Generator().manual_seed(1000 * step + sum(shape))
    scale = torch.exp(2 * torch.randn(shape[-1], generator=generator))
    return torch.randn(shape, generator=generator) * scale * 10.0 ** (step - 3)


def reference(decay: float) -> list[list[Tensor]]:
    """The weights after each step of transformers' optimizer, in float64: in float32 torch's norm is off by 4e-6."""
    own, found = [torch.nn.Parameter(weight.double()) for weight in weights()], []
    settings = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimizer = Reference(own, lr=LR, weight_decay=decay, **settings)
    for step, limit in enumerate(LIMITS):
        set_gradients(own, step, Tensor.double)
        torch.nn.utils.clip_grad_norm_(own, limit)
        optimizer.step()
        found.append([weight.detach().clone() for weight in own])
    return found


def assert_equal(ours: list[list[Tensor]], theirs: list[list[Tensor]]) -> None:
    """To 1e-6 of the largest number that an update, or several, moved a weight by."""
    for mine, expected in zip(ours, theirs, strict=True):
        for weight, other in zip(mine, expected, strict=True):
            most = max(LR, float(other.abs().max()))
            torch.testing.assert_close(weight.double(), other.double(), rtol=0, atol=1e-6 * most)


def set_gradients(own: list[torch.nn.Parameter], step: int, made: Any) -> None:
    for weight, shape in zip(own, SHAPES, strict=True):
        weight.grad = made(gradient(shape, step))


def steps(own: list[torch.nn.Parameter], made: Any, decay: float) -> list[list[Tensor]]:
    optimizer, found = Adafactor(own, LR, decay), []
    for step, limit in enumerate(LIMITS):
        set_gradients(own, step, made)
        whole = torch.cat([gradient(shape, step).flatten() for shape in SHAPES]).double()
        assert float(optimizer.clip(limit)) == pytest.approx(float(whole.norm()), rel=1e-6)
        optimizer.step()
        found.append([full(weight) for weight in own])
    return found


def full(weight: Any) -> Tensor:
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach().clone()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_are_those_of_transformers(decay: float) -> None:
    assert_equal(steps(weights(), torch.clone, decay), reference(decay))


def sharded(values: Tensor) -> DTensor:
    """A tensor by rows over all processes."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(values, mesh, [Shard(0)])


def sharded_steps() -> list[list[Tensor]]:
    own = [torch.nn.Parameter(sharded(weight.detach())) for weight in weights()]
    return steps(own, sharded, 0.1)


def test_sharded_updates_are_those_of_transformers() -> None:
    for found in together(2, sharded_steps):
        assert_equal(found, reference(0.1))


def test_gradients_of_a_skipped_update_are_freed() -> None:
    optimizer = Adafactor(weights(), 1e-3, 0.0)
    gradients = []
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = torch.full_like(weight, math.nan)
            gradients.append(weakref.ref(weight.grad))
    optimizer.clip(1.0)
    optimizer.zero_grad(set_to_none=True)
    assert not any(gradient() is not None for gradient in gradients)


def test_adamw_keeps_no_copies_of_its_state_while_it_steps() -> None:
    """Where torch may choose it takes every weight at once on a GPU, with a copy of the second moments of all."""
    optimizer = make_optimizer(weights(), optim())
    assert [(group["foreach"], group["fused"]) for group in optimizer.param_groups] == [(False, None)]


def adamw_steps(own: list[torch.nn.Parameter], made: Any) -> list[list[Tensor]]:
    optimizer, weights_after_steps = make_optimizer(own, optim(lr=LR)), []
    for step in range(3):
        set_gradients(own, step, made)
        optimizer.step()
        weights_after_steps.append([full(weight) for weight in own])
    return weights_after_steps


def fused_steps_of_a_part() -> tuple[bool, list[list[Tensor]]]:
    optimizers.takes_fused_kernel = lambda weights: True
    own = [torch.nn.Parameter(sharded(weight.detach())) for weight in weights()]
    return make_optimizer(own, optim()).defaults["fused"], adamw_steps(own, sharded)


def test_adamw_has_the_rate_the_betas_and_the_decay_that_are_set() -> None:
    """Three updates of one weight against Loshchilov and Hutter's formula (arXiv 1711.05101)."""
    config = dataclasses.replace(optim(lr=0.05), weight_decay=0.3)
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = make_optimizer([weight], config)
    expected, first, second = 2.0, 0.0, 0.0
    for step, slope in enumerate((1.0, -3.0, 0.5), start=1):
        weight.grad = torch.full_like(weight, slope)
        optimizer.step()
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        scale = math.sqrt(second / (1 - 0.999**step)) + 1e-8
        expected += -0.05 * 0.3 * expected - 0.05 * first / (1 - 0.9**step) / scale
        assert weight.item() == pytest.approx(expected, rel=1e-9)


def test_the_kernel_that_a_gpu_takes_gives_adamws_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whole weights and of sharded ones."""
    expected = adamw_steps(weights(), torch.clone)
    for fused, steps_of_parts in together(2, fused_steps_of_a_part):
        assert fused
        assert_equal(steps_of_parts, expected)
    monkeypatch.setattr(optimizers, "takes_fused_kernel", lambda weights: True)
    assert_equal(adamw_steps(weights(), torch.clone), expected)
