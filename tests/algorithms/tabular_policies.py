"""A two-token language under a softmax policy without a network, small enough to enumerate, and batches of it.

Vocabulary {0, 1, 2}, 2 ends a response; at most two tokens: [2], [0, ·], [1, ·], 7 responses in all. A policy is a
vector of 9 logits: 3 for the first token, 3 after a 0, 3 after a 1.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.autograd.functional import jacobian

from topr_exp.config.load import build_section
from topr_exp.types import Batch, PairBatch

CONF = Path(__file__).parents[2] / "conf" / "algo"
YAMLS = {path.stem: path for path in CONF.glob("*.yaml")}
OWN = None  # the name of a loss in a user's folder, given by its YAML (docs/losses.md)
if given := os.environ.get("TOPR_LOSS"):
    OWN = Path(given).stem
    YAMLS[OWN] = Path(given)
NAMES = sorted(YAMLS)
RESPONSES = [[2], [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
LENGTH = np.array([len(y) for y in RESPONSES])
MASK = np.array([[True, len(y) == 2] for y in RESPONSES])
TOKENS = np.array([[*y, 0][:2] for y in RESPONSES])
STATES = np.array([[0, 1 + y[0] if len(y) == 2 else 0] for y in RESPONSES])  # 0 start, 1 after a 0, 2 after a 1
LOGITS = 9


def settings_of(name: str, **overrides: Any) -> Any:
    """The fields of <name>.yaml, some replaced."""
    settings = OmegaConf.to_container(OmegaConf.load(YAMLS[name]))
    settings.pop("defaults", None)  # Hydra's, not the loss's
    return {**settings, **overrides}


def load(name: str, **overrides: Any) -> Any:
    """The loss of <name>.yaml with some fields replaced."""
    return build_section("algo", settings_of(name, **overrides))


# Each loss as its YAML has it, and each of its options.
LIMITS = {"a_pos": 0.7, "b_pos": 1.4, "a_neg": 0.2, "b_neg": 0.9}
VARIANTS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in NAMES if name != "dpo"]
VARIANTS += [("topr", {"ratio": ratio, **LIMITS}) for ratio in ("sequence", "token", "geometric")]
VARIANTS += [("topr", {"advantage": kind, **LIMITS}) for kind in ("group", "group_std", "leave_one_out")]
VARIANTS += [("topr", {"advantage": "leave_one_out", "ratio": "token", "length_normalize": False})]
VARIANTS += [("ppo", {"ratio": "token", "eps_low": 0.1, "eps_high": 0.3})]
VARIANTS += [("grpo", {"off_policy_mask": 0.5, "length_normalize": True}), ("grpo", {"advantage": "group"})]
VARIANTS += [("gspo", {"off_policy_mask": 0.5}), ("oapl", {"anchor": "ref", "beta": 0.3})]
VARIANTS += [("rloo", {"beta": 0.0})] + [("m2po", {"tau": tau}) for tau in (1e-9, 0.5, 2.0, 1e9)]
VARIANTS += [("vespo", {"advantage": kind}) for kind in ("group_std", "leave_one_out")]
VARIANTS += [("gmpo", {"eps_low": 0.1, "eps_high": 1.5}), ("luspo", {"a_neg": 0.7, "b_pos": 1.5})]
VARIANTS += [("policy_gradient", {"ratio": ratio, **LIMITS}) for ratio in ("token", "prefix", "geometric")]
ROW: dict[str, Any] = {"denominator": "old", "correction": 1.5, "ratio": "sequence", "advantage": "group", **LIMITS}
VARIANTS += [("policy_gradient", {**ROW, "correction_level": level}) for level in ("token", "mean", "sum")]
VARIANTS += [("policy_gradient", {**ROW, "rule": "ppo", "b_neg": 1.1, "ratio": r}) for r in ("sequence", "prefix")]
VARIANTS += [("policy_gradient", {"ratio": "geometric", "rule": "ppo"})]


def mask_of(statistic: str, level: str, low: float | None, high: float | None, sides: str = "both") -> dict[str, Any]:
    return {"statistic": statistic, "level": level, "low": low, "high": high, "sides": sides}


MASKS = [mask_of("ratio", level, 0.7, 1.3, sides) for level in ("token", "mean", "sum", "largest")
         for sides in ("both", "signed")]  # fmt: skip
MASKS += [mask_of("old_difference", "token", -0.1, 0.2), mask_of("ratio", "mean", 0.9, None, "signed")]
MASKS += [mask_of(name, level, None, 0.15, sides) for name in ("difference", "divergence", "old_divergence")
          for level in ("mean", "largest") for sides in ("both", "signed")]  # fmt: skip
VARIANTS += [("policy_gradient", {"ratio": "token", "advantage": "group", "mask": [mask]}) for mask in MASKS]
VARIANTS += [("policy_gradient", {**ROW, "mask": [MASKS[0], mask_of("old_ratio", "sum", 0.3, None)]})]
EVERYTHING = mask_of("ratio", "token", 1e8, None)
VARIANTS += [("policy_gradient", {"ratio": ratio, "mask": [EVERYTHING]}) for ratio in ("sequence", "token")]


def with_signals(loss: Any, batch: Batch) -> Batch:
    """The batch as the trainer hands it over: with the signals where the loss has any."""
    return dataclasses.replace(batch, signals=loss.signals(batch))


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def torch_token_logp(logits: torch.Tensor) -> torch.Tensor:
    table = logits.reshape(3, 3).log_softmax(1)
    return table[STATES, TOKENS] * torch.tensor(MASK)


def torch_token_kl(logits: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    log_p, log_q = logits.reshape(3, 3).log_softmax(1), ref.reshape(3, 3).log_softmax(1)
    return (log_p.exp() * (log_p - log_q)).sum(1)[STATES] * torch.tensor(MASK)


def token_logp(logits: np.ndarray) -> np.ndarray:
    """logπ(y_t|y_<t) of all 7 responses, [7, 2], 0 at padding."""
    return torch_token_logp(torch.tensor(logits)).numpy()


def probability(logits: np.ndarray) -> np.ndarray:
    """π(y) of all 7 responses; they sum to 1."""
    return np.exp(token_logp(logits).sum(1))


def token_score(logits: np.ndarray) -> np.ndarray:
    """∇logπ(y_t|y_<t) of all 7 responses, [7, 2, 9]."""
    return jacobian(torch_token_logp, torch.tensor(logits)).numpy()


def token_kl_gradient(logits: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """∇KL(π(·|y_<t) ‖ π_ref(·|y_<t)) at each step of the 7 responses, [7, 2, 9]."""
    return jacobian(lambda theta: torch_token_kl(theta, torch.tensor(ref)), torch.tensor(logits)).numpy()


@dataclass
class Case:
    """B responses of the language with everything that a loss may read, and the pieces of closed forms (numpy)."""

    logits: np.ndarray
    mu: np.ndarray
    ref: np.ndarray
    y: np.ndarray  # [B] which of the 7 responses
    reward: np.ndarray  # [B]
    positive: np.ndarray  # [B] bool
    group: np.ndarray  # [B]
    sample: np.ndarray  # [B]
    n: int
    baseline: float = 0.0
    old: np.ndarray | None = None  # logits of π_old; None: those of μ
    theta: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.theta = torch.tensor(self.logits, requires_grad=True)
        self.old = self.mu if self.old is None else self.old

    # closed-form pieces, one row a response
    @property
    def length(self) -> np.ndarray:
        return LENGTH[self.y]

    @property
    def delta_t(self) -> np.ndarray:
        return (token_logp(self.logits) - token_logp(self.mu))[self.y]

    @property
    def delta(self) -> np.ndarray:
        return self.delta_t.sum(1)

    @property
    def score_t(self) -> np.ndarray:
        return token_score(self.logits)[self.y]

    @property
    def score(self) -> np.ndarray:
        return self.score_t.sum(1)

    @property
    def R(self) -> np.ndarray:
        return self.reward - self.baseline

    def over_group(self, values: np.ndarray, statistic: Any) -> np.ndarray:
        """A statistic of each group, whose rows stand together, by row."""
        return np.repeat([statistic(row) for row in values.reshape(-1, self.n)], self.n)

    @property
    def centered(self) -> np.ndarray:
        """r − r̄."""
        return self.reward - self.over_group(self.reward, np.mean)

    # what the code gets
    def batch(self, **changes: Any) -> Batch:
        y = torch.tensor(self.y)
        ref, mu = torch.tensor(self.ref), torch.tensor(self.mu)
        fields: dict[str, Any] = {
            "logp": torch_token_logp(self.theta)[y],
            "mu_logp": torch_token_logp(mu)[y],
            "old_logp": torch_token_logp(torch.tensor(self.old))[y],
            "mask": torch.tensor(MASK)[y],
            "reward": torch.tensor(self.reward),
            "positive": torch.tensor(self.positive),
            "baseline": self.baseline,
            "group": torch.tensor(self.group),
            "sample": torch.tensor(self.sample),
            "group_mean": torch.tensor(self.over_group(self.reward, np.mean)),
            "group_std": torch.tensor(self.over_group(self.reward, lambda r: np.std(r, ddof=min(1, self.n - 1)))),
            "group_size": torch.full((len(y),), self.n),
            "group_rewards": torch.tensor(self.reward.reshape(-1, self.n).repeat(self.n, axis=0)),
            "ref_logp": torch_token_logp(ref)[y],
            "vocab_kl": torch_token_kl(self.theta, ref)[y],
        }
        return Batch(**{**fields, **changes})

    def pairs(self) -> PairBatch:
        """The first half of the rows as chosen, the second as rejected."""
        batch, half = self.batch(), len(self.y) // 2
        fields = [getattr(batch, name) for name in ("logp", "mu_logp", "mask", "reward", "positive")]
        chosen, rejected = (Batch(*(each[rows] for each in fields)) for rows in (slice(0, half), slice(half, None)))
        return PairBatch(chosen, rejected)

    def gradient(self, loss: Any, batch: Batch | None = None) -> np.ndarray:
        """∇ of the mean loss over the batch by autograd, [9]."""
        batch = with_signals(loss, self.batch() if batch is None else batch)
        (grad,) = torch.autograd.grad(loss(batch).loss.mean(), self.theta)
        return grad.numpy()


def random_case(seed, *, groups=3, n=5, baseline=0.0, low=-1.0, on_policy=False):
    """Groups of n random responses under random policies; rewards are 1 and `low`, both signs in most groups."""
    r = rng(seed)
    logits, mu, ref = r.normal(size=(3, LOGITS))
    count = groups * n
    positive = r.random(count) < 0.4
    positive[:2] = [True, False]
    y, group = r.integers(0, 7, count), np.repeat(r.permutation(100)[:groups], n)
    sample = np.concatenate([r.permutation(n) for _ in range(groups)])
    reward = np.where(positive, 1.0, low)
    mu, old = logits.copy() if on_policy else mu, rng(1000 + seed).normal(size=LOGITS)
    return Case(logits, mu, ref, y, reward, positive, group, sample, n, baseline, old)


def all_groups(logits, ref, n, reward, mu=None):
    """Every possible group of n responses as one case, and the probability of each row's group under μ (None: π).

    reward: [7], the reward of each response. The expectation over μ of (1/n) Σ_i loss_i is Σ_rows P · loss / n.
    """
    y = np.stack(np.meshgrid(*[np.arange(7)] * n, indexing="ij"), -1).reshape(-1, n)
    mu = logits.copy() if mu is None else mu
    weight = probability(mu)[y].prod(1)
    flat, group = reward[y].reshape(-1), np.repeat(np.arange(len(y)), n)
    case = Case(logits, mu, ref, y.reshape(-1), flat, flat > 0, group, np.tile(np.arange(n), len(y)), n)
    return case, np.repeat(weight, n)


def expected_gradient(case: Case, weight: np.ndarray, loss: Any) -> np.ndarray:
    """∇ of the expected mean loss of a group, over every group of `all_groups` and its probability, [9]."""
    total = (torch.tensor(weight) * loss(with_signals(loss, case.batch())).loss).sum() / case.n
    (grad,) = torch.autograd.grad(total, case.theta)
    return grad.numpy()
