"""docs/names.md: each row's gradient is that of another framework's loss of that name.

`recorded/` holds the inputs of 8 answers and, by framework, the gradients that its public code gave for them (rows that
say `run`); a row that says `read`, or that nothing here gives, rests on a function below, written from what was read.
"""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
import torch

from tests.algorithms.tabular_policies import group_columns, pairs_of, with_signals
from tests.conftest import ROOT, config_of, read_json, values_of
from tests.extending import list_items
from topr_exp.types import Batch

PAGE = (ROOT / "docs/names.md").read_text(encoding="utf-8")
RECORDED = ROOT / "tests/algorithms/recorded"
FILES = {path.stem: read_json(path) for path in RECORDED.glob("*.json")}
INPUTS = {key: np.array(value, dtype=float) for key, value in FILES.pop("inputs").items()}
GRADIENTS = {}  # by framework and name: of all tokens in one row
for file in FILES.values():
    for name, loss in file["losses"].items():
        GRADIENTS[file["framework"], name] = np.concatenate(loss["gradient"])


@dataclasses.dataclass(frozen=True)
class Row:
    """One framework's loss, and the settings that give it."""

    framework: str
    name: str
    settings: str
    factor: str
    difference: str
    source: str

    @property
    def key(self):
        return self.framework, self.name


ITEM = re.compile(r"(?:`(algo=[^`]+)`|no settings)(?:, times ([^:]+))?: (.+)")  # settings, factor, names and remark
NAME = re.compile(r"(?:, |^)([\w-]+) `([^`]+)`( \(read\))?")  # framework, name there


def read_rows(page):
    """The losses of all lists: `SETTINGS`, times FACTOR: FRAMEWORK `NAME`, ...; what differs."""
    rows = []
    for item in list_items(page.partition("\n## TOPR")[2]):
        match = ITEM.fullmatch(item)
        assert match, item
        settings, factor, text = match.groups()
        names, _, difference = text.partition("; ")
        for framework, name, is_read in NAME.findall(names):
            source = "read" if is_read else "run"
            rows.append(Row(framework, name, settings or NOTHING, factor or "1", difference, source))
    return rows


NOTHING = "no settings"
ROWS = read_rows(PAGE)

# ---- what was read: gradients [B, T] of the loss that is minimised

MASK = INPUTS["mask"].astype(bool)
LENGTH = MASK.sum(1)
TOKENS = MASK.sum()
ANSWERS, LONGEST = MASK.shape
GROUPS = INPUTS["reward"].reshape(2, -1)
STD = GROUPS.std(1, ddof=1).repeat(ANSWERS // 2)[:, None]
SCORE = (INPUTS["reward"] - GROUPS.mean(1).repeat(ANSWERS // 2))[:, None] / (STD + 1e-4)
DELTA = (INPUTS["logp"] - INPUTS["mu"]) * MASK  # log π/μ
MOVED = (INPUTS["logp"] - INPUTS["old"]) * MASK  # log π/π_old
GAP = (INPUTS["old"] - INPUTS["mu"]) * MASK  # log π_old/μ


def mean_over_answer(values):
    return ((values * MASK).sum(1) / LENGTH)[:, None]


def within_clip(log_ratio, low=0.2, high=0.2):
    """PPO's rule: True where the clipped branch has a gradient."""
    is_above = (SCORE > 0) & (log_ratio > math.log1p(high))
    is_below = (SCORE < 0) & (log_ratio < math.log1p(-low))
    return ~(is_above | is_below)


def below_second_moment(values, is_candidate, tau, *, strict):
    """False where the largest of the candidates' squares are dropped until the others have a mean below (or at) τ."""
    is_kept = np.ones_like(is_candidate)
    squares = values**2
    for square in sorted(squares[is_candidate], reverse=True):
        mean = squares[is_candidate & is_kept].mean()
        if mean < tau or (mean == tau and not strict):
            break
        is_kept &= ~(is_candidate & (squares == square))
    return is_kept


def sapo_of_trinity():
    """Trinity-RFT, sapo_policy_loss.py, commit 9051d637, 2026-04-09: the gate itself weighs ∇log π, not its slope."""
    tau = np.where(SCORE > 0, 1.0, 1.05)
    return -SCORE * 4 / tau / (1 + np.exp(-tau * (np.exp(DELTA) - 1))) / TOKENS


def m2po_of_trinity():
    """Trinity-RFT, m2po_policy_loss.py, pull request 616, 2026-08-20: drops among harmful tokens alone, clips none."""
    is_harmful = MASK & (SCORE * DELTA > 0)
    return -SCORE * np.exp(DELTA) * below_second_moment(DELTA, is_harmful, 0.04, strict=False) / TOKENS


def m2po_of_areal():
    """AReaL, ppo/actor.py, commit 4aef98d8, 2026-05-21: drops by log π_old/μ, over PPO against π_old, corrected."""
    is_kept = below_second_moment(GAP, MASK, 0.04, strict=True)
    weight = np.exp(MOVED + np.minimum(GAP, math.log(5))) * within_clip(MOVED) * is_kept
    return -SCORE * weight / (is_kept & MASK).sum()


def vaco_of_open_instruct():
    """open-instruct, grpo_utils.py, commit e6c3044a, 2026-08-20: mean |π_old/μ − 1| of the answer above 0.3, signed."""
    is_far = mean_over_answer(np.abs(np.exp(GAP) - 1)) > 0.3
    is_kept = ~(is_far & (SCORE * GAP > 0))
    return -SCORE * np.exp(MOVED + GAP) * within_clip(MOVED, high=0.272) * is_kept / TOKENS


def dro_of_verl():
    """veRL, core_algos.py, release 0.9.1, 2026-09-20: token log-ratios squared, not the answer's."""
    return (0.1 * DELTA - SCORE) / TOKENS


def kimi_of_roll():
    """ROLL, actor_pg_worker.py, commit 8eb27cc2, 2026-08-19: the same."""
    return (0.1 * DELTA - SCORE) / LENGTH[:, None] / ANSWERS


def topr_of_verl():
    """veRL, pull request 6986 (open), its description, 2026-07-09: min(geometric mean, 1) for A < 0, else 1."""
    weight = np.where(SCORE < 0, np.minimum(np.exp(mean_over_answer(DELTA)), 1), 1)
    return -SCORE * weight / TOKENS


def async_grpo_of_trl():
    """TRL, async_grpo_trainer.py, release 1.16.0, 2026-10-15: PPO's clip against the log-probabilities of vLLM."""
    return -SCORE * np.exp(DELTA) * within_clip(DELTA) / TOKENS


def dpo_of_trinity():
    """Trinity-RFT, dpo_loss.py, commit 9051d637, 2026-04-09: one logistic of the sum of the micro-batch's margins."""
    sign = np.where(INPUTS["reward"] == 1, 1.0, -1.0)[:, None]
    return -0.1 * sign / (1 + math.exp(0.1 * (sign * DELTA).sum())) * MASK


FORMULAS = {
    ("Trinity-RFT", "sapo"): sapo_of_trinity,
    ("Trinity-RFT", "m2po"): m2po_of_trinity,
    ("AReaL", "m2_threshold=0.04"): m2po_of_areal,
    ("open-instruct", "rho_mask_tv_divergence"): vaco_of_open_instruct,
    ("veRL", "dro"): dro_of_verl,
    ("ROLL", "kimi15"): kimi_of_roll,
    ("veRL", "topr"): topr_of_verl,
    ("TRL", "AsyncGRPO"): async_grpo_of_trl,
    ("Trinity-RFT", "dpo"): dpo_of_trinity,
}
# prime-rl, rl/loss.py, commit 559b4477, 2026-08-21: 1e-3 (log π/μ)² on every token, dropped or not.
PENALTIES = {"prime-rl": 2e-3 * DELTA / TOKENS}


def by_formula(row):
    return np.broadcast_to(FORMULAS[row.key](), MASK.shape)


# ---- ours


def recorded_batch():
    rewards = torch.tensor(GROUPS)
    return Batch(
        logp=torch.tensor(INPUTS["logp"], requires_grad=True),
        mu_logp=torch.tensor(INPUTS["mu"]),
        old_logp=torch.tensor(INPUTS["old"]),
        ref_logp=torch.tensor(INPUTS["ref"]),
        mask=torch.tensor(MASK),
        positive=rewards.flatten() > 0,
        group=torch.tensor(INPUTS["group"]).long(),
        sample=torch.arange(4).repeat(2),
        **group_columns(rewards),
    )


@functools.cache
def computed(settings):
    """∇ of the loss that the settings give, and the share of tokens that it keeps."""
    config = config_of(*settings.split(), "dry_run=true")
    batch = recorded_batch()
    loss = config.algo
    loss_batch = with_signals(loss, batch)
    if "pairs" in loss.needs:
        loss_batch = pairs_of(batch, batch.positive, ~batch.positive)
    output = loss(loss_batch)
    divisor = TOKENS if config.optim.reduction == "tokens" else len(output.loss)
    (gradient,) = torch.autograd.grad(output.loss.sum() / divisor, batch.logp)
    share_masked = output.metrics.get("masked", torch.zeros(ANSWERS)).numpy()
    return gradient.numpy(), LENGTH @ (1 - share_masked) / TOKENS


def by_settings(row):
    gradient, share_kept = computed(row.settings)
    factors = {
        "1": 1.0,
        "1/L": 1 / LONGEST,
        "N/kept": 1 / share_kept,
        "1/(1 + τ)": 1 / (1 + 1.0),
        "(s + 1e-4)/(s + 1e-6)": (STD + 1e-4) / (STD + 1e-6),
    }
    penalty = PENALTIES.get(row.framework, 0.0)
    return gradient * factors[row.factor] + penalty


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.framework} {row.name}")
def test_a_row_is_what_the_framework_computes(row):
    gradient = by_formula(row) if row.settings == NOTHING else by_settings(row)

    expected = by_formula(row)[MASK] if row.source == "read" else GRADIENTS[row.key]
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(gradient[MASK], expected, rtol=1e-6, atol=0)


def test_every_recorded_loss_has_its_row_and_every_row_something_to_rest_on():
    recorded_losses = set()
    for row in ROWS:
        if row.source == "run":
            recorded_losses.add(row.key)
        if row.source == "read" or row.settings == NOTHING:
            assert row.key in FORMULAS
        assert row.factor == "1" or row.difference, row

    assert recorded_losses == GRADIENTS.keys()
    assert len(set(values_of(ROWS, "key"))) == len(ROWS) > 80


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_the_version_that_was_run_stands_on_the_page(file):
    assert f"- {file['framework']} {file['version']}, {file['commit'][:8]}, {file['date']}\n" in PAGE


def test_the_figure_draws_losses_that_exist():
    from scripts.names_figure import PANELS

    for curves in PANELS.values():
        for name, weight_of in curves.items():
            assert weight_of(True, 0.0) > 0, name
            assert weight_of(False, 0.0) > 0, name
