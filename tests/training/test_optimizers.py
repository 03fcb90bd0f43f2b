"""Adafactor is transformers', of whole weights and of sharded ones; AdamW is torch's."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.optimization import Adafactor as Reference

from tests.conftest import normal
from tests.processes import together
from tests.training.trainers import optim
from topr_exp.training.optimizers import Adafactor, make_optimizer

SHAPES = [(300, 200), (5, 700), (64,), (3, 40, 20), (1, 1)]  # the last has fewer rows than there are processes
LIMITS = [1e9, 1.0, 1e-3]  # of the gradient's norm: not clipped, clipped, clipped hard
LR = 1e-2


def weights():
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]


def gradient(shape, step):
    """Rows and columns of very different sizes."""
    seed = 1000 * step + sum(shape)
    scale = torch.exp(2 * normal(shape[-1], seed=seed))
    return 10.0 ** (step - 3) * scale * normal(*shape, seed=seed)


def gathered(weight):
    values = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return values.detach().clone()


def weights_by_step(optimizer, parameters, make, clip):
    """The weights after each step; make: of a gradient what the weights are; clip: the gradients of a step."""
    weights_after_steps = []
    for step, limit in enumerate(LIMITS):
        for weight, shape in zip(parameters, SHAPES, strict=True):
            weight.grad = make(gradient(shape, step))
        clip(step, limit)
        optimizer.step()
        weights_after_steps += map(gathered, parameters)
    return weights_after_steps


def reference_steps():
    """By transformers' optimizer, in float64: in float32 torch's norm is off by 4e-6."""
    parameters = [torch.nn.Parameter(weight.double()) for weight in weights()]
    fixed_size = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    optimizer = Reference(parameters, lr=LR, **fixed_size)

    def clip(step, limit):
        torch.nn.utils.clip_grad_norm_(parameters, limit)

    return weights_by_step(optimizer, parameters, torch.Tensor.double, clip)


def adafactor_steps(parameters, make):
    """By our Adafactor."""
    optimizer = Adafactor(parameters, LR)

    def clip(step, limit):
        gradients = [gradient(shape, step).flatten() for shape in SHAPES]
        norm = torch.cat(gradients).double().norm()
        assert float(optimizer.clip(limit)) == pytest.approx(float(norm), rel=1e-6)

    return weights_by_step(optimizer, parameters, make, clip)


def assert_equal(weights_after_steps, expected_after_steps):
    """To 1e-6 of the largest number that an update, or several, moved a weight by."""
    for weight, expected in zip(weights_after_steps, expected_after_steps, strict=True):
        largest = max(LR, float(expected.abs().max()))
        error = weight.double() - expected.double()
        assert float(error.abs().max()) <= 1e-6 * largest


def sharded(values):
    """A tensor by rows over all processes."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return distribute_tensor(values, mesh, [Shard(0)])


def sharded_weights():
    return [torch.nn.Parameter(sharded(weight.detach())) for weight in weights()]


def adamw_steps(parameters, make, *, is_fused=False):
    """By AdamW; is_fused: with the kernel that it takes on a GPU."""
    optimizer = make_optimizer(parameters, optim(lr=LR))
    if is_fused:
        optimizer.param_groups[0] |= {"fused": True, "foreach": None}
    return weights_by_step(optimizer, parameters, make, clip=lambda step, limit: None)


def sharded_steps():
    return adafactor_steps(sharded_weights(), sharded), adamw_steps(sharded_weights(), sharded, is_fused=True)


def test_adafactors_updates_are_those_of_transformers():
    assert_equal(adafactor_steps(weights(), torch.clone), reference_steps())


def test_updates_of_sharded_weights_are_those_of_whole_ones():
    expected = reference_steps()
    expected_of_adamw = adamw_steps(weights(), torch.clone)

    for by_adafactor, by_adamw in together(2, sharded_steps):
        assert_equal(by_adafactor, expected)
        assert_equal(by_adamw, expected_of_adamw)


def test_adamw_is_torchs_with_the_rate_and_the_betas_and_no_decay():
    optimizer = make_optimizer(weights(), optim(lr=0.05))
    (group,) = optimizer.param_groups

    assert type(optimizer) is torch.optim.AdamW
    assert group["lr"] == 0.05
    assert group["betas"] == (0.9, 0.999)
    assert group["weight_decay"] == 0
    # Where torch may choose it takes every weight at once on a GPU, with a copy of the second moments of all.
    assert group["foreach"] is False
    assert group["fused"] is None
