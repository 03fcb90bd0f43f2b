"""vLLM on a GPU samples from the model that training has, as tests/sampling/test_vllm.py shows of its CPU build."""

import contextlib
import copy
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import config_of
from tests.sampling.test_sampler import check_frequencies, exact_probabilities
from tests.sampling.test_vllm import draw, perturbed, tempered_logits, transformers_logp
from topr_exp.models.policy import Policy, load_policy
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.vllm import VLLM
from topr_exp.sampling.vllm_requirements import check_python
from topr_exp.types import ConfigError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
CUDA = torch.device("cuda")
PLAIN: dict[str, Any] = {"top_p": 1.0, "top_k": 0, "temperature": 1.0}


def sampler_config(*words: str) -> Any:
    """Settings of an engine as large as the tiny model needs; skips the test where no Python has vLLM."""
    environment = os.environ.get("TOPR_VLLM")
    python = f"{environment}/bin/python" if environment else None
    try:
        python = check_python(python)
    except ConfigError as error:
        pytest.skip(f"no vLLM, or an old one: {error} (TOPR_VLLM=ENVIRONMENT)")
    settings = ["sampler=vllm", f"sampler.python={python}", "sampler.gpu_memory_utilization=0.1"]
    return config_of(*settings, *words).sampler


@pytest.fixture(scope="module")
def tiny() -> Policy:
    return load_policy(config_of().model, "cpu")


def on_gpu(policy: Policy) -> Policy:
    """The same policy, as a run has it that trains and samples on one GPU."""
    return dataclasses.replace(policy, model=copy.deepcopy(policy.model).to(CUDA))


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLM]:
    sampler = VLLM(sampler_config(), tmp_path_factory.mktemp("sampler"), False)
    yield sampler
    sampler.close()


def gap(policy: Policy, prompts: list[list[int]], groups: list[list[Sample]]) -> float:
    """Mean |log-probability of vLLM's − transformers' on the CPU| a token."""
    differences = []
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            differences.append(torch.tensor(sample.logprobs) - transformers_logp(policy, prompt, sample))
    return float(torch.cat(differences).abs().mean())


def test_frequencies_follow_the_exact_probabilities(vllm: VLLM, tiny: Policy) -> None:
    changes: dict[str, Any] = {"top_p": 1.0, "top_k": 3, "temperature": 1.3, "max_new_tokens": 3}
    prompts, groups = draw(vllm, on_gpu(tiny), 2000, **changes)
    cells = 0
    for prompt, group in zip(prompts, groups, strict=True):
        cells += check_frequencies(group, exact_probabilities(tiny.model, prompt, vllm.config, eos=2), 1e-2)
    assert cells >= 5


def test_the_same_seed_gives_the_same_completions(vllm: VLLM, tiny: Policy) -> None:
    policy = on_gpu(tiny)
    tokens, of_another_seed, repeated = (tokens_of(draw(vllm, policy, 8, seed, **PLAIN)[1]) for seed in (3, 4, 3))
    assert tokens == repeated
    assert tokens != of_another_seed
    assert len(set(tokens[0])) > 1  # the completions of a prompt have different seeds


def tokens_of(groups: list[list[Sample]]) -> list[list[tuple[int, ...]]]:
    tokens = []
    for group in groups:
        tokens.append([tuple(sample.tokens) for sample in group])
    return tokens


def test_what_could_be_drawn_and_the_likeliest_tokens_are_noted(tiny: Policy, tmp_path: Path) -> None:
    """Renormalised over the noted set, transformers' log-probability of each token is vLLM's."""
    config = sampler_config("sampler.top_logprobs=4")
    policy = on_gpu(tiny)

    with contextlib.closing(VLLM(config, tmp_path, False, keeps_drawable=True)) as sampler:
        for top_k, top_p in ((5, 0.9), (413, 1.0)):
            prompts, groups = draw(sampler, policy, 8, temperature=1.5, top_k=top_k, top_p=top_p)
            for prompt, group in zip(prompts, groups, strict=True):
                for sample in group:
                    assert_drawable(tempered_logits(tiny, prompt, sample, temperature=1.5), sample, top_k)


def assert_drawable(logits: torch.Tensor, sample: Sample, top_k: int) -> None:
    """The noted sets are the likeliest of [T, V], and all that was noted is of the distribution over them."""
    for row, ids, top, token, logprob in zip(
        logits, sample.drawable_ids, sample.top_tokens, sample.tokens, sample.logprobs, strict=True
    ):
        assert len(ids) <= top_k
        assert ids == sorted(set(ids))
        undrawable = row.clone()
        undrawable[ids] = -torch.inf
        assert row[ids].min() > undrawable.max() - 1e-3
        expected = torch.full_like(row, -torch.inf)
        expected[ids] = row[ids].log_softmax(-1)
        assert abs(float(expected[token]) - logprob) < 1e-3
        assert top.ids is not None
        torch.testing.assert_close(torch.tensor(top.logp), expected[top.ids], atol=1e-3, rtol=0)
        assert set(top.ids[top.logp > -math.inf].tolist()) <= set(ids)


def test_an_engine_that_is_up_takes_the_weights_of_a_policy_in_training(vllm: VLLM, tiny: Policy) -> None:
    draw(vllm, on_gpu(tiny), 1, **PLAIN)
    engine = vllm.engine
    for name, by in (("changed", 0.05), ("changed again", 0.1)):
        changed = perturbed(tiny, name, by)
        prompts, groups = draw(vllm, on_gpu(changed), 8, **PLAIN)
        assert gap(changed, prompts, groups) < 1e-3
        assert gap(tiny, prompts, groups) > 1e-2
    assert vllm.engine is engine is not None
