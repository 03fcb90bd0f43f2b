"""What the tests elsewhere show on a CPU, on a GPU: run by `make gpu-check` and wherever torch sees one."""

import numpy as np
import pytest
import torch

from tests.conftest import make_model
from tests.training.test_optimizers import assert_equal, reference, steps, weights
from topr_exp.models.policy import Policy
from topr_exp.training import packing
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
CUDA = torch.device("cuda")


def batch(shared: int = 200) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    prefix = rng.integers(3, 1000, shared)
    prompts = [np.concatenate([prefix, rng.integers(3, 1000, 20)]) for _ in range(4)]
    return [(prompt, rng.integers(3, 1000, rng.integers(10, 60))) for prompt in prompts for _ in range(2)]


@pytest.fixture
def model() -> torch.nn.Module:
    made = make_model(1000, hidden_size=128, intermediate_size=256, max_position_embeddings=512, initializer_range=0.1)
    return made.to(CUDA)


def one_by_one(policy: Policy) -> torch.Tensor:
    with torch.inference_mode(), policy.autocast():
        parts = [score_tokens(policy.model, Inputs([one], CUDA)).logp[0] for one in batch()]
    return torch.cat(parts).cpu()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_tree_scores_as_sequences_one_by_one(model: torch.nn.Module, dtype: torch.dtype, most: float) -> None:
    policy = Policy(model, None, "test", dtype)
    assert packing.cheapest_layout(batch(), 10**9, 128)[1] is not None
    inputs = Inputs(batch(), CUDA)
    with torch.inference_mode(), policy.autocast():
        together = score_tokens(model, inputs).logp[inputs.mask].cpu()
    assert float((together - one_by_one(policy)).abs().mean()) < most


def test_log_probabilities_and_gradients_are_those_of_the_cpu(model: torch.nn.Module) -> None:
    found = []
    for device in (CUDA, torch.device("cpu")):
        inputs = Inputs(batch(), device)
        logp = score_tokens(model.to(device), inputs).logp
        gradients = torch.autograd.grad(logp.sum(), list(model.parameters()))
        found.append((logp.detach().cpu(), [gradient.cpu() for gradient in gradients]))
    (ours, own), (theirs, others) = found
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    for mine, other in zip(own, others, strict=True):
        assert float((mine - other).norm() / other.norm()) < 1e-3


def test_adafactor_is_transformers() -> None:
    own = [torch.nn.Parameter(weight.detach().to(CUDA)) for weight in weights()]
    found = steps(own, lambda gradient: gradient.to(CUDA), 0.0)
    assert_equal([[weight.cpu() for weight in one] for one in found], reference(0.0))
