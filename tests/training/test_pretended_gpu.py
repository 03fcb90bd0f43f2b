"""A GPU is pretended: its tensors say that they are on CUDA, refuse others, and compute on the CPU.

So an update, a checkpoint and a user's own loop show here whether they mix devices, and how often they wait for the
GPU: wherever they read one of its numbers.
"""

import contextlib
from unittest.mock import patch

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map_only

import topr_exp
from tests.conftest import make_model, normal
from tests.training.trainers import AGRO_LOSS, DPO_LOSS, TOPR, make_examples, new_trainer, optim, policy_of, train
from topr_exp.sampling.hf import ids_with_probability

CUDA = torch.device("cuda", 0)
COPIES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.tolist)


class GPUTensor(torch.Tensor):
    """A tensor of the pretended GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    reads = 0  # of all
    halves_products = 0  # of bfloat16 matrices, in float32

    @staticmethod
    def __new__(cls, values):
        if isinstance(values, cls):
            return values
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, values.shape, **layout)
        tensor.values = values.detach()
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._local_scalar_dense.default:
            cls.reads += 1
        for tensor in tree_iter((args, kwargs)):
            is_elsewhere = isinstance(tensor, torch.Tensor) and not isinstance(tensor, cls) and tensor.ndim > 0
            takes_others = function.overloadpacket in (torch.ops.aten.index, torch.ops.aten.copy_)
            assert takes_others or not is_elsewhere, f"{function} mixes devices"
        cpu_args, cpu_kwargs = tree_map_only(cls, lambda tensor: tensor.values, (args, kwargs))
        if function is torch.ops.aten.addmm.dtype_out:  # of CUDA alone
            cls.halves_products += 1
            total, lhs, rhs, dtype = cpu_args
            total.addmm_(lhs.to(dtype), rhs.to(dtype))
            return kwargs["out"]
        result = tree_map_only(torch.Tensor, cls, function(*cpu_args, **cpu_kwargs))
        return return_and_correct_aliasing(function, args, kwargs, result)


class Copies(TorchFunctionMode):
    """Copies to the pretended GPU and from there, and what is made there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in COPIES:
            tensor = args[0]
            options = [CUDA if isinstance(option, GPUTensor) else option for option in args[1:]]
            is_moved = function is not torch.Tensor.to or any(isinstance(option, torch.device) for option in options)
            if is_moved and CUDA not in options and isinstance(tensor, GPUTensor):
                GPUTensor.reads += 1
                return function(tensor.values, *options)
            if CUDA in options:
                options.remove(CUDA)
                return GPUTensor(tensor.to(*options) if options else tensor)
        if kwargs.get("device") == CUDA:
            return GPUTensor(function(*args, **kwargs | {"device": "cpu"}))
        return function(*args, **kwargs)


@contextlib.contextmanager
def pretended_gpu(model=None, capability=(9, 0)):
    """Pretend a GPU, on which this model is, while the block runs."""
    for module in model.modules() if model is not None else ():
        for name, weight in module._parameters.items():
            if weight is not None and not isinstance(weight, GPUTensor):
                module._parameters[name] = torch.nn.Parameter(GPUTensor(weight))
        for name, buffer in module._buffers.items():
            module._buffers[name] = GPUTensor(buffer)
    GPUTensor.reads = 0
    GPUTensor.halves_products = 0
    with Copies(), patch("torch.cuda.get_device_capability", lambda device: capability):
        yield


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize("loss", [TOPR, AGRO_LOSS, DPO_LOSS], ids=["topr", "agro", "dpo"])
def test_an_update_reads_numbers_of_the_gpu_at_its_end_alone(loss, optimizer, tmp_path):
    policy = policy_of(make_model(11, num_key_value_heads=2, tie_word_embeddings=False))
    examples = make_examples(policy, loss)
    reads = []

    def trainer_on_gpu():
        trainer = new_trainer(policy, loss, optim(name=optimizer, micro_batch_size=2), tmp_path)
        trainer.report_tokens_to(lambda tokens: reads.append(GPUTensor.reads))
        return trainer

    with pretended_gpu(policy.model):
        trainer = trainer_on_gpu()
        train(trainer, examples, 1)
        trainer.save({})
        train(trainer_on_gpu(), examples, 2)

    micro_batches = len(reads) // 2
    for first in (0, micro_batches):
        assert reads[first + micro_batches - 1] - reads[first] <= micro_batches - 1  # one of each is transformers'


@pytest.mark.parametrize("capability, takes_halves", [((9, 0), True), ((7, 5), False)])
def test_products_of_bfloat16_are_asked_of_gpus_from_ampere_on_alone(capability, takes_halves, tmp_path):
    """A T4 has capability 7.5; torch's own tests expect its products of bfloat16 in float32 to fail."""
    policy = policy_of(make_model(11, num_key_value_heads=2, tie_word_embeddings=False))
    examples = make_examples(policy, TOPR)

    with pretended_gpu(policy.model, capability=capability):
        train(new_trainer(policy, TOPR, optim(), tmp_path), examples, 1)

    assert (GPUTensor.halves_products > 0) == takes_halves


def test_drawable_tokens_are_read_at_once():
    with pretended_gpu():
        ids = ids_with_probability(GPUTensor(torch.tensor([[0.0, -torch.inf], [-1.0, -1.0], [-torch.inf, 0.0]])))

    assert ids == [[0], [0, 1], [1]]
    assert GPUTensor.reads == 2  # how many of each row, then all of them


def test_a_users_rewards_and_log_mu_may_be_in_main_memory():
    ids = torch.tensor([[3, 4, 5], [3, 6, 7]])
    with pretended_gpu():
        batch = topr_exp.batch_from_logits(
            GPUTensor(normal(2, 3, 11)),
            GPUTensor(ids),
            GPUTensor(ids > 3),
            mu_logp=torch.zeros(2, 2),
            reward=torch.tensor([1.0, -1.0]),
        )

        assert TOPR(batch).loss.device == CUDA
