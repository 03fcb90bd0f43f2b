"""A loss in a user's own loop: the number and the gradient of a run, plugins too, and one line for a mistake."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.testing import assert_close

import topr_exp
from tests.conftest import normal, refused
from tests.plain_scoring import logp_at, padded, padded_sequences
from tests.training.trainers import make_examples, new_policy, new_trainer, optim
from topr_exp import completion_logprobs, losses
from topr_exp.config.yamls import CONF, plugin_modules
from topr_exp.training.batches import GlobalBatch
from topr_exp.types import PairBatch

NAMES = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
WHOLE_VOCABULARY = "kl_pg"  # reads the reference's whole distribution, which a user computes
PLUGIN_YAML = """defaults:
  - /divided_by_tokens@_global_
  - /mu_of_the_sampler@_global_
_target_: topr_exp.algorithms.group_relative.CISPO
name: uncapped
cap: .inf
length_normalize: false
"""


NOISE = {"mu_logp": 0.3, "ref_logp": 0.2, "old_logp": 0.1}


def noisy_examples(policy, loss):
    """Examples with log μ, log π_ref and log π_old that differ from log π and from each other."""
    examples = make_examples(policy, loss.function)
    completions = examples.completions
    rng = np.random.default_rng(1)
    policy_logps = completions.lists("mu_logp")
    columns = {}
    for name, size in NOISE.items():
        logps = [logp + size * rng.normal(size=len(logp)) for logp in policy_logps]
        columns[name] = pa.array(logps, pa.list_(pa.float32()))
    return dataclasses.replace(examples, completions=completions.with_columns(columns))


def users_batch(model, examples, rows):
    """What a user does: pad, compute the logits, hand both over."""
    completions = examples.completions
    input_ids, completion_mask = padded_sequences(completions.sequences(rows))
    logits = model(input_ids).logits  # padding on the right is seen by no token before it
    logps = {}
    for name in NOISE:
        column = completions.lists(name)
        logps[name] = padded([column[row] for row in rows])
    problem_ids = completions.problem_index[rows].astype(np.int64) * 1000 - 7  # any numbers
    return topr_exp.batch_from_logits(
        logits,
        input_ids,
        completion_mask,
        reward=torch.tensor(examples.reward[rows]),
        positive=torch.tensor(completions.is_correct[rows]),
        group=torch.tensor(problem_ids),
        **logps,
    )


def gradient_of(model):
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


@pytest.mark.parametrize("name", [name for name in NAMES if name != WHOLE_VOCABULARY])
def test_a_users_loop_has_the_number_and_the_gradient_of_the_run(name, tmp_path):
    loss = topr_exp.loss(name)
    policy = new_policy()
    examples = noisy_examples(policy, loss)
    config = optim(micro_batch_size=24, reduction=loss.reduction)
    trainer = new_trainer(policy, loss.function, config, tmp_path)
    indices = examples.order(0, 1, 0)[:24]
    batch_of_run = GlobalBatch(examples, indices, mu_is_policy=False)
    number_of_run = float(trainer.accumulate_gradients(batch_of_run).loss) / trainer.divisor(batch_of_run)
    gradient_of_run = gradient_of(policy.model)
    policy.model.zero_grad()

    rows = examples.rows(indices)
    if "pairs" in loss.needs:
        sides = [users_batch(policy.model, examples, rows_of_side) for rows_of_side in np.split(rows, 2)]
        batch = PairBatch(*sides)
    else:
        batch = users_batch(policy.model, examples, rows)
    if loss.signals is not None:
        with torch.no_grad():
            batch = dataclasses.replace(batch, signals=loss.signals(batch))
    number = loss.reduce(loss(batch).loss, batch)
    number.backward()

    largest = float(gradient_of_run.abs().max())
    assert largest > 1e-4
    assert number.item() == pytest.approx(number_of_run, rel=1e-5)
    assert_close(gradient_of(policy.model), gradient_of_run, rtol=1e-4, atol=1e-5 * largest)


def test_micro_batches_add_up_to_the_global_batch():
    policy = new_policy()
    loss = topr_exp.loss("topr", length_normalize=False, reduction="tokens")
    examples = noisy_examples(policy, loss)
    rows = examples.rows(np.arange(24))
    batch = users_batch(policy.model, examples, rows)
    divisor = loss.divisor(batch)

    total = 0.0
    for micro_rows in np.split(rows, [5, 9]):
        micro_batch = users_batch(policy.model, examples, micro_rows)
        total += loss.reduce(loss(micro_batch).loss, micro_batch, divisor).item()

    assert total == pytest.approx(loss.reduce(loss(batch).loss, batch).item(), rel=1e-5)


# ---- losses of other folders and packages


def test_the_command_shows_the_loss_of_a_users_folder(tmp_path, capsys):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo/uncapped.yaml").write_text(PLUGIN_YAML)

    assert losses.main(["--config-dir", str(tmp_path), "uncapped"]) == 0

    assert capsys.readouterr().out.startswith("uncapped")


@pytest.fixture
def plugin(working_folder):
    """An installed package that adds algo=uncapped."""
    files = {
        "uncapped_conf/__init__.py": "",
        "uncapped_conf/algo/uncapped.yaml": PLUGIN_YAML,
        "uncapped-0.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: uncapped\nVersion: 0.1\n",
        "uncapped-0.1.dist-info/entry_points.txt": "[topr_exp.conf]\nuncapped = uncapped_conf\n",
    }
    for name, text in files.items():
        (working_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (working_folder / name).write_text(text)
    plugin_modules.cache_clear()
    yield
    plugin_modules.cache_clear()


@pytest.mark.usefixtures("plugin")
def test_a_plugins_loss_is_found_with_what_its_yaml_asks(capsys):
    loss = topr_exp.loss("uncapped")

    assert loss.function.cap == math.inf
    assert loss.reduction == "tokens"
    assert loss.mu == "sampler"
    assert losses.main(["uncapped"]) == 0
    assert capsys.readouterr().out.startswith("uncapped")


# ---- from logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_probabilities_are_each_sampled_tokens_wherever_the_padding_stands(dtype):
    logits = normal(3, 6, 5).to(dtype).requires_grad_()
    input_ids = torch.arange(3 * 6).reshape(3, 6) % 5
    bounds = [(3, 5), (1, 5), (4, 6)]  # of completions; padding stands on the right, on the right, on the left
    mask = torch.zeros(3, 6)
    for row, (start, end) in enumerate(bounds):
        mask[row, start:end] = 1

    logp = completion_logprobs(logits, input_ids, mask)

    assert logp.shape == (3, 4)
    assert logp.dtype == torch.promote_types(dtype, torch.float32)
    for row, (start, end) in enumerate(bounds):
        length = end - start
        predictors = logits[row, start - 1 : end - 1].double()
        expected = logp_at(predictors, input_ids[row, start:end])
        assert_close(logp[row, :length].double(), expected, atol=1e-5, rtol=0)
        assert not logp[row, length:].any()
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    has_gradient = gradient.abs().sum(-1) > 0
    assert torch.equal(has_gradient, mask.roll(-1, 1) > 0)


LOGITS = torch.zeros(2, 3, 5)
IDS = torch.ones(2, 3, dtype=torch.int64)
MASK = torch.tensor([[0, 1, 1], [0, 0, 1]])
REWARD = torch.tensor([1.0, 0.0])


def from_logits(reward=REWARD):
    return topr_exp.batch_from_logits(LOGITS, IDS, MASK, mu_logp=None, reward=reward)


def test_a_batch_has_what_follows_from_its_arguments():
    batch = from_logits()

    assert batch.mask.tolist() == [[True, True], [True, False]]
    assert batch.positive.tolist() == [True, False]
    assert torch.equal(batch.mu_logp, batch.logp.detach())


def test_a_batch_without_logits_gets_what_compares_the_completions_of_each_prompt():
    batch = from_logits()
    grpo = topr_exp.loss("grpo")
    with refused("Batch.group_size is missing: this loss reads it; topr_exp.group_fields gives it"):
        grpo(batch)

    fields = topr_exp.group_fields(torch.tensor([7, 7]), batch.reward)

    advantage = grpo(dataclasses.replace(batch, **fields)).metrics["advantage"]
    assert_close(advantage, torch.tensor([0.5, -0.5]) / (math.sqrt(0.5) + 1e-4))


def test_coefficients_are_the_weight_times_the_reward_of_each_token():
    coefficients = topr_exp.loss_coefficients(topr_exp.loss("topr"), from_logits(torch.tensor([1.0, -1.0])))

    assert coefficients.tolist() == [[1 / 2, 1 / 2], [-1.0, 0.0]]


# ---- mistakes


def reduced(losses):
    return topr_exp.loss("topr").reduce(losses, from_logits())


@pytest.mark.parametrize(
    "call, line",
    [
        (lambda: topr_exp.loss("torp"), "no loss is called torp; allowed: agro"),
        (lambda: topr_exp.loss("dr_grpo"), "no loss is called dr_grpo; it is algo=grpo algo.advantage=group "),
        (lambda: topr_exp.loss("topr", ratio="bogus"), "algo.ratio=bogus: expected one of sequence"),
        (lambda: topr_exp.loss("naive", correction=2), "mu must be sampler for algo=naive.*; got scored"),
        (lambda: topr_exp.loss("topr", mu="none"), "mu must be scored or sampler for algo=topr.*; got none"),
        (lambda: topr_exp.loss("topr", mu="old"), "mu must be scored, sampler, none; got old"),
        (lambda: topr_exp.loss("topr", reduction="tokens"), "algo.length_normalize must be false.*; got true"),
        (lambda: topr_exp.loss("dpo")(from_logits()), "algo=dpo takes a topr_exp.PairBatch; got a Batch"),
        (lambda: reduced(torch.ones(3)), r"shape \[2\]; got \[3\]"),
        (lambda: completion_logprobs(LOGITS[:1], IDS, MASK), r"logits must be .*\[2, 3\]; got \[1, 3\]"),
        (lambda: completion_logprobs(LOGITS, IDS, MASK[:, 1:]), r"completion_mask must .*; got \[2, 2\]"),
        (lambda: completion_logprobs(LOGITS, IDS - 101, MASK), "input_ids must be from 0 to 4, .*; got -100$"),
        (lambda: completion_logprobs(LOGITS, IDS + 4, MASK), "input_ids must be from 0 to 4, .*; got 5$"),
        (lambda: completion_logprobs(LOGITS, IDS.float(), MASK), "whole numbers; got torch.float32"),
        (lambda: completion_logprobs(LOGITS, IDS, 1 + MASK), "False at the first token"),
        (lambda: completion_logprobs(LOGITS, IDS, 0 * MASK), "True at one or more of each row"),
        (lambda: from_logits(torch.ones(3)), r"reward must be a tensor \[B\], shape \[2\]; got \[3\]"),
        (lambda: topr_exp.group_fields(IDS[0, :2], REWARD.long()), "reward must be float32 or float64; got torch.int"),
        (lambda: topr_exp.group_fields(IDS, REWARD), r"group must be \[B\], the shape \[2\] of .*; got \[2, 3\]"),
        (lambda: from_logits([1.0, 0.0]), r"reward must be a tensor \[B\], shape \[2\]; got a list"),
        (
            lambda: topr_exp.loss_coefficients(None, topr_exp.PairBatch(None, None)),
            "takes a topr_exp.Batch; got a PairB",
        ),
    ],
)
def test_a_mistake_is_one_line(call, line):
    with refused(line):
        call()
