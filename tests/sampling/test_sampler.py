"""The sampler draws from exactly the distribution that it claims, and says so in its log-probabilities."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from tests.conftest import make_model
from topr_exp.config.model import SamplerConfig
from topr_exp.sampling import decoding_batch
from topr_exp.sampling.hf import Decoder, apply_top_k_top_p
from topr_exp.sampling.sampler import Sample

EOS = 1


def settings(**changes: Any) -> SamplerConfig:
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 3} | changes
    return SamplerConfig(name="hf", seed=0, prompts_per_shard=8, **values)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample_completions(
    model: Any, prompts: list[list[int]], n: int, config: SamplerConfig, **changes: Any
) -> list[list[Sample]]:
    values = {"eos_ids": [EOS], "generator": generator()} | changes
    return Decoder(model=model, config=config, **values).draw(prompts, n)


def exact(model: Any, prompt: list[int], config: SamplerConfig, eos: int = EOS) -> dict[tuple[int, ...], float]:
    """The probability of every completion, by enumeration of the whole language."""
    found: dict[tuple[int, ...], float] = {}

    def extend(tokens: tuple[int, ...], logp: float) -> None:
        if len(tokens) == config.max_new_tokens or (tokens and tokens[-1] == eos):
            found[tokens] = math.exp(logp)
            return
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1] / config.temperature
        step = apply_top_k_top_p(logits[None], config.top_k, config.top_p)[0].log_softmax(-1)
        for token, value in enumerate(step.tolist()):
            if value > -math.inf:
                extend((*tokens, token), logp + value)

    extend((), 0.0)
    return found


def check_frequencies(group: Sequence[Sample], probabilities: dict[tuple[int, ...], float], tolerance: float) -> int:
    """Whether completions have the frequencies of their probabilities and say log μ within `tolerance`; how many
    completions were expected five times or more."""
    assert abs(sum(probabilities.values()) - 1) < 1e-5
    counts = dict.fromkeys(probabilities, 0)
    for one in group:
        counts[tuple(one.tokens)] += 1  # a KeyError is a completion of probability 0
        assert abs(sum(one.logprobs) - math.log(probabilities[tuple(one.tokens)])) < tolerance
    expected = np.array([len(group) * p for p in probabilities.values()])
    observed = np.array(list(counts.values()))
    large = expected >= 5
    k = int(large.sum())
    # The chi-square statistic has mean k and variance 2k; five standard deviations.
    assert float(((observed - expected)[large] ** 2 / expected[large]).sum()) < k + 5 * math.sqrt(2 * k)
    return k


@pytest.mark.parametrize("changes", [{}, {"top_k": 2}, {"top_p": 0.7, "temperature": 1.5}], ids=str)
def test_frequencies_follow_the_exact_probabilities(changes: dict[str, Any]) -> None:
    model = make_model(5, num_hidden_layers=1)
    config = settings(**changes)
    prompts = [[0, 3], [0, 4, 2, 3, 3]]  # of different lengths: the first one is padded
    draws = 4000
    groups = sample_completions(model, prompts, draws, config)
    for prompt, group in zip(prompts, groups, strict=True):
        check_frequencies(group, exact(model, prompt, config), 1e-4)
        assert all(one.finish == ("stop" if one.tokens[-1] == EOS else "length") for one in group)


@pytest.mark.parametrize("rests", [[[4], [5, 6, 7], [8, 9]], [[4, 4], [5, 6], [8, 9]]], ids=["padded", "equally long"])
def test_a_prefix_that_all_prompts_share_is_read_once(monkeypatch: pytest.MonkeyPatch, rests: list[list[int]]) -> None:
    model = make_model(11)
    shots = [3, 4, 5, 6, 7, 8] * 8
    prompts = [[0, *shots, *rest] for rest in rests]
    read: list[int] = []
    handle = model.base_model.embed_tokens.register_forward_hook(lambda _, given, out: read.append(given[0].numel()))
    config = settings(max_new_tokens=9)
    shared = sample_completions(model, prompts, 4, config)
    assert sum(read[:2]) == 1 + len(shots) + len(prompts) * max(map(len, rests))
    monkeypatch.setattr(decoding_batch, "MIN_SHARED_TOKENS", 1000)
    apart = sample_completions(model, prompts, 4, config)
    handle.remove()
    for a, b in zip((one for group in shared for one in group), (one for group in apart for one in group), strict=True):
        assert (a.tokens, a.finish) == (b.tokens, b.finish)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


@pytest.mark.parametrize("rests", [[[4], [5, 6, 7], [8, 9]], [[4, 4], [5, 6], [8, 9]]], ids=["padded", "equally long"])
def test_a_window_of_attention_sees_the_same_tokens_in_a_batch_as_alone(rests: list[list[int]]) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"num_key_value_heads": 1, "vocab_size": 11, "sliding_window": 8, "initializer_range": 0.6}
    model = MistralForCausalLM(MistralConfig(**shape, **more)).eval()
    prompts, config = [[0, *[3, 4, 5, 6, 7, 8] * 8, *rest] for rest in rests], settings(max_new_tokens=1)
    for prompt, (one,) in zip(prompts, sample_completions(model, prompts, 1, config), strict=True):
        logp = model(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        assert one.logprobs[0] == pytest.approx(float(logp[one.tokens[0]]), abs=1e-4)


def test_every_end_of_sequence_id_ends_a_completion_and_stop_strings_do_too() -> None:
    model = make_model(11)
    ends = {"eos_ids": [1, 5, 7], "ends_in_stop_string": lambda ids: ids[-1] == 6}
    groups = sample_completions(model, [[0, 3]], 64, settings(max_new_tokens=20), **ends)
    for one in groups[0]:
        ends = [i for i, token in enumerate(one.tokens) if token in (1, 5, 6, 7)]
        assert ends == ([len(one.tokens) - 1] if one.finish != "length" else [])
        if ends:
            assert one.finish == ("stop_string" if one.tokens[-1] == 6 else "stop")


def test_top_k_and_top_p_keep_the_smallest_sets() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()[None]
    for (top_k, kept_k), (top_p, kept_p) in itertools.product(
        [(0, 4), (1, 1), (3, 3), (9, 4)], [(1.0, 4), (0.39, 1), (0.41, 2), (0.75, 3)]
    ):
        kept = int((apply_top_k_top_p(logits, top_k, top_p) > -torch.inf).sum())
        if top_p == 1.0:
            assert kept == kept_k
        elif top_k in (0, 9):
            assert kept == kept_p
        else:
            assert 1 <= kept <= min(kept_k, 4)
