"""A loss in a user's own loop: the number and the gradient of a run, plugins too, and one line for a mistake."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import topr_exp
from tests.conftest import make_model, refused
from tests.training.test_trainer import make_examples, new_trainer, optim
from topr_exp import losses
from topr_exp.composition.training_set import TrainingSet
from topr_exp.config.yamls import CONF, plugin_modules
from topr_exp.types import Batch, PairBatch

NAMES = sorted(path.stem for path in (CONF / "algo").glob("*.yaml"))
WHOLE_VOCABULARY = "kl_pg"  # reads the reference's whole distribution, which a user computes
PAIRS = "dpo"  # takes two batches
PLUGIN_YAML = """defaults:
  - /divided_by_tokens@_global_
  - /mu_of_the_sampler@_global_
_target_: topr_exp.algorithms.group_relative.CISPO
name: uncapped
cap: .inf
length_normalize: false
"""


def noisy(examples: TrainingSet) -> TrainingSet:
    """The examples with log μ, log π_ref and log π_old that differ from log π and from each other."""
    rng, columns = np.random.default_rng(1), {}
    for name, size in (("mu_logp", 0.3), ("ref_logp", 0.2), ("old_logp", 0.1)):
        logprobs = [row + size * rng.normal(size=len(row)) for row in examples.completions.lists("mu_logp")]
        columns[name] = pa.array(logprobs, pa.list_(pa.float32()))
    return dataclasses.replace(examples, completions=examples.completions.with_columns(columns))


def padded(rows: list[Any], width: int, fill: float) -> torch.Tensor:
    return torch.tensor([[*map(float, row), *[fill] * (width - len(row))] for row in rows])


def users_batch(model: Any, examples: TrainingSet, rows: Any, baseline: float) -> Batch:
    """What a user does: pad, compute the logits, hand both over."""
    completions, sequences = examples.completions, examples.sequences(rows)
    texts = [[*prompt, *completion] for prompt, completion in sequences]
    input_ids = padded(texts, max(map(len, texts)), 2).long()
    sampled = [[0] * len(prompt) + [1] * len(completion) for prompt, completion in sequences]
    completion_mask = padded(sampled, input_ids.shape[1], 0).bool()
    attention_mask = padded([[1] * len(text) for text in texts], input_ids.shape[1], 0)
    longest = max(len(completion) for _, completion in sequences)
    mu, ref, old = (
        padded([completions.lists(name)[row] for row in rows], longest, 0)
        for name in ("mu_logp", "ref_logp", "old_logp")
    )
    return topr_exp.batch_from_logits(
        model(input_ids=input_ids, attention_mask=attention_mask).logits,
        input_ids,
        completion_mask,
        mu_logp=mu,
        reward=torch.tensor(examples.reward[rows]),
        positive=torch.tensor(completions.is_correct[rows]),
        baseline=baseline,
        group=torch.tensor(completions.problem_index[rows].astype(np.int64)) * 1000 - 7,
        old_logp=old,
        ref_logp=ref,
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != WHOLE_VOCABULARY])
def test_a_users_loop_has_the_number_and_the_gradient_of_the_run(name: str, tmp_path: Path, make_policy: Any) -> None:
    loss = topr_exp.loss(name)
    policy = make_policy(make_model(11))
    examples = noisy(make_examples(policy, loss.function))
    config = optim(batch_size=24, micro_batch_size=24, reduction=loss.reduction)
    trainer = new_trainer(policy, loss.function, config, tmp_path)
    chosen = examples.order(0, 1, 0)[:24]
    of_run = trainer.accumulate_gradients(examples, chosen).loss / trainer.divisor(examples, chosen)
    gradient = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
    assert gradient.abs().max() > 1e-4

    rows = examples.rows(chosen)
    parts = np.split(rows, 2) if "pairs" in loss.needs else [rows]
    batches = [users_batch(policy.model, examples, part, examples.baseline) for part in parts]
    batch: Any = PairBatch(*batches) if len(batches) == 2 else batches[0]
    if loss.signals is not None:
        with torch.no_grad():
            batch = dataclasses.replace(batch, signals=loss.signals(batch))
    policy.model.zero_grad()
    number = loss.reduce(loss(batch).loss, batch)
    number.backward()
    assert float(number.detach()) == pytest.approx(of_run, rel=1e-5)
    own_gradient = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
    torch.testing.assert_close(own_gradient, gradient, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_micro_batches_add_up_to_the_global_batch(make_policy: Any) -> None:
    policy = make_policy(make_model(11))
    loss = topr_exp.loss("topr", length_normalize=False, reduction="tokens")
    examples = noisy(make_examples(policy, loss.function))
    rows = examples.rows(np.arange(24))
    whole = users_batch(policy.model, examples, rows, 0.0)
    lengths = [len(completion) for _, completion in examples.sequences(rows)]
    assert loss.divisor(whole) == sum(lengths)
    parts = [users_batch(policy.model, examples, part, 0.0) for part in np.split(rows, [5, 9])]
    numbers = [loss.reduce(loss(part).loss, part, loss.divisor(whole)).item() for part in parts]
    assert sum(numbers) == pytest.approx(loss.reduce(loss(whole).loss, whole).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "reduction", "mu"),
    [
        ("topr", "sequences", "scored"),
        ("cispo", "tokens", "scored"),
        ("dppo_kl", "sequences", "sampler"),
        ("mis", "tokens", "sampler"),
        ("rloo", "sequences", "scored"),
    ],
)
def test_a_loss_says_what_its_yaml_asks_of_the_loop(name: str, reduction: str, mu: str) -> None:
    loss = topr_exp.loss(name)
    assert (loss.name, loss.reduction, loss.mu) == (name, reduction, mu)
    config = topr_exp.compose([f"algo={name}", "data=math"])
    assert (config.algo, config.optim.reduction, config.mu) == (loss.function, reduction, mu)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that adds algo=uncapped."""
    (tmp_path / "uncapped_conf" / "algo").mkdir(parents=True)
    (tmp_path / "uncapped_conf" / "__init__.py").touch()
    (tmp_path / "uncapped_conf" / "algo" / "uncapped.yaml").write_text(PLUGIN_YAML)
    information = tmp_path / "uncapped-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: uncapped\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text("[topr_exp.conf]\nuncapped = uncapped_conf\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin_modules.cache_clear()
    yield
    plugin_modules.cache_clear()


def test_the_command_shows_a_users_own_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "uncapped.yaml").write_text(PLUGIN_YAML)
    assert losses.main(["uncapped"]) == 2
    assert "no loss is called uncapped; allowed: agro" in capsys.readouterr().err
    assert losses.main(["--config-dir", str(tmp_path), "uncapped"]) == 0
    assert capsys.readouterr().out.startswith("uncapped")


@pytest.mark.usefixtures("plugin")
def test_a_plugins_loss_is_found_with_what_its_yaml_asks(capsys: pytest.CaptureFixture[str]) -> None:
    loss = topr_exp.loss("uncapped")
    assert (loss.function.cap, loss.reduction, loss.mu) == (float("inf"), "tokens", "sampler")
    assert losses.main(["uncapped"]) == 0
    assert capsys.readouterr().out.startswith("uncapped")


# ---- from logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_probabilities_are_each_sampled_tokens_wherever_the_padding_stands(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 6, 5).to(dtype).requires_grad_()
    input_ids = torch.randint(5, (3, 6))
    sampled = [[3, 4], [1, 2, 3, 4], [4, 5]]  # positions: padding on the right, on the right, on the left
    mask = torch.zeros(3, 6)
    for row, positions in enumerate(sampled):
        mask[row, positions] = 1
    found = topr_exp.completion_logprobs(logits, input_ids, mask)
    assert found.shape == (3, 4)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    wide = logits.detach().double()
    for row, positions in enumerate(sampled):
        for column, position in enumerate(positions):
            scores = wide[row, position - 1].exp()
            expected = torch.log(scores[input_ids[row, position]] / scores.sum())
            assert float(found[row, column].detach()) == pytest.approx(float(expected), abs=1e-5)
        assert not found[row, len(positions) :].any()
    batch = topr_exp.batch_from_logits(logits, input_ids, mask, mu_logp=None, reward=torch.tensor([1.0, -1.0, 0.0]))
    assert batch.mask.sum(1).tolist() == [2, 4, 2]
    assert batch.positive.tolist() == [True, False, False]
    assert torch.equal(batch.mu_logp, batch.logp.detach())
    batch.logp.sum().backward()
    assert logits.grad is not None
    used = logits.grad.abs().sum(-1) > 0
    assert used.int().tolist() == [[0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0]]


def test_groups_are_those_of_their_ids() -> None:
    ids, mask = torch.tensor([[3, 4]] * 6), torch.tensor([[0, 1]] * 6)
    batch = topr_exp.batch_from_logits(
        torch.zeros(6, 2, 5), ids, mask, mu_logp=None,
        reward=torch.tensor([1.0, -1.0, 1.0, 0.5, 0.5, 1.0]), group=torch.tensor([9, -2, 9, -2, 4, 9]),
    )  # fmt: skip
    assert batch.group.tolist() == [2, 0, 2, 0, 1, 2]
    assert batch.sample.tolist() == [0, 0, 1, 1, 0, 2]
    assert batch.group_size.tolist() == [3, 2, 3, 2, 1, 3]
    assert batch.group_mean.tolist() == [1, -0.25, 1, -0.25, 0.5, 1]
    assert batch.group_std.tolist() == pytest.approx([0, 1.125**0.5, 0, 1.125**0.5, 0, 0])
    lowest = -float("inf")
    assert batch.group_rewards[1].tolist() == [-1, 0.5, lowest]


# ---- mistakes

LOGITS, IDS, MASK = torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.int64), torch.tensor([[0, 1, 1], [0, 0, 1]])
from_logits = functools.partial(topr_exp.batch_from_logits, LOGITS, IDS, MASK, mu_logp=None, reward=torch.ones(2))


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: topr_exp.loss("topr", correction=2), "mu must be sampler for algo=topr.*; got scored"),
        (lambda: topr_exp.loss("topr", renormalize=True), "mu must be sampler for algo=topr, which renorm"),
        (lambda: topr_exp.loss("topr", mu="none"), "mu must be scored or sampler for algo=topr.*; got none"),
        (lambda: topr_exp.loss("topr", mu="old"), "mu must be scored, sampler, none; got old"),
        (lambda: topr_exp.loss("topr", reduction="tokens"), "algo.length_normalize must be false.*; got true"),
        (lambda: topr_exp.loss("dpo", reduction="tokens"), "optim.reduction must be sequences.*; got tokens"),
        (lambda: topr_exp.loss("topr", reduction="mean"), "reduction must be sequences or tokens; got mean"),
        (lambda: topr_exp.loss("dpo")(from_logits()), "algo=dpo takes a topr_exp.PairBatch; got a Batch"),
        (lambda: topr_exp.loss("topr")(torch.ones(2)), "algo=topr takes a topr_exp.Batch; got a Tensor"),
        (lambda: topr_exp.loss("topr").reduce(torch.ones(3), from_logits()), r"shape \[2\]; got \[3\]"),
        (lambda: topr_exp.loss("topr").reduce(torch.tensor(1.0), from_logits()), r"shape \[2\]; got \[\]"),
        (lambda: topr_exp.completion_logprobs(LOGITS[:1], IDS, MASK), r"logits must be .*\[2, 3\]; got \[1, 3\]"),
        (lambda: topr_exp.completion_logprobs(LOGITS, IDS, MASK[:, 1:]), r"completion_mask must .*; got \[2, 2\]"),
        (lambda: topr_exp.completion_logprobs(LOGITS, IDS, 1 + MASK), "False at the first token"),
        (lambda: topr_exp.completion_logprobs(LOGITS, IDS, 0 * MASK), "True at one or more of each row"),
        (lambda: from_logits(mu_logp=torch.ones(2, 3)), r"mu_logp must be \[B, T\], shape \[2, 2\]; got \[2, 3\]"),
        (lambda: from_logits(reward=torch.ones(3)), r"reward must be \[B\], shape \[2\]; got \[3\]"),
        (lambda: from_logits(group=torch.ones(2, 1)), r"group must be \[B\], shape \[2\]; got \[2, 1\]"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(call: Any, line: str) -> None:
    with refused(line):
        call()


@pytest.mark.parametrize("name", [name for name in NAMES if name != PAIRS])
def test_a_missing_field_of_a_batch_is_named(name: str) -> None:
    loss = topr_exp.loss(name)
    bare = from_logits()
    required = loss.needs & {"old_logp", "ref_logp", "vocab_kl", "groups", "group_rewards"}
    if not required:
        loss(bare)
        return
    with refused(r"Batch\.(old_logp|ref_logp|vocab_kl|group|group_mean|group_size|group_rewards) is missing"):
        loss(dataclasses.replace(bare, signals={} if loss.signals is None else loss.signals(bare)))
