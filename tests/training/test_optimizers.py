"""Adafactor is transformers', of whole weights and of sharded ones; AdamW is Loshchilov and Hutter's."""

import math

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.optimization import Adafactor as Reference

from tests.processes import together
from tests.training.trainers import optim
from topr_exp.training import optimizers
from topr_exp.training.optimizers import Adafactor, make_optimizer

SHAPES = [(300, 200), (5, 700), (64,), (3, 40, 20), (1, 1)]  # the last has fewer rows than there are processes
LIMITS = [1e9, 1.0, 1e-3]  # of the gradient's norm: not clipped, clipped, clipped hard
LR = 1e-2


def weights():
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradient(shape, step):
    """Rows and columns of very different sizes."""
    generator = torch.Generator().manual_seed(1000 * step + sum(shape))
    scale = torch.exp(2 * torch.randn(shape[-1], generator=generator))
    return torch.randn(shape, generator=generator) * scale * 10.0 ** (step - 3)


def set_gradients(parameters, step, make):
    for weight, shape in zip(parameters, SHAPES, strict=True):
        weight.grad = make(gradient(shape, step))


def whole(weight):
    values = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return values.detach().clone()


def reference():
    """The weights after each step of transformers' optimizer, in float64: in float32 torch's norm is off by 4e-6."""
    parameters = [torch.nn.Parameter(weight.double()) for weight in weights()]
    fixed_size = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimizer = Reference(parameters, lr=LR, **fixed_size)
    weights_by_step = []
    for step, limit in enumerate(LIMITS):
        set_gradients(parameters, step, torch.Tensor.double)
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        weights_by_step.append([whole(weight) for weight in parameters])
    return weights_by_step


def steps(parameters, make):
    """The weights after each step of our Adafactor; make: of a gradient what the weights are."""
    optimizer, weights_by_step = Adafactor(parameters, LR), []
    for step, limit in enumerate(LIMITS):
        set_gradients(parameters, step, make)
        norm = torch.cat([gradient(shape, step).flatten() for shape in SHAPES]).double().norm()
        assert float(optimizer.clip(limit)) == pytest.approx(float(norm), rel=1e-6)
        optimizer.step()
        weights_by_step.append([whole(weight) for weight in parameters])
    return weights_by_step


def assert_equal(weights_by_step, expected_by_step):
    """To 1e-6 of the largest number that an update, or several, moved a weight by."""
    for step_weights, expected_weights in zip(weights_by_step, expected_by_step, strict=True):
        for weight, expected in zip(step_weights, expected_weights, strict=True):
            largest = max(LR, float(expected.abs().max()))
            torch.testing.assert_close(weight.double(), expected.double(), rtol=0, atol=1e-6 * largest)


def sharded(values):
    """A tensor by rows over all processes."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(values, mesh, [Shard(0)])


def sharded_weights():
    return [torch.nn.Parameter(sharded(weight.detach())) for weight in weights()]


def adamw_steps(parameters, make):
    optimizer, weights_by_step = make_optimizer(parameters, optim(lr=LR)), []
    for step in range(3):
        set_gradients(parameters, step, make)
        optimizer.step()
        weights_by_step.append([whole(weight) for weight in parameters])
    return weights_by_step


def sharded_steps():
    """Adafactor's steps, whether AdamW takes the fused kernel of a GPU, and its steps."""
    by_adafactor = steps(sharded_weights(), sharded)
    optimizers.takes_fused_kernel = lambda weights: True
    is_fused = make_optimizer(sharded_weights(), optim()).defaults["fused"]
    return by_adafactor, is_fused, adamw_steps(sharded_weights(), sharded)


def test_adafactors_updates_are_those_of_transformers():
    assert_equal(steps(weights(), torch.clone), reference())


def test_updates_of_sharded_weights_are_those_of_whole_ones():
    """Also by the kernel that AdamW takes on a GPU."""
    expected = adamw_steps(weights(), torch.clone)

    for by_adafactor, is_fused, by_adamw in together(2, sharded_steps):
        assert_equal(by_adafactor, reference())
        assert is_fused
        assert_equal(by_adamw, expected)


def test_adamw_has_the_rate_and_the_betas_and_no_decay():
    """Three updates of one weight against the formula (arXiv 1711.05101)."""
    weight = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = make_optimizer([weight], optim(lr=0.05))
    expected, mean, square = 2.0, 0.0, 0.0
    for step, slope in enumerate((1.0, -3.0, 0.5), start=1):
        weight.grad = torch.full_like(weight, slope)
        optimizer.step()

        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        scale = math.sqrt(square / (1 - 0.999**step)) + 1e-8
        expected -= 0.05 * mean / (1 - 0.9**step) / scale
        assert weight.item() == pytest.approx(expected, rel=1e-9)


def test_adamw_keeps_no_copies_of_its_state_while_it_steps():
    """Where torch may choose it takes every weight at once on a GPU, with a copy of the second moments of all."""
    (group,) = make_optimizer(weights(), optim()).param_groups

    assert (group["foreach"], group["fused"]) == (False, None)
