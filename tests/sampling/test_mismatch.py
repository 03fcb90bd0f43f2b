"""What is put between sampler and trainer on purpose: by enumeration of a tabular language, and through whole runs."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.algorithms.tabular_policies import (
    LENGTH,
    LOGITS,
    MASK,
    RESPONSES,
    STATES,
    TOKENS,
    Case,
    load,
    probability,
    rng,
    token_logp,
)
from tests.conftest import config_of, lines_of, overrides
from tests.sampling.test_sampler import check_frequencies, settings
from topr_exp.config.model import Mismatch
from topr_exp.models.policy import Policy
from topr_exp.pipeline import run
from topr_exp.sampling.hf import HFSampler, normal_of
from topr_exp.sampling.mismatch import describe_mismatch, measure_mismatch, rounded
from topr_exp.sampling.sampler import Sample
from topr_exp.training.hidden_states import Inputs
from topr_exp.training.logprobs import score_tokens
from topr_exp.training.output_layer import LOGITS_AT_A_TIME

EOS, SEED, DRAWS = 2, 0, 6000
PROMPTS = [[2], [0, 2]]  # after which the language is the same, but for noise
HEAD = np.array([[1.0, 0.3, -0.2], [0.1, 0.9, 0.37], [-0.43, 0.2, 1.1]])


class Tabular(nn.Module):
    """The two-token language of `tabular_policies` as transformers has a model: token -> state -> block -> head."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 3)
        self.embedding.weight.data = torch.eye(3)[[1, 2, 0]]  # the states after a 0, after a 1, at the start
        self.blocks = nn.ModuleList([nn.Linear(3, 3, bias=False)])
        self.blocks[0].weight.data = torch.tensor(block_of(logits), dtype=torch.float32)
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight.data = torch.tensor(HEAD, dtype=torch.float32)
        sizes = {"num_hidden_layers": 1, "hidden_size": 3, "num_attention_heads": 1}
        self.config = SimpleNamespace(model_type="tabular", _attn_implementation="eager", **sizes)
        self.generation_config = None

    @property
    def base_model(self) -> "Tabular":
        return self

    def get_input_embeddings(self) -> Any:
        return self.embedding

    def get_output_embeddings(self) -> Any:
        return self.head

    def forward(self, input_ids: torch.Tensor, past_key_values: Any = None, **options: Any) -> Any:
        if past_key_values is not None:
            nothing = torch.zeros((*input_ids.shape[:1], 1, input_ids.shape[1], 1))
            past_key_values.update(nothing, nothing, 0)
        return SimpleNamespace(last_hidden_state=self.blocks[0](self.embedding(input_ids)))


def block_of(logits: np.ndarray) -> np.ndarray:
    """The block's matrix with which the model has these logits."""
    return np.linalg.solve(HEAD, logits.reshape(3, 3).T)


TABLE = rng(1).normal(size=LOGITS)  # the policy's logits; π_old where π has moved on
CHANGES: dict[str, dict[str, Any]] = {
    "bfloat16": {"mismatch": Mismatch("bfloat16")},
    "float8": {"mismatch": Mismatch("float8_e4m3")},
    "int8": {"mismatch": Mismatch("int8")},
    "int4": {"mismatch": Mismatch("int4")},
    "noise": {"mismatch": Mismatch(logits_noise=0.5)},
    "int4 with noise": {"mismatch": Mismatch("int4", 0.5)},
}


def nearest(values: np.ndarray, kind: str) -> np.ndarray:
    """Each number of a channel as the nearest that the kind holds, from the list of all of them."""
    if kind == "bfloat16":  # 7 bits behind the leading one
        power = 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)
        return np.round(values / power) * power
    held = np.arange(128 if kind == "int8" else 8, dtype=float)
    if kind == "float8_e4m3":
        held = np.array([m / 8 * 2.0**-6 for m in range(8)]
                        + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1])  # fmt: skip
    scale = np.abs(values).max() / held[-1]
    return np.sign(values) * held[np.abs(np.abs(values)[:, None] / scale - held).argmin(1)] * scale


def changed_table(change: Mismatch, prompt: list[int]) -> np.ndarray:
    """The logits that the sampler has, computed anew: of rounded weights, with the noise of three prefixes."""
    block, head = (matrix.astype(np.float32).astype(float) for matrix in (block_of(TABLE), HEAD))
    if change.weights != "none":
        block = np.stack([nearest(channel, change.weights) for channel in block])
    if change.weights == "bfloat16":
        head = nearest(head, "bfloat16")
    noise = normal_of(SEED, [(*prompt,), (*prompt, 0), (*prompt, 1)], torch.zeros(3, 3)).numpy()
    return ((head @ block).T + change.logits_noise * noise).reshape(-1)


def draw(
    changes: dict[str, Any], *, keeps: bool = False, table: np.ndarray = TABLE
) -> tuple[Policy, list[list[Sample]]]:
    """The policy, and completions of each prompt that the sampler drew from it as changed."""
    policy = Policy(Tabular(table), SimpleNamespace(eos_token_id=EOS), "tabular", torch.float32)
    sampler = HFSampler(settings(max_new_tokens=2, **changes), keeps_drawable=keeps)
    return policy, sampler.sample(policy, PROMPTS, DRAWS, (1,), ())


def reported(group: list[Sample]) -> np.ndarray:
    """The log-probabilities of the sampler's own, of all 7 responses, [7, 2]."""
    found = {tuple(one.tokens): one.logprobs for one in group}
    return np.array([[*found[tuple(y)], 0.0][:2] for y in RESPONSES])


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("name", CHANGES)
def test_what_comes_out_is_what_enumeration_says(name: str, place: int) -> None:
    """Frequencies, log-probabilities and both KLs; the policy that is trained has its weights back."""
    policy, groups = draw(CHANGES[name])
    asked, group, prompt = CHANGES[name]["mismatch"], groups[place], PROMPTS[place]
    q, p = token_logp(changed_table(asked, prompt)), token_logp(TABLE)
    np.testing.assert_allclose(reported(group), q, atol=1e-6)
    check_frequencies(group, {tuple(y): math.exp(value) for y, value in zip(RESPONSES, q.sum(1), strict=True)}, 1e-5)
    pairs = [(np.array(prompt), np.array(one.tokens)) for one in group]
    with torch.no_grad():
        scored = score_tokens(policy.model, Inputs(pairs, torch.device("cpu"))).logp.numpy()
    lines = [line[: len(one.tokens)] for line, one in zip(scored, group, strict=True)]
    np.testing.assert_allclose(lines[0], p[RESPONSES.index(group[0].tokens)][: len(lines[0])], atol=1e-6)

    found = measure_mismatch(lines, [np.array(one.logprobs, np.float32) for one in group], settings(mismatch=asked))
    share, terms = np.exp(q.sum(1)), (np.expm1(p - q) - (p - q)).sum(1)
    by_answer = (share * (q - p).sum(1)).sum()
    assert (share * terms).sum() == pytest.approx(by_answer)
    error = 5 * math.sqrt((share * terms**2).sum() / DRAWS) + 1e-9
    assert found["put_in"] == {"weights": asked.weights, "logits_noise": asked.logits_noise}
    assert found["kl_answer"] == pytest.approx(by_answer, abs=error)
    # A token's KL, over the prefixes as the sampler meets them.
    steps = (np.exp(q_step) * (q_step - p_step) for q_step, p_step in zip(steps_of(q), steps_of(p), strict=True))
    met = np.array([1.0, *np.exp(steps_of(q)[0])[:2]])
    by_token = sum(weight * step.sum() for weight, step in zip(met, steps, strict=True)) / met.sum()
    assert by_token == pytest.approx(by_answer / (share * LENGTH).sum())
    assert found["kl_token"] == pytest.approx(by_token, abs=error)
    assert by_answer > {"bfloat16": 1e-8, "int8": 1e-7, "float8": 1e-6}.get(name, 1e-3)


def steps_of(logp: np.ndarray) -> list[np.ndarray]:
    """The three distributions of a policy whose log-probabilities are [7, 2]: at the start, after a 0, after a 1."""
    return [np.array([logp[1, 0], logp[4, 0], logp[0, 0]]), logp[1:4, 1], logp[4:7, 1]]


def test_noise_is_a_function_of_seed_and_prefix() -> None:
    prefixes = [(5, i, j) for i in range(40) for j in range(40)]
    like = torch.zeros(1, 7)
    noise = normal_of(0, prefixes, like)
    assert torch.equal(normal_of(0, prefixes[::-1], like), noise.flip(0))
    assert len({tuple(row) for row in noise.tolist()}) == len(prefixes)
    assert not torch.equal(normal_of(1, prefixes, like), noise)
    assert float(noise.mean()) == pytest.approx(0, abs=5 / math.sqrt(noise.numel()))
    assert float(noise.var()) == pytest.approx(1, abs=5 * math.sqrt(2 / noise.numel()))


def test_rounding_keeps_zeros_and_what_is_representable() -> None:
    for kind in ("bfloat16", "float8_e4m3", "int8", "int4"):
        weight = torch.tensor([[0.0, 0.0], [7.0, -3.0]])
        assert torch.equal(rounded(weight, kind)[0], weight[0])
        assert rounded(rounded(weight, kind), kind).allclose(rounded(weight, kind), atol=1e-6)
    assert rounded(torch.tensor([[7.0, -3.4]]), "int4").tolist() == [[7.0, -3.0]]


# ---- gradients, in expectation over what the changed sampler draws


def expected_gradient(case: Case, loss: Any, logp: np.ndarray) -> np.ndarray:
    """∇ of the expected loss over the language, whose log μ is [7, 2]."""
    total = torch.tensor(np.exp(logp.sum(1))) * loss(case.batch(mu_logp=torch.tensor(logp))).loss
    (gradient,) = torch.autograd.grad(total.sum(), case.theta)
    return np.array(gradient)


def moved() -> Case:
    """Every response once, π a few updates from the weights that drew them."""
    each, reward = np.arange(7), np.array([0.3, 1.0, -1.0, 0.7, -0.2, 1.0, -1.0])
    return Case(TABLE + 0.5 * rng(8).normal(size=LOGITS), TABLE, TABLE, each, reward, reward > 0, 0 * each, each, 7)


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "bfloat16"])
def test_the_samplers_ratios_are_unbiased_by_sequence_and_biased_by_token(name: str) -> None:
    """By token the bias is Σ_a π(a) ∇log π(a) [V_q(a) − V_π(a)] + Σ_a [q(a) − π(a)] ∇V_π(a), a the first token."""
    mu, case = reported(draw(CHANGES[name])[1][0]), moved()
    pi, q = probability(case.logits), np.exp(mu.sum(1))
    true = ((pi * case.reward)[:, None] * case.score).sum(0)
    found = -expected_gradient(case, load("policy_gradient"), mu)
    np.testing.assert_allclose(found, true, atol=1e-6)

    bias = np.zeros(LOGITS)
    for rows in ([0], [1, 2, 3], [4, 5, 6]):  # the responses that begin with an end, 0, 1
        value, value_q = ((p[rows] * case.reward[rows]).sum() / p[rows].sum() for p in (pi, q))
        bias += pi[rows].sum() * case.score_t[rows[0], 0] * (value_q - value)
        rest = ((pi[rows] / pi[rows].sum() * case.reward[rows])[:, None] * case.score_t[rows, 1]).sum(0)
        bias += (q[rows].sum() - pi[rows].sum()) * rest
    by_token = -expected_gradient(case, load("policy_gradient", ratio="token"), mu)
    np.testing.assert_allclose(by_token - true, bias, atol=1e-6)
    assert np.abs(bias).max() > 1e-2

    # mu=scored takes training's π_old for what the sampler drew with.
    ignored = (((q - probability(TABLE)) * pi / probability(TABLE) * case.reward)[:, None] * case.score).sum(0)
    batch = case.batch()
    (gradient,) = torch.autograd.grad((torch.tensor(q) * load("policy_gradient")(batch).loss).sum(), case.theta)
    np.testing.assert_allclose(-gradient.numpy() - true, ignored, atol=1e-6)


# ---- truncation, with π renormalised over what could be drawn


@pytest.mark.parametrize(
    "cut", [{"top_k": 2}, {"top_p": 0.75}, {"top_k": 2, "mismatch": Mismatch("int4", 0.5)}], ids=str
)
def test_the_probabilities_over_what_could_be_drawn_are_exact_and_so_is_their_gradient(cut, monkeypatch):
    """Of the sets of the policy that sampled, which stay as they are."""
    monkeypatch.setitem(LOGITS_AT_A_TIME, "cpu", 6)  # logits of two tokens at a time
    drawn = {tuple(one.tokens): one for one in draw(cut, keeps=True)[1][0]}
    sets = {y[:i]: one.drawable_ids[i] for y, one in drawn.items() for i in range(len(y))}
    assert {y for y in map(tuple, RESPONSES) if all(y[i] in sets.get(y[:i], ()) for i in range(len(y)))} == {*drawn}
    assert len(drawn) < len(RESPONSES)

    case, rows = moved(), [RESPONSES.index([*y]) for y in drawn]
    model, pairs = Tabular(case.logits), [(np.array(PROMPTS[0]), np.array(y)) for y in drawn]
    kept = [[np.concatenate(one.drawable_ids).astype(np.int32), np.array([*map(len, one.drawable_ids)], np.int32)]
            for one in drawn.values()]  # fmt: skip
    scores = score_tokens(model, Inputs(pairs, torch.device("cpu"), kept), entropy=True)
    assert torch.isfinite(scores.entropy).all()
    table = torch.tensor(case.logits, requires_grad=True)
    outside = torch.zeros((3, 3), dtype=torch.float64)
    for prefix, ids in sets.items():
        outside[prefix[0] + 1 if prefix else 0, [token for token in range(3) if token not in ids]] = -math.inf
    expected = (table.reshape(3, 3) + outside).log_softmax(1)[STATES, TOKENS][rows]
    weight, mask = torch.tensor(rng(3).normal(size=(len(rows), 2))), torch.tensor(MASK[rows])
    sums = [(weight * logp).where(mask, 0.0).sum(1) for logp in (scores.logp.double(), expected)]
    torch.testing.assert_close(*sums, atol=1e-5, rtol=0)
    sum(each.sum() for each in sums).backward()
    found = np.linalg.solve(HEAD.T, model.blocks[0].weight.grad.numpy()).T.reshape(-1)
    np.testing.assert_allclose(found, table.grad.numpy(), atol=1e-5)


def test_a_set_is_kept_for_each_token() -> None:
    """Also where few completions end at once, so that their rows stay in the batch."""
    group = draw({}, keeps=True, table=rng(9).normal(size=LOGITS))[1][0]
    assert 0 < sum(len(one.tokens) == 1 for one in group) < DRAWS / 8
    assert all(one.drawable_ids == [[0, 1, 2]] * len(one.tokens) for one in group)


@pytest.mark.parametrize(
    "schedule",
    [pytest.param([], marks=pytest.mark.extended), ["schedule=async", "schedule.lag=1", "schedule.rounds=3"]],
    ids=["set", "async"],
)
def test_a_run_with_truncation_begins_at_ratio_1(schedule: list[str], tmp_path: Path) -> None:
    """With top_k=2 every ratio of the first update is below 1, but for π renormalised as the sampler did."""
    first, base = {}, {}
    for asked in ("true", "false"):
        more = ["algo=tis", "mu=sampler", "sampler.top_k=2", f"algo.renormalize={asked}", *schedule]
        config = config_of(*overrides(tmp_path, *more))
        base[asked] = run(config)["base"]
        lines = lines_of(config.folder / "metrics.jsonl")
        first[asked] = lines[0]["log_ratio_neg"]
        if schedule:
            assert (lines[0]["sampler_gap"] < 1e-4) == (asked == "true")
    assert base["true"] == base["false"]  # whose completions lie in the same table
    assert abs(first["true"]) < 1e-4
    assert first["false"] < -0.01


# ---- whole runs


def test_a_changed_sampler_changes_what_is_trained_on_alone(smoke: Any, tmp_path: Path, capsys: Any) -> None:
    """Evaluation, by the same seeds, finds the same of the base; summary.json says what was put in and came out."""
    change = ["sampler.mismatch={weights: int4, logits_noise: 0.3}", "mu=sampler"]
    config = config_of(*overrides(tmp_path, *change))
    summary = run(config)
    plain, found = smoke[1], summary["sampler_mismatch"]
    ours, theirs = (
        {key: str(value).rpartition("/")[2] for key, value in each["base"].items()} for each in (summary, plain)
    )
    assert ours == theirs  # the same tables, wherever their store lies
    assert found["put_in"] == {"weights": "int4", "logits_noise": 0.3}
    assert found["kl_answer"] > found["kl_token"] > 1e-3
    assert re.search("sampler and trainer differ as sampler.mismatch asks: KL 0.0", capsys.readouterr().out)
    assert "put_in" not in plain["sampler_mismatch"]
    sources = [json.loads((each.folder / "iteration-1" / "sources.json").read_text()) for each in (config, smoke[0])]
    assert sources[0]["rollouts"] != sources[1]["rollouts"]


def test_in_rounds_the_mean_over_those_that_drew_is_told(tmp_path: Path) -> None:
    """With a lag of 1 the last update draws nothing."""
    config = config_of(*overrides(tmp_path, "schedule=async", "schedule.lag=1", "schedule.rounds=3", "algo=tis",
                                  "mu=sampler", "sampler.mismatch.logits_noise=0.3"))  # fmt: skip
    found = run(config)["sampler_mismatch"]
    lines = lines_of(config.folder / "metrics.jsonl")
    assert found["put_in"] == {"weights": "none", "logits_noise": 0.3}
    for name in ("kl_token", "kl_answer"):
        drew = [line[f"sampler_{name}"] for line in lines]
        assert drew[2] is None
        assert found[name] == pytest.approx(np.mean(drew[:2]))
    assert found["kl_answer"] > found["kl_token"] > 1e-3


# ---- what is measured, whatever was put in


def test_quantiles_by_token_and_of_the_product_by_completion() -> None:
    sampler = [np.zeros(2, np.float32), np.full(3, -1, np.float32)]
    mu = [np.array([-1, -2], np.float32), np.array([-1, -1, -0.5], np.float32)]
    found = measure_mismatch(mu, sampler)
    assert found["tokens"] == 5
    assert (found["per_token"]["min"], found["per_token"]["50%"], found["per_token"]["max"]) == (-2, 0, 0.5)
    assert found["per_token_mean_absolute"] == pytest.approx(3.5 / 5)
    assert found["sequence_ratio"]["min"] == pytest.approx(math.exp(-3))
    assert found["sequence_ratio"]["max"] == pytest.approx(math.exp(0.5))
    assert describe_mismatch(found).startswith("sampler and trainer differ by up to 2 a token")
    near = [row + np.float32(2e-6) for row in sampler]
    assert (
        describe_mismatch(measure_mismatch(near, sampler))
        == "sampler and trainer agree: largest difference 2e-06 a token"
    )
    cut, whole = (measure_mismatch(mu, sampler, settings(top_k=top_k)) for top_k in (2, 0))
    assert (cut["kl_token"], cut["kl_answer"]) == (2.5 / 5, 2.5 / 2)
    assert whole["kl_answer"] == pytest.approx((math.expm1(-1) + math.expm1(-2) + math.expm1(0.5) + 2.5) / 2)


def test_a_top_k_that_bites_shows_in_the_ratio_and_none_does_not(smoke, tmp_path, capsys):
    for ratio in smoke[1]["sampler_mismatch"]["sequence_ratio"].values():
        assert ratio == pytest.approx(1, abs=1e-3)
    config = config_of(*overrides(tmp_path, "sampler.top_k=2"))
    found = run(config)["sampler_mismatch"]
    assert re.search(r"sampler and trainer differ by up to \d", capsys.readouterr().out)
    # The two likeliest tokens had less than all the probability, so μ < q, by more over a whole completion.
    assert found["per_token"]["max"] < 1e-3
    assert found["sequence_ratio"]["50%"] < 0.9
    stored = json.loads((config.folder / "iteration-1" / "training_set.json").read_text())
    assert stored["sampler_mismatch"] == found
    assert stored["sampler"]["sampler"] == "hf"
