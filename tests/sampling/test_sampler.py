"""The sampler draws from exactly the distribution that it claims, and says so in its log-probabilities."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    SiglipVisionConfig,
)

from tests.conftest import make_model, refused
from tests.plain_scoring import completion_logp
from topr_exp.config.model import SamplerConfig
from topr_exp.models.loading import load_model
from topr_exp.models.policy import Policy
from topr_exp.sampling.decoding_batch import cache_argument_of
from topr_exp.sampling.hf import Decoder, HFSampler, normal_of
from topr_exp.sampling.sampler import seed_of
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens

EOS = 1
PROMPTS = [[0, 3], [0, 4, 2]]
PREFIX = [0, *[3, 4, 5, 6, 7, 8] * 8]  # long enough to be computed once for all prompts
PADDED = [[4], [5, 6, 7], [8, 9]]
EQUALLY_LONG = [[4, 4], [5, 6], [8, 9]]


def settings(**changes):
    values = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 3} | changes
    return SamplerConfig(name="hf", seed=0, prompts_per_shard=8, **values)


def sample_completions(model, prompts, n, config, **changes):
    generator = torch.Generator().manual_seed(0)
    options = {"eos_ids": [EOS], "generator": generator} | changes
    return Decoder(model=model, config=config, **options).draw(prompts, n)


def policy_of(model):
    return Policy(model, SimpleNamespace(eos_token_id=EOS), "test", torch.float32)


def draw(model, n, prompts=PROMPTS, *, keeps_drawable=False, **changes):
    """n completions of each prompt as a run draws them, by changed settings."""
    sampler = HFSampler(settings(**changes), keeps_drawable=keeps_drawable)
    return sampler.sample(policy_of(model), prompts, n, (1,), ())


def assert_logp(model, prompts, groups, tolerance=1e-5):
    """The sampler's log-probabilities are those by transformers of each sequence alone."""
    for prompt, group in zip(prompts, groups, strict=True):
        for sample in group:
            logp = completion_logp(model, prompt, sample.tokens).tolist()
            assert sample.logprobs == pytest.approx(logp, rel=0, abs=tolerance)


def make_model_of_parts():
    """A Gemma 3 that also takes pictures: its text part has a layer with a window."""
    torch.manual_seed(0)
    shape = {"intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    vision = SiglipVisionConfig(hidden_size=8, image_size=16, patch_size=8, **shape)
    text = Gemma3TextConfig(
        vocab_size=11, hidden_size=16, head_dim=8, num_key_value_heads=1, max_position_embeddings=64, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"], initializer_range=0.6, eos_token_id=EOS,
        **shape | {"num_hidden_layers": 2},
    )  # fmt: skip
    return Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    ).eval()


def test_a_model_of_several_parts_reads_text_by_its_text_part():
    model = make_model_of_parts()
    policy = policy_of(model)
    sampler = HFSampler(settings(max_new_tokens=6))

    sampler.prepare(policy, 9)
    groups = sampler.sample(policy, PADDED, 4, (1,), ())

    assert policy.context == 64
    assert_logp(model, PADDED, groups)
    model.config.text_config.final_logit_softcapping = 30.0
    with refused("changes its logits by final_logit_softcapping; not supported"):
        sampler.prepare(policy, 9)


LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def test_the_context_of_longrope_ends_where_a_longer_sequence_would_change_the_others():
    model = make_model(11, model_type="phi3", rope_parameters=LONGROPE, original_max_position_embeddings=12)
    context = policy_of(model).context
    prompt = np.array([0, 3])
    completion = np.array([4, 2, 6])

    def score_beside(length):
        longer_completion = np.full(length - len(prompt), 5)
        inputs = Inputs([(prompt, completion), (prompt, longer_completion)], torch.device("cpu"))
        return score_tokens(model, inputs).logp[0, :3].detach()

    logp = completion_logp(model, prompt, completion)
    torch.testing.assert_close(score_beside(context), logp, atol=1e-5, rtol=0)
    assert not torch.allclose(score_beside(context + 1), logp, atol=1e-3)

    (group,) = draw(model, 8, [[0, 3]], max_new_tokens=context - 2)
    assert max(len(sample.tokens) for sample in group) == context - 2
    assert_logp(model, [[0, 3]], [group])


def test_a_model_for_which_there_is_no_sdpa_is_sampled_as_it_is_scored(own_model):
    """gpt-oss: a sink beside the tokens, a window in each other layer, experts."""
    changes = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 4}
    make_model(413, model_type="gpt_oss", **changes).save_pretrained(own_model)
    model, _ = load_model(str(own_model))

    groups = draw(model, 4, PADDED, max_new_tokens=8)

    assert_logp(model, PADDED, groups)


def test_layers_with_other_states_than_keys_and_values_are_refused():
    model = make_model(11)
    model.config.layer_types = ["linear_attention", "full_attention"]

    with refused("LlamaForCausalLM has layers of linear_attention, whose states this sampler does not keep"):
        HFSampler(settings()).prepare(policy_of(model), 9)


def token_probabilities(model, prefix, config):
    """[V] what the next token is drawn from, by arithmetic of its own: the top k, then the smallest set of top_p."""
    with torch.no_grad():
        logits = model(torch.tensor([prefix])).logits[:, -1]
    noise = normal_of(config.seed, [tuple(prefix)], logits)
    noised_logits = (logits + config.mismatch.logits_noise * noise)[0]
    chances = (noised_logits / config.temperature).double().softmax(-1)
    from_likeliest = chances.argsort(descending=True)
    if config.top_k:
        chances[from_likeliest[config.top_k :]] = 0
        chances /= chances.sum()
    if config.top_p < 1:
        mass = chances[from_likeliest]
        mass_above = mass.cumsum(0) - mass
        chances[from_likeliest[mass_above >= config.top_p]] = 0
    return chances / chances.sum()


def exact_probabilities(model, prompt, config, eos=EOS):
    """The probability of every completion, by enumeration of the whole language."""
    probabilities = {}

    def extend(tokens, probability):
        if len(tokens) == config.max_new_tokens or eos in tokens:
            probabilities[tokens] = probability
            return
        chances = token_probabilities(model, [*prompt, *tokens], config).tolist()
        for token, chance in enumerate(chances):
            if chance > 0:
                extend((*tokens, token), probability * chance)

    extend((), 1.0)
    return probabilities


def check_frequencies(group, probabilities, tolerance):
    """Assert that completions have their probabilities' frequencies and log-probabilities within `tolerance`.

    Returns the number of completions that were expected five times or more.
    """
    assert abs(sum(probabilities.values()) - 1) < 1e-5
    counts = dict.fromkeys(probabilities, 0)
    for sample in group:
        tokens = tuple(sample.tokens)
        counts[tokens] += 1  # a KeyError is a completion of probability 0
        assert abs(sum(sample.logprobs) - math.log(probabilities[tokens])) < tolerance
    chi_square, cells = 0.0, 0
    for tokens, probability in probabilities.items():
        expected = len(group) * probability
        if expected >= 5:
            chi_square += (counts[tokens] - expected) ** 2 / expected
            cells += 1
    assert chi_square < cells + 5 * math.sqrt(2 * cells)  # its mean is `cells`, its variance twice that
    return cells


@pytest.mark.parametrize(
    "changes", [{}, {"top_k": 3, "top_p": 0.75}, {"top_k": 9, "top_p": 0.7, "temperature": 1.5}], ids=str
)
def test_frequencies_follow_the_exact_probabilities(changes):
    model = make_model(5, num_hidden_layers=1)
    config = settings(**changes)
    prompts = [[0, 3], [0, 4, 2, 3, 3]]  # of different lengths: the first one is padded

    groups = sample_completions(model, prompts, 4000, config)

    for prompt, group in zip(prompts, groups, strict=True):
        check_frequencies(group, exact_probabilities(model, prompt, config), 1e-4)
        for sample in group:
            assert sample.finish == ("stop" if sample.tokens[-1] == EOS else "length")


WINDOW = {"model_type": "mistral", "sliding_window": 8}


@pytest.mark.parametrize(
    "changes, suffixes, first_passes",
    [
        ({}, PADDED, [49, 3 * 3]),  # tokens of the shared prefix, then of the suffixes
        ({}, EQUALLY_LONG, [49, 3 * 2]),
        (WINDOW, PADDED, [3 * 52]),  # a window of attention would count padding
        (WINDOW, EQUALLY_LONG, [49, 3 * 2]),
    ],
)
def test_a_prompt_is_answered_in_a_batch_as_alone_and_a_shared_prefix_is_read_once(changes, suffixes, first_passes):
    model = make_model(11, **changes)
    prompts = [[*PREFIX, *suffix] for suffix in suffixes]
    passes = []
    embedding = model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda module, inputs, output: passes.append(inputs[0].numel()))

    groups = sample_completions(model, prompts, 4, settings(max_new_tokens=9))
    hook.remove()

    assert passes[: len(first_passes)] == first_passes
    assert_logp(model, prompts, groups, 1e-4)


def test_every_end_of_sequence_id_ends_a_completion_and_stop_strings_do_too():
    finishes = {1: "stop", 5: "stop", 7: "stop", 6: "stop_string"}
    reported_tokens = []

    (group,) = sample_completions(
        make_model(11),
        [[0, 3]],
        64,
        settings(max_new_tokens=20),
        eos_ids=[1, 5, 7],
        ends_in_stop_string=lambda tokens: tokens[-1] == 6,
        report=reported_tokens.append,
    )

    for sample in group:
        *inner_tokens, last_token = sample.tokens
        assert not finishes.keys() & inner_tokens
        assert sample.finish == finishes.get(last_token, "length")
        assert sample.finish != "length" or len(sample.tokens) == 20
    assert sum(reported_tokens) == sum(len(sample.tokens) for sample in group)
    assert len(reported_tokens) > 1, "while they are drawn"


def test_every_tuple_of_numbers_is_a_seed_of_its_own():
    tuples = [(), (0,), (0, 0), (1, 23), (12, 3), (1, 2), (2, 1)]

    seeds = {seed_of(*numbers) for numbers in tuples}

    assert len(seeds) == len(tuples)


@pytest.mark.parametrize("forward, name", [(lambda cache: None, "cache"), (lambda **_: None, "past_key_values")])
def test_a_cache_is_given_by_the_name_that_the_model_has_for_it(forward, name):
    assert cache_argument_of(SimpleNamespace(forward=forward)) == name
