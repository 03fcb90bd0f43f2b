"""What the tests elsewhere show on a CPU, on a GPU: run by `make gpu-check` and wherever torch sees one."""

import numpy as np
import pytest
import torch

from tests.conftest import make_model
from tests.training.test_optimizers import adafactor_steps, assert_equal, reference_steps, weights
from topr_exp.models.policy import Policy
from topr_exp.training import packing
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")]
CUDA = torch.device("cuda")


def draw_sequences() -> list[tuple[np.ndarray, np.ndarray]]:
    """Two completions of each of four prompts that share a prefix."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(3, 1000, 200)
    prompts = [np.concatenate([prefix, rng.integers(3, 1000, 20)]) for _ in range(4)]
    sequences = []
    for prompt in prompts:
        for _ in range(2):
            length = rng.integers(10, 60)
            sequences.append((prompt, rng.integers(3, 1000, length)))
    return sequences


SEQUENCES = draw_sequences()


@pytest.fixture
def model() -> torch.nn.Module:
    shape = {"hidden_size": 128, "intermediate_size": 256, "max_position_embeddings": 512}
    return make_model(1000, **shape, initializer_range=0.1).to(CUDA)


def score(policy: Policy, sequences: list[tuple[np.ndarray, np.ndarray]]) -> torch.Tensor:
    """The log-probability of each token, one sequence after the other."""
    inputs = Inputs(sequences, CUDA)
    with torch.inference_mode(), policy.autocast():
        logp = score_tokens(policy.model, inputs).logp
    return logp[inputs.mask].cpu()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_a_tree_scores_as_sequences_one_by_one(model: torch.nn.Module, dtype: torch.dtype, tolerance: float) -> None:
    policy = Policy(model, None, "test", dtype)
    layout = packing.cheapest_layout(SEQUENCES, packing.ModelShape(10**9, 128))
    assert layout.tree is not None

    together = score(policy, SEQUENCES)

    one_by_one = torch.cat([score(policy, [sequence]) for sequence in SEQUENCES])
    assert float((together - one_by_one).abs().mean()) < tolerance


def test_log_probabilities_and_gradients_are_those_of_the_cpu(model: torch.nn.Module) -> None:
    def scored(device: torch.device) -> tuple[torch.Tensor, list[torch.Tensor]]:
        inputs = Inputs(SEQUENCES, device)
        logp = score_tokens(model.to(device), inputs).logp
        gradients = torch.autograd.grad(logp.sum(), list(model.parameters()))
        return logp.detach().cpu(), [gradient.cpu() for gradient in gradients]

    logp, gradients = scored(CUDA)

    expected_logp, expected_gradients = scored(torch.device("cpu"))
    torch.testing.assert_close(logp, expected_logp, atol=1e-4, rtol=1e-4)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        error = gradient - expected
        assert float(error.norm() / expected.norm()) < 1e-3


def test_adafactor_is_transformers() -> None:
    gpu_weights = [torch.nn.Parameter(weight.detach().to(CUDA)) for weight in weights()]

    weights_after_steps = adafactor_steps(gpu_weights, lambda gradient: gradient.to(CUDA))

    assert_equal([weight.cpu() for weight in weights_after_steps], reference_steps())
