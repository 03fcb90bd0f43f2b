"""docs/names.md: each row's gradient is that of another framework's loss of that name.

`recorded/` holds the inputs of 8 answers and, by framework, the gradients that its public code gave for them (rows that
say `run`); a row that says `read`, or that nothing here gives, rests on a function below, written from what was read.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.algorithms.tabular_policies import with_signals
from tests.conftest import ROOT
from tests.extending import list_items
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import plan
from topr_exp.types import Batch, PairBatch

Array = NDArray[np.float64]
PAGE = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
RECORDED = ROOT / "tests" / "algorithms" / "recorded"
FILES = {path.stem: json.loads(path.read_text()) for path in RECORDED.glob("*.json")}
INPUTS = {key: np.array(value, dtype=float) for key, value in FILES.pop("inputs").items()}
MASK = INPUTS["mask"].astype(bool)
LENGTH, TOKENS, ANSWERS, LONGEST = MASK.sum(1), int(MASK.sum()), len(MASK), MASK.shape[1]
NOTHING = "no settings"


@dataclasses.dataclass(frozen=True)
class Row:
    """One framework's loss, and the settings that give it."""

    framework: str
    name: str
    here: str
    factor: str
    differs: str
    how: str

    @property
    def key(self) -> tuple[str, str]:
        return self.framework, self.name


ITEM = re.compile(r"(?:`(algo=[^`]+)`|no settings)(?:, times ([^:]+))?: (.+)")  # settings, factor, names and remark
NAME = re.compile(r"(?:, |^)([\w-]+) `([^`]+)`( \(read\))?")  # framework, name there


def rows(page: str) -> list[Row]:
    """The losses of all lists: `SETTINGS`, times FACTOR: FRAMEWORK `NAME`, ...; what differs."""
    found = []
    for item in list_items(page.partition("\n## TOPR")[2]):
        parts = ITEM.fullmatch(item)
        assert parts, item
        settings, factor, rest = parts.groups()
        names, _, differs = rest.partition("; ")
        for framework, name, is_read in NAME.findall(names):
            how = "read" if is_read else "run"
            found.append(Row(framework, name, settings or NOTHING, factor or "1", differs, how))
    return found


ROWS = rows(PAGE)
RUN = {(file["framework"], name): loss for file in FILES.values() for name, loss in file["losses"].items()}

# ---- what was read: gradients [B, T] of the loss that is minimised


def by_group(statistic: Callable[[Array], Any]) -> Array:
    return np.repeat([statistic(each) for each in INPUTS["reward"].reshape(2, -1)], ANSWERS // 2)


CENTERED = INPUTS["reward"] - by_group(np.mean)
SCORE = (CENTERED / (by_group(lambda r: np.std(r, ddof=1)) + 1e-4))[:, None]
DELTA = (INPUTS["logp"] - INPUTS["mu"]) * MASK  # log π/μ
MOVED = (INPUTS["logp"] - INPUTS["old"]) * MASK  # log π/π_old
GAP = (INPUTS["old"] - INPUTS["mu"]) * MASK  # log π_old/μ


def mean_over_answer(values: Array) -> Array:
    return ((values * MASK).sum(1) / LENGTH)[:, None]


def within_clip(log_ratio: Array, low: float = 0.2, high: float = 0.2) -> Array:
    """PPO's rule: 1 where the clipped branch has a gradient."""
    up, down = (SCORE > 0) & (log_ratio > math.log1p(high)), (SCORE < 0) & (log_ratio < math.log1p(-low))
    return 1.0 - (up | down)


def second_moment(values: Array, chosen: NDArray[np.bool_], tau: float, strict: bool) -> NDArray[np.bool_]:
    """True where the largest of the chosen squares are dropped until the rest have a mean below (or at) τ."""
    dropped = np.zeros_like(chosen)
    for square in sorted((values**2)[chosen], reverse=True):
        rest = (values**2)[chosen & ~dropped]
        if rest.mean() < tau or (not strict and rest.mean() == tau):
            break
        dropped |= chosen & (values**2 == square)
    return dropped


def sapo_of_trinity() -> Array:
    """Trinity-RFT, sapo_policy_loss.py, commit 9051d637, 2026-04-09: the gate itself weighs ∇log π, not its slope."""
    tau = np.where(SCORE > 0, 1.0, 1.05)
    return -SCORE * 4 / tau / (1 + np.exp(-tau * (np.exp(DELTA) - 1))) / TOKENS


def m2po_of_trinity() -> Array:
    """Trinity-RFT, m2po_policy_loss.py, pull request 616, 2026-08-20: drops among harmful tokens alone, clips none."""
    harmful = MASK & (SCORE * DELTA > 0)
    return -SCORE * np.exp(DELTA) * ~second_moment(DELTA, harmful, 0.04, strict=False) / TOKENS


def m2po_of_areal() -> Array:
    """AReaL, ppo/actor.py, commit 4aef98d8, 2026-05-21: drops by log π_old/μ, over PPO against π_old, corrected."""
    keep = ~second_moment(GAP, MASK, 0.04, strict=True)
    return -SCORE * np.exp(MOVED + np.minimum(GAP, math.log(5))) * within_clip(MOVED) * keep / (keep & MASK).sum()


def vaco_of_open_instruct() -> Array:
    """open-instruct, grpo_utils.py, commit e6c3044a, 2026-08-20: mean |π_old/μ − 1| of the answer above 0.3, signed."""
    far = mean_over_answer(np.abs(np.exp(GAP) - 1)) > 0.3
    keep = ~(far & (SCORE * GAP > 0))
    return -SCORE * np.exp(MOVED + GAP) * within_clip(MOVED, high=0.272) * keep / TOKENS


def penalty_by_token(strength: float) -> Array:
    """The square of each token's log-ratio in OPMD's place of the answer's; its gradient."""
    return strength * DELTA


def dro_of_verl() -> Array:
    """veRL, core_algos.py, commit 1dda039b, 2026-08-22."""
    return (penalty_by_token(0.1) - SCORE) / TOKENS


def kimi_of_roll() -> Array:
    """ROLL, actor_pg_worker.py, commit 8eb27cc2, 2026-08-19."""
    return (penalty_by_token(0.1) - SCORE) / LENGTH[:, None] / ANSWERS


def topr_of_verl() -> Array:
    """veRL, pull request 6986 (open), its description, 2026-07-09: min(geometric mean, 1) for A < 0, else 1."""
    weight = np.where(SCORE < 0, np.minimum(np.exp(mean_over_answer(DELTA)), 1), 1)
    return -SCORE * weight / TOKENS


def dpo_of_trinity() -> Array:
    """Trinity-RFT, dpo_loss.py, commit 9051d637, 2026-04-09: one logistic of the sum of the micro-batch's margins."""
    sign = np.where(INPUTS["reward"] == 1, 1.0, -1.0)[:, None]
    return np.broadcast_to(-0.1 * sign / (1 + math.exp(0.1 * float((sign * DELTA).sum()))), MASK.shape)


FORMULAS: dict[tuple[str, str], Callable[[], Array]] = {
    ("Trinity-RFT", "sapo"): sapo_of_trinity,
    ("Trinity-RFT", "m2po"): m2po_of_trinity,
    ("AReaL", "m2_threshold=0.04"): m2po_of_areal,
    ("open-instruct", "rho_mask_tv_divergence"): vaco_of_open_instruct,
    ("veRL", "dro"): dro_of_verl,
    ("ROLL", "kimi15"): kimi_of_roll,
    ("veRL", "topr"): topr_of_verl,
    ("Trinity-RFT", "dpo"): dpo_of_trinity,
}
# prime-rl, rl/loss.py, commit 559b4477, 2026-08-21: 1e-3 (log π/μ)² on every token, dropped or not.
PENALTY: dict[str, Array] = {"prime-rl": 2e-3 * DELTA / TOKENS}

# ---- ours


def batch() -> Batch:
    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    rewards = tensor(INPUTS["reward"]).reshape(2, -1)
    n = rewards.shape[1]
    return Batch(
        tensor(INPUTS["logp"]).requires_grad_(),
        tensor(INPUTS["mu"]),
        torch.tensor(MASK),
        rewards.flatten(),
        rewards.flatten() > 0,
        group=torch.tensor(INPUTS["group"]).long(),
        sample=torch.arange(n).repeat(2),
        group_mean=rewards.mean(1).repeat_interleave(n),
        group_std=rewards.std(1).repeat_interleave(n),
        group_size=torch.full((2 * n,), n),
        group_rewards=rewards.repeat_interleave(n, 0),
        old_logp=tensor(INPUTS["old"]),
        ref_logp=tensor(INPUTS["ref"]),
    )


@functools.cache
def ours(settings: str) -> tuple[Array, Array]:
    """∇ of the loss that the settings give, and the share of each answer's tokens that it keeps."""
    (job,) = plan(parse_arguments([*settings.split(), "dry_run=true"])).jobs
    loss, given = job.config.algo, batch()
    if "pairs" in loss.needs:
        order = [torch.tensor(INPUTS["reward"] == value).nonzero()[:, 0] for value in (1, 0)]
        fields = [getattr(given, name) for name in ("logp", "mu_logp", "mask", "reward", "positive")]
        output = loss(PairBatch(*(Batch(*(each[chosen] for each in fields)) for chosen in order)))
    else:
        given = with_signals(loss, given)
        output = loss(given)
    by_token = job.config.optim.reduction == "tokens"
    (gradient,) = torch.autograd.grad(output.loss.sum() / (TOKENS if by_token else len(output.loss)), given.logp)
    dropped = output.metrics.get("masked", torch.zeros(ANSWERS))
    return gradient.numpy(), 1 - np.asarray(dropped)


def factor(text: str, kept: Array) -> float | Array:
    std = by_group(lambda r: np.std(r, ddof=1))[:, None]
    return {
        "1": 1.0,
        "1/L": 1 / LONGEST,
        "N/kept": TOKENS / float((LENGTH * kept).sum()),
        "1/(1 + τ)": 1 / (1 + 1.0),
        "(s + 1e-4)/(s + 1e-6)": (std + 1e-4) / (std + 1e-6),
    }[text]


def of_row(row: Row) -> Array:
    gradient, kept = ours(row.here)
    return gradient * factor(row.factor, kept) + PENALTY.get(row.framework, 0.0)


def recorded(row: Row) -> Array:
    padded = np.zeros(MASK.shape)
    padded[MASK] = np.concatenate(RUN[row.key]["gradient"])
    return padded


def assert_same(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(np.where(MASK, found, 0.0), np.where(MASK, expected, 0.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.framework} {row.name}")
def test_a_row_is_what_the_framework_computes(row: Row) -> None:
    theirs = recorded(row) if row.how == "run" else FORMULAS[row.key]() * MASK
    assert np.abs(theirs).max() > 0
    assert_same(FORMULAS[row.key]() if row.here == NOTHING else of_row(row), theirs)


def test_every_recorded_loss_has_its_row_and_every_row_something_to_rest_on() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS) > 80
    assert {row.key for row in ROWS if row.how == "run"} == {*RUN}
    assert {row.key for row in ROWS if row.how != "run"} <= {*FORMULAS}
    assert {row.key for row in ROWS if row.here == NOTHING} <= {*FORMULAS}
    assert {row.how for row in ROWS} == {"run", "read"}
    assert {row.framework for row in ROWS} == {file["framework"] for file in FILES.values()}
    assert all(row.differs or row.factor == "1" for row in ROWS)


def test_what_was_run_stands_on_the_page() -> None:
    for path in RECORDED.glob("*.json"):
        assert path.stat().st_size <= 50_000
    for file in FILES.values():
        said = f"| {file['framework']} | {file['version']} | {file['commit'][:8]} | {file['date']} |"
        assert said in PAGE, said
        assert all(set(loss) == {"function", "settings", "gradient"} for loss in file["losses"].values())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("algo.ratio=token", "algo.ratio=geometric"),
        ("algo.advantage=group_std", "algo.advantage=group"),
        ("algo.length_normalize=false optim.reduction=tokens", "algo.length_normalize=true"),
        ("optim.reduction=tokens", "optim.reduction=tokens algo.b_neg=1.01"),
    ],
)
def test_a_wrong_row_is_found(right: str, wrong: str) -> None:
    (row,) = [row for row in ROWS if row.key == ("Trinity-RFT", "topr")]
    assert right in row.here
    with pytest.raises(AssertionError, match="Mismatched"):
        assert_same(of_row(dataclasses.replace(row, here=row.here.replace(right, wrong))), recorded(row))
