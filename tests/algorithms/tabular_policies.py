"""A two-token language under a softmax policy without a network, small enough to enumerate, and batches of it.

Vocabulary {0, 1, 2}, 2 ends a completion; at most two tokens: [2], [0, ·], [1, ·], 7 completions in all. A policy is a
vector of 9 logits: 3 for the first token, 3 after a 0, 3 after a 1.
"""

import dataclasses
import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torch.autograd.functional import jacobian

from topr_exp.config.load import build_section
from topr_exp.types import Batch, PairBatch

CONF = Path(__file__).parents[2] / "conf/algo"
YAMLS = {path.stem: path for path in CONF.glob("*.yaml")}
OWN = None  # the name of a loss in a user's folder, given by its YAML (docs/losses.md)
if own_yaml := os.environ.get("TOPR_LOSS"):
    OWN = Path(own_yaml).stem
    YAMLS[OWN] = Path(own_yaml)
NAMES = sorted(YAMLS)
TOKENS = np.array([[2, 0], *itertools.product([0, 1], range(3))])  # of the completions; the first is padded
LENGTH = np.array([1] + 6 * [2])
MASK = np.arange(2) < LENGTH[:, None]
STATES = np.array([[0, 0]] + 3 * [[0, 1]] + 3 * [[0, 2]])  # 0 start, 1 after a 0, 2 after a 1
LOGITS = 9


def settings_of(name, **overrides):
    """The fields of <name>.yaml, some replaced."""
    settings = OmegaConf.to_container(OmegaConf.load(YAMLS[name]))
    settings.pop("defaults", None)  # Hydra's, not the loss's
    return settings | overrides


def load(name, **overrides):
    """The loss of <name>.yaml with some fields replaced."""
    return build_section("algo", settings_of(name, **overrides))


def limits(a_pos, b_pos, a_neg, b_neg):
    return {"a_pos": a_pos, "b_pos": b_pos, "a_neg": a_neg, "b_neg": b_neg}


INF = math.inf
FAMILY = {  # TOPR's Table 1
    "sft": limits(1, 1, 0, 0),
    "naive": limits(1, 1, 1, 1),
    "is": limits(0, INF, 0, INF),
    "tis": limits(0, 1, 0, 1),
    "topr": limits(1, 1, 0, 1),
}
PPO = {"rule": "ppo", **limits(0.0, 1.2, 0.8, INF)}


def mask_of(statistic, level, low, high, sides="both"):
    return {"statistic": statistic, "level": level, "low": low, "high": high, "sides": sides}


# ---- options of losses beside those of their YAMLs

LIMITS = limits(0.7, 1.4, 0.2, 0.9)
OLD = {"denominator": "old", "correction": 1.5, "ratio": "sequence", "advantage": "group", **LIMITS}
MASKS = [
    mask_of("old_difference", "token", -0.1, 0.2),
    mask_of("ratio", "mean", 0.9, None, "signed"),
]
for sides in ("both", "signed"):
    for level in ("token", "mean", "sum", "largest"):
        MASKS.append(mask_of("ratio", level, 0.7, 1.3, sides))
    for statistic in ("difference", "divergence", "old_divergence"):
        for level in ("mean", "largest"):
            MASKS.append(mask_of(statistic, level, None, 0.15, sides))
EVERYTHING = mask_of("ratio", "token", 1e8, None)

OPTIONS = {
    "topr": [
        *({"ratio": ratio, **LIMITS} for ratio in ("sequence", "token", "geometric")),
        *({"advantage": advantage, **LIMITS} for advantage in ("group", "group_std", "leave_one_out")),
        {"advantage": "leave_one_out", "ratio": "token", "length_normalize": False},
        {"advantage": "group", "denominator": "old", "correction": 2.0},  # then a policy gradient of the grammar
        {"kl_coef": 0.3, "unbiased_kl": True},
    ],
    "naive": [{"kl_coef": 0.3, "unbiased_kl": True}],
    "ppo": [{"ratio": "token", "eps_low": 0.1, "eps_high": 0.3, "kl_coef": 0.2}],
    "grpo": [{"off_policy_mask": 0.5, "length_normalize": True, "kl_coef": 0.4}, {"advantage": "group"}],
    "gmpo": [{"eps_low": 0.1, "eps_high": 1.5}],
    "luspo": [{"a_neg": 0.7, "b_pos": 1.5}],
    "m2po": [{"tau": tau, "kl_coef": 0.1, "unbiased_kl": tau < 1} for tau in (1e-9, 0.5, 2.0, 1e9)],
    "oapl": [{"anchor": "ref", "beta": 0.3}],
    "rloo": [{"beta": 0.0}],
    "cispo": [{"kl_coef": 0.2}],
    "sapo": [{"kl_coef": 0.2}],
    "vespo": [{"advantage": advantage, "kl_coef": 0.1} for advantage in ("group_std", "leave_one_out")],
    "policy_gradient": [
        *({"ratio": ratio, **LIMITS} for ratio in ("token", "prefix", "min_prefix", "geometric")),
        *({**OLD, "correction_level": level} for level in ("token", "mean", "sum")),
        *({**OLD, "rule": "ppo", "b_neg": 1.1, "ratio": ratio} for ratio in ("sequence", "min_prefix")),
        {"ratio": "geometric", "rule": "ppo"},
        *({"ratio": "token", "advantage": "group", "mask": [mask]} for mask in MASKS),
        {**OLD, "mask": [mask_of("ratio", "token", 0.7, 1.3), mask_of("old_ratio", "sum", 0.3, None)]},
        *({"ratio": ratio, "mask": [EVERYTHING]} for ratio in ("sequence", "token")),
        {"ratio": "token", "mask": [EVERYTHING], "kl_coef": 0.3},
    ],
}
VARIANTS = [(name, {}) for name in NAMES if name != "dpo"]
for name, options in OPTIONS.items():
    VARIANTS += [(name, changes) for changes in options]


def with_signals(loss, batch):
    """The batch as the trainer hands it over: with the signals where the loss has any."""
    return dataclasses.replace(batch, signals=loss.signals(batch))


def pairs_of(batch, *rows_of_sides):
    """The chosen rows of a batch, and the rejected ones."""
    sides = []
    for rows in rows_of_sides:
        fields = {name: getattr(batch, name)[rows] for name in ("logp", "mu_logp", "mask", "reward", "positive")}
        sides.append(Batch(**fields))
    return PairBatch(*sides)


def group_of_four(count):
    """What a batch of `count` completions knows of groups of mean 0 and deviation 1."""
    size = torch.full((count,), 4)
    return {"group_mean": torch.zeros(count), "group_std": torch.ones(count), "group_size": size}


def group_columns(rewards):
    """What a batch knows of whole groups; rewards: [groups, n]."""
    n = rewards.shape[1]
    deviations = rewards.std(1, correction=min(1, n - 1))
    return {
        "reward": rewards.flatten(),
        "group_mean": rewards.mean(1).repeat_interleave(n),
        "group_std": deviations.repeat_interleave(n),
        "group_size": torch.full((rewards.numel(),), n),
        "group_rewards": rewards.repeat_interleave(n, 0),
    }


# ---- policies


def rng(seed):
    return np.random.default_rng(seed)


def log_table(logits):
    return logits.reshape(3, 3).log_softmax(1)


def torch_token_logp(logits):
    return log_table(logits)[STATES, TOKENS] * torch.tensor(MASK)


def torch_token_kl(logits, ref):
    log_p = log_table(logits)
    log_q = log_table(ref)
    return (log_p.exp() * (log_p - log_q)).sum(1)[STATES] * torch.tensor(MASK)


def token_logp(logits):
    """logπ(y_t|y_<t) of all 7 completions, [7, 2], 0 at padding."""
    return torch_token_logp(torch.tensor(logits)).numpy()


def probability(logits):
    """π(y) of all 7 completions; they sum to 1."""
    return np.exp(token_logp(logits).sum(1))


def token_score(logits):
    """∇logπ(y_t|y_<t) of all 7 completions, [7, 2, 9]."""
    return jacobian(torch_token_logp, torch.tensor(logits)).numpy()


# ---- batches


@dataclass
class Case:
    """B completions of the language with everything that a loss may read, and the pieces of closed forms (numpy)."""

    logits: np.ndarray
    mu: np.ndarray
    ref: np.ndarray
    y: np.ndarray  # [B] which of the 7 completions
    reward: np.ndarray  # [B]
    positive: np.ndarray  # [B] bool
    group: np.ndarray  # [B]; the rows of a group stand together
    sample: np.ndarray  # [B]
    n: int
    baseline: float = 0.0
    old: np.ndarray | None = None  # logits of π_old; None: those of μ
    weight: np.ndarray | None = None  # [B] of each row in an expectation; None: the mean

    def __post_init__(self):
        self.move_to(self.logits)
        if self.old is None:
            self.old = self.mu
        if self.weight is None:
            count = len(self.y)
            self.weight = np.full(count, 1 / count)

    def move_to(self, logits):
        self.logits = logits
        self.theta = torch.tensor(logits, requires_grad=True)

    # ---- closed-form pieces, one row a completion

    @property
    def length(self):
        return LENGTH[self.y]

    @property
    def delta_t(self):
        return (token_logp(self.logits) - token_logp(self.mu))[self.y]

    @property
    def score_t(self):
        return token_score(self.logits)[self.y]

    @property
    def score(self):
        return self.score_t.sum(1)

    @property
    def R(self):
        return self.reward - self.baseline

    @property
    def groups(self):
        """Rewards by group, [groups, n]."""
        return self.reward.reshape(-1, self.n)

    # ---- what the code gets

    def batch(self, **changes):
        y = torch.tensor(self.y)
        ref = torch.tensor(self.ref)
        fields = {
            "logp": torch_token_logp(self.theta)[y],
            "mu_logp": torch.tensor(token_logp(self.mu))[y],
            "old_logp": torch.tensor(token_logp(self.old))[y],
            "mask": torch.tensor(MASK)[y],
            "positive": torch.tensor(self.positive),
            "baseline": self.baseline,
            "group": torch.tensor(self.group),
            "sample": torch.tensor(self.sample),
            "ref_logp": torch_token_logp(ref)[y],
            "vocab_kl": torch_token_kl(self.theta, ref)[y],
            **group_columns(torch.tensor(self.groups)),
        }
        return Batch(**fields | changes)

    def pairs(self):
        """The first half of the rows as chosen, the second as rejected."""
        half = len(self.y) // 2
        return pairs_of(self.batch(), slice(0, half), slice(half, None))

    def gradient(self, loss, batch=None):
        """∇ of the expected loss, Σ weight · loss over the rows, by autograd, [9]."""
        if batch is None:
            batch = self.batch()
        losses = loss(with_signals(loss, batch)).loss
        expected_loss = torch.tensor(self.weight) @ losses
        (gradient,) = torch.autograd.grad(expected_loss, self.theta)
        return gradient.numpy()


def random_case(seed, *, groups=3, n=5, baseline=0.0, low=-1.0, on_policy=False):
    """Groups of n random completions under random policies; rewards are 1 and `low`, both signs in most groups."""
    generator = rng(seed)
    logits, mu, ref = generator.normal(size=(3, LOGITS))
    count = groups * n
    positive = generator.random(count) < 0.4
    positive[:2] = [True, False]
    y = generator.integers(0, 7, count)
    group = np.repeat(generator.permutation(100)[:groups], n)
    sample = np.concatenate([generator.permutation(n) for _ in range(groups)])
    old = rng(1000 + seed).normal(size=LOGITS)
    reward = np.where(positive, 1.0, low)
    if on_policy:
        mu = logits
    return Case(logits, mu, ref, y, reward, positive, group, sample, n, baseline, old)


def all_completions(seed, reward=None, baseline=0.0):
    """Each of the 7 completions once, weighed by μ(y)."""
    generator = rng(seed)
    logits, mu = generator.normal(size=(2, LOGITS))
    if reward is None:
        reward = np.where(generator.random(7) < 0.5, 1.0, -1.0)
    y = np.arange(7)
    group = np.zeros(7, dtype=int)
    return Case(logits, mu, mu, y, reward, reward > 0, group, y, 7, baseline, weight=probability(mu))


def all_groups(logits, ref, n, reward, mu=None):
    """Every possible group of n completions as one case, weighed as in the expected mean loss of a group.

    reward: [7], of each completion. μ draws the groups (None: π).
    """
    if mu is None:
        mu = logits
    completions = np.array(list(itertools.product(range(7), repeat=n)))  # [groups, n]
    group_probability = probability(mu)[completions].prod(axis=1)
    y = completions.ravel()
    rewards = reward[y]
    group = np.repeat(np.arange(len(completions)), n)
    sample = np.tile(np.arange(n), len(completions))
    weight = np.repeat(group_probability / n, n)
    return Case(logits, mu, ref, y, rewards, rewards > 0, group, sample, n, weight=weight)
