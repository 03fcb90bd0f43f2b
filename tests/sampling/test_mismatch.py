"""What is put between sampler and trainer on purpose: by enumeration of small languages, and through whole runs."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.conftest import lines_of, make_model, normal, read_json, small_config
from tests.plain_scoring import completion_logits
from tests.sampling.test_sampler import PROMPTS, check_frequencies, draw, exact_probabilities, settings
from topr_exp.config.model import Mismatch
from topr_exp.pipeline import run
from topr_exp.sampling.hf import normal_of
from topr_exp.sampling.mismatch import describe_mismatch, measure_mismatch, round_matrix, rounded_weights
from topr_exp.training.hidden_states import DrawableTokens, Inputs
from topr_exp.training.logprobs import score_tokens

CPU = torch.device("cpu")
MISMATCH = Mismatch("int4", 0.5)

# ---- what is put in


REPRESENTABLE = {
    "int8": torch.arange(128),
    "int4": torch.arange(8),
    "float8_e4m3": torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("kind", REPRESENTABLE)
def test_a_weight_becomes_the_nearest_that_its_kind_holds_by_a_scale_for_each_row(kind):
    weight = normal(5, 40)
    levels = REPRESENTABLE[kind].double()

    rounded = round_matrix(weight, kind)

    for row, rounded_row in zip(weight.double(), rounded.double(), strict=True):
        sizes = levels * row.abs().max() / levels[-1]
        distances = row.abs()[:, None] - sizes
        nearest = sizes[distances.abs().argmin(1)] * row.sign()
        assert_close(rounded_row, nearest, atol=0, rtol=1e-5)
    assert round_matrix(torch.zeros(1, 2), kind).tolist() == [[0, 0]]


def test_noise_is_a_normal_function_of_seed_and_prefix():
    prefixes = list(itertools.product([5], range(40), range(40)))
    logits = torch.zeros(1, 7)

    noise = normal_of(0, prefixes, logits)
    of_reversed = normal_of(0, prefixes[::-1], logits)
    of_other_seed = normal_of(1, prefixes, logits)

    assert torch.equal(of_reversed.flip(0), noise)
    rows = torch.cat([noise, of_other_seed])
    assert len(torch.unique(rows, dim=0)) == 2 * len(prefixes)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.std()) == pytest.approx(1, abs=0.05)


def inputs_of(prompt, group, drawable=None):
    """A group as training has it."""
    sequences = [(np.array(prompt), np.array(sample.tokens)) for sample in group]
    return Inputs(sequences, CPU, drawable)


def logp_by_training(model, prompt, group):
    """[T] log-probabilities of each completion by the training forward pass."""
    inputs = inputs_of(prompt, group)
    with torch.no_grad():
        logp = score_tokens(model, inputs).logp
    return [row[row_mask].numpy() for row, row_mask in zip(logp, inputs.mask, strict=True)]


@pytest.mark.parametrize("place", [0, 1])
def test_frequencies_log_probabilities_and_divergence_are_what_enumeration_says(place):
    model = make_model(5, num_hidden_layers=1)
    prompt = PROMPTS[place]
    weights = copy.deepcopy(model.state_dict())
    config = settings(max_new_tokens=2, mismatch=MISMATCH)

    group = draw(model, 6000, max_new_tokens=2, mismatch=MISMATCH)[place]

    assert_close(model.state_dict(), weights, atol=0, rtol=0)  # the policy that is trained has its weights back
    p = exact_probabilities(model, prompt, settings(max_new_tokens=2))
    with rounded_weights(model, "int4"):
        q = exact_probabilities(model, prompt, config)
    check_frequencies(group, q, 1e-4)

    sampler_logp = [np.array(sample.logprobs, np.float32) for sample in group]
    measured = measure_mismatch(logp_by_training(model, prompt, group), sampler_logp, config)

    divergence = length = 0.0
    for tokens, probability in q.items():
        divergence += probability * math.log(probability / p[tokens])
        length += probability * len(tokens)
    assert divergence > 0.05
    assert measured["put_in"] == {"weights": "int4", "logits_noise": 0.5}
    assert measured["kl_answer"] == pytest.approx(divergence, rel=0.1)
    assert measured["kl_token"] == pytest.approx(divergence / length, rel=0.1)


# ---- truncation, with π renormalised over what could be drawn


def drawable_tokens(group):
    """The tokens that could be drawn in each place, as training has them."""
    ids_by_place = []
    for sample in group:
        ids_by_place += sample.drawable_ids
    counts = list(map(len, ids_by_place))
    return DrawableTokens(np.concatenate(ids_by_place, dtype=np.int64), np.array(counts))


def renormalized_logp(model, prompt, sample):
    """The log-probability of each token among those that could be drawn."""
    logits = completion_logits(model, prompt, sample.tokens)
    logps = []
    for token_logits, token, ids in zip(logits, sample.tokens, sample.drawable_ids, strict=True):
        distribution = token_logits[ids].log_softmax(-1)
        logps.append(distribution[ids.index(token)])
    return logps


@pytest.mark.parametrize("changes", [{"top_k": 2}, {"top_p": 0.75}, {"top_k": 2, "mismatch": MISMATCH}], ids=str)
def test_probabilities_over_what_could_be_drawn_are_exact_and_so_is_their_gradient(changes):
    """Of the sets of the policy that sampled, which stay as they are while it is trained."""
    group, _ = draw(make_model(11), 8, keeps_drawable=True, **changes)
    model = make_model(11, seed=1)
    prompt = PROMPTS[0]
    inputs = inputs_of(prompt, group, drawable_tokens(group))

    scores = score_tokens(model, inputs, entropy=True)

    expected = []
    for sample in group:
        expected += renormalized_logp(model, prompt, sample)
    logp = scores.logp[inputs.mask]
    expected_logp = torch.stack(expected)
    assert torch.isfinite(scores.entropy).all()
    assert_close(logp, expected_logp, atol=1e-4, rtol=0)
    coefficients = torch.arange(1, len(logp) + 1) / len(logp)
    weights = list(model.parameters())
    gradients = torch.autograd.grad((coefficients * logp).sum(), weights)
    expected_gradients = torch.autograd.grad((coefficients * expected_logp).sum(), weights)
    assert_close(gradients, expected_gradients, atol=1e-3, rtol=1e-3)


# ---- what is measured


SAMPLER_LOGP = list(map(np.float32, ([0, 0], [-1, -1, -1])))
SCORED_LOGP = list(map(np.float32, ([-1, -2], [-1, -1, -0.5])))  # log μ/q: −1, −2; 0, 0, 0.5


def test_quantiles_are_by_token_and_of_the_product_by_completion():
    measured = measure_mismatch(SCORED_LOGP, SAMPLER_LOGP)

    by_token = measured["per_token"]
    by_completion = measured["sequence_ratio"]
    assert measured["tokens"] == 5
    assert by_token["min"] == -2
    assert by_token["50%"] == 0
    assert by_token["max"] == 0.5
    assert measured["per_token_mean_absolute"] == pytest.approx(3.5 / 5)
    assert by_completion["min"] == pytest.approx(math.exp(-3))
    assert by_completion["max"] == pytest.approx(math.exp(0.5))
    assert describe_mismatch(measured).startswith("sampler and trainer differ by up to 2 a token")


def test_differences_of_rounding_are_agreement():
    near_logp = [logp + np.float32(2e-6) for logp in SAMPLER_LOGP]

    line = describe_mismatch(measure_mismatch(near_logp, SAMPLER_LOGP))

    assert line == "sampler and trainer agree: largest difference 2e-06 a token"


def test_the_divergence_is_estimated_without_bias_whether_or_not_all_can_be_drawn():
    cut = measure_mismatch(SCORED_LOGP, SAMPLER_LOGP, settings(top_k=2))
    uncut = measure_mismatch(SCORED_LOGP, SAMPLER_LOGP, settings())

    ratio_sum = math.expm1(-1) + math.expm1(-2) + math.expm1(0.5)
    assert cut["kl_token"] == 2.5 / 5
    assert cut["kl_answer"] == 2.5 / 2
    assert uncut["kl_answer"] == pytest.approx((ratio_sum + 2.5) / 2)


# ---- whole runs


def rollouts_of(config):
    return read_json(config.folder / "iteration-1/sources.json")["rollouts"]


def test_a_changed_sampler_changes_what_is_trained_on_alone(smoke, tmp_path, capsys):
    """Evaluation, by the same seeds, finds the same of the base; summary.json says what was put in and came out."""
    plain_config, plain_summary = smoke
    config = small_config(tmp_path, "sampler.mismatch={weights: int4, logits_noise: 0.3}", "mu=sampler")

    summary = run(config)

    assert summary["base"]["pass@k"] == plain_summary["base"]["pass@k"]
    assert summary["base"]["length"] == plain_summary["base"]["length"]
    assert rollouts_of(config) != rollouts_of(plain_config)
    measured = summary["sampler_mismatch"]
    assert measured["put_in"] == {"weights": "int4", "logits_noise": 0.3}
    assert measured["kl_answer"] > measured["kl_token"] > 1e-3
    assert "sampler and trainer differ as sampler.mismatch asks: KL 0.0" in capsys.readouterr().out
    assert "put_in" not in plain_summary["sampler_mismatch"]


LAGGED = ["schedule=async", "schedule.lag=1", "schedule.rounds=3", "algo=tis", "mu=sampler"]


def test_a_run_with_truncation_begins_at_ratio_1(tmp_path):
    """With top_k=2 every ratio of the first update is below 1, but for π renormalised as the sampler did."""
    first_updates = {}
    for renormalize in ("true", "false"):
        config = small_config(tmp_path, *LAGGED, "sampler.top_k=2", f"algo.renormalize={renormalize}")
        run(config)
        first_updates[renormalize] = lines_of(config.folder / "metrics.jsonl")[0]

    renormalized = first_updates["true"]
    plain = first_updates["false"]
    assert abs(renormalized["log_ratio_neg"]) < 1e-4
    assert plain["log_ratio_neg"] < -0.01
    assert renormalized["sampler_gap"] < 1e-4 < plain["sampler_gap"]


def test_a_top_k_that_bites_shows_in_the_ratio_and_none_does_not(smoke, tmp_path, capsys):
    for ratio in smoke[1]["sampler_mismatch"]["sequence_ratio"].values():
        assert ratio == pytest.approx(1, abs=1e-3)

    config = small_config(tmp_path, "sampler.top_k=2")
    measured = run(config)["sampler_mismatch"]

    assert "sampler and trainer differ by up to " in capsys.readouterr().out
    # The two likeliest tokens had less than all the probability, so μ < q, by more over a whole completion.
    assert measured["per_token"]["max"] < 1e-3
    assert measured["sequence_ratio"]["50%"] < 0.9
    stored = read_json(config.folder / "iteration-1/training_set.json")
    assert stored["sampler_mismatch"] == measured
    assert stored["sampler"]["sampler"] == "hf"
