"""What an engine answers of a completion, from vLLM's arrays to the columns that transformers' sampler has."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.conftest import normal, refused
from tests.plain_scoring import cut_to_top_k
from topr_exp.sampling import vllm_worker
from topr_exp.sampling.engine_completions import completions_of
from topr_exp.sampling.sampler import Sample
from topr_exp.sampling.top_logprobs import likeliest_tokens
from topr_exp.sampling.vllm_worker import PackedLogprobs, RefusedError, TokenReports, completion

VOCABULARY = 50
PLACES = 40


def output_of(tokens, logprobs, **fields):
    """One completion, with the fields that the worker reads of vLLM's `CompletionOutput`."""
    values = {"finish_reason": "length", "stop_reason": None, "sampling_mask": None, **fields}
    return SimpleNamespace(token_ids=tokens, logprobs=logprobs, **values)


def sample_of(output, *, top_count=0, keeps_drawable=False):
    answer = completion(output, top_count=top_count, keeps_drawable=keeps_drawable)
    ((sample,),) = completions_of({"completions": [[answer]]}, VOCABULARY)
    return sample


def distributions(drawable):
    """[PLACES, VOCABULARY] log-probabilities, of which `drawable` of each place are finite."""
    logits = normal(PLACES, VOCABULARY, seed=drawable)
    return cut_to_top_k(logits, drawable).log_softmax(-1)


def ids_of_vllm(distribution, tokens, count):
    """[PLACES, 1 + count] tokens as vLLM has them: the drawn one, then the likeliest in any order."""
    rng = np.random.default_rng(1)
    ids = np.zeros((PLACES, 1 + count), np.int64)
    for place, logp in enumerate(distribution.numpy()):
        by_chance_if_equal = rng.permutation(VOCABULARY)
        likeliest = by_chance_if_equal[np.argsort(-logp[by_chance_if_equal], kind="stable")][:count]
        ids[place] = [tokens[place], *rng.permutation(likeliest)]
    return ids


@pytest.mark.parametrize("drawable", [3, 12, VOCABULARY])
@pytest.mark.parametrize("count", [1, 8, 49, VOCABULARY])
def test_likeliest_tokens_come_as_those_of_transformers_sampler(drawable, count):
    """Also where fewer could be drawn than are noted, and where the drawn token is none of the likeliest."""
    distribution = distributions(drawable)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.multinomial(distribution.exp(), 1, generator=generator)[:, 0].tolist()
    ids = ids_of_vllm(distribution, tokens, count)
    logprobs = np.take_along_axis(distribution.numpy(), ids, axis=1)
    packed = PackedLogprobs()
    for first in range(0, PLACES, 2):  # steps of two places
        packed.append(ids[first : first + 2], logprobs[first : first + 2])

    sample = sample_of(output_of(tokens, packed), top_count=count)

    assert sample.tokens == tokens
    assert sample.logprobs == logprobs[:, 0].tolist()
    for top_tokens, expected in zip(sample.top_tokens, likeliest_tokens(distribution, count), strict=True):
        np.testing.assert_array_equal(top_tokens.logp, expected.logp, strict=True)
        if count == VOCABULARY:
            assert top_tokens.ids is expected.ids is None
        else:
            np.testing.assert_array_equal(top_tokens.ids, expected.ids, strict=True)


def drawn_alone(*tokens):
    """Log-probabilities of these tokens, and of no others."""
    packed = PackedLogprobs()
    for token in tokens:
        packed.append(np.array([[token]]), np.array([[-0.5]]))
    return packed


@pytest.mark.parametrize("keeps_drawable", [True, False])
def test_tokens_that_could_be_drawn_keep_their_places(keeps_drawable):
    masks = [[2, 7, 9], [4], [0, 7]]
    sampling_mask = SimpleNamespace(token_ids=masks)
    output = output_of([7, 4, 0], drawn_alone(7, 4, 0), sampling_mask=sampling_mask)

    sample = sample_of(output, keeps_drawable=keeps_drawable)

    drawable_ids = masks if keeps_drawable else []
    assert sample == Sample([7, 4, 0], [-0.5] * 3, "length", drawable_ids)


@pytest.mark.parametrize(
    "tokens, fields, error, message",
    [
        ([7, 4], {"token_ids": [[7], [5]]}, RefusedError, "vLLM drew token 4, which is none of those that could be"),
        ([7, 4], {"token_ids": [[7]]}, ValueError, "shorter"),
        ([7], {"token_ids": [[7]]}, RefusedError, "vLLM gave 2 log-probabilities of 1 tokens"),
    ],
)
def test_answers_that_contradict_themselves_are_refused(tokens, fields, error, message):
    output = output_of(tokens, drawn_alone(7, 4), sampling_mask=SimpleNamespace(**fields))

    with refused(message, error):
        completion(output, top_count=0, keeps_drawable=True)


@pytest.mark.parametrize("top_count", [0, 1, 3])
def test_another_number_of_likeliest_tokens_than_was_asked_for_is_refused(top_count):
    """As vLLM gives to a request that shares its steps with one that asks for more."""
    ids = np.array([[9, 3, 4], [3, 3, 4]])
    packed = PackedLogprobs()
    packed.append(ids, np.full(ids.shape, -1.0))

    with refused(f"^vLLM gave 4 likeliest tokens for 2 places, not {top_count} at each$", RefusedError):
        sample_of(output_of([9, 3], packed), top_count=top_count)


@pytest.fixture
def seconds(monkeypatch):
    """A list whose sum is the time that a worker sees."""
    seconds = [100.0]
    monkeypatch.setattr(vllm_worker, "time", SimpleNamespace(monotonic=lambda: sum(seconds)))
    return seconds


def test_a_worker_reports_tokens_every_few_seconds(seconds):
    sent = []
    reports = TokenReports(SimpleNamespace(send=lambda report: sent.append(report["drawn_tokens"])))

    for elapsed, count in [(1.0, 5), (0.9, 6), (0.2, 7), (1.0, 8), (9.0, 9)]:
        seconds.append(elapsed)
        reports.add(count)
    assert sent == [5 + 6 + 7, 8 + 9]

    reports.add(3)
    reports.restart()
    seconds.append(5.0)
    reports.add(4)
    assert sent[2:] == [4]


def test_an_engine_that_sleeps_keeps_neither_weights_nor_the_states_of_old_ones():
    worker = vllm_worker.Worker(Mock())
    worker.llm = Mock()

    worker.sleep({})
    worker.reload({})

    names = [name for name, _, _ in worker.llm.mock_calls]
    assert names == ["sleep", "collective_rpc", "reset_prefix_cache"]
    worker.llm.sleep.assert_called_once_with(level=2)  # of level 1 the weights stay in main memory
