"""AGRO (arXiv 2503.19612) off- and on-policy, and the two baselines that it is compared with: RLOO and KL-PG.

All compare the n responses to a prompt. With S_i = r_i − β Δ_i, Δ_i = log π(y_i)/π_ref(y_i), the optimal policy makes S
the same for all; AGRO minimises its variance (Lemma 3, Equations 4 to 6). Losses are minus the ascent directions. None
is divided by length by default: E_π[∇logπ / T] is not 0, so dividing by T breaks the group baselines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from topr_exp.algorithms import base
from topr_exp.types import Batch, LossOutput, Tensor, TOPRError

# Estimator of ∇½Δ² from a response (AGRO, Section 6); δ_t is the token's term of Δ. vanilla: Σ_t Σ_t' δ_t' ∇logπ_t;
# future_only: only t' ≥ t; exact_one_step: for t' > t the token KL of step t' in place of δ_t', for t' = t the gradient
# of the token KL. All three agree in expectation on-policy; off-policy the last two are biased.
Estimator = Literal["vanilla", "future_only", "exact_one_step"]

# Baseline of (S_i − S̄_−i)² in on-policy AGRO. others_variance: n/(n−1) times the others' unbiased variance, n ≥ 3: the
# gradient stays unbiased; leave_one_out: the others' mean square, biased: the term times 1 − 1/(n−1)² (n = 2: 0).
SquareBaseline = Literal["none", "others_variance", "leave_one_out"]


@dataclass(frozen=True)
class AGRO(base.ZeroOne):
    """Off-policy AGRO: gradient ascent on −½ Var(S)/β, estimated from n responses of any origin.

    g = (1/n) Σ_i (S_i − S̄_−i) ∇logπ(y_i),   S detached, at the current π

    AGRO (arXiv 2503.19612), Equation 4: −1/β times the gradient of the pairwise unbiased estimate of ½ Var(S).
    `estimator` replaces Δ_i ∇logπ(y_i) inside g; other than vanilla it needs on-policy samples.

    Signals: advantage S_i − S̄_−i. Metrics: advantage, ref_log_ratio Δ (its mean over samples of π is KL(π‖π_ref)).
    """

    beta: base.Positive
    estimator: Estimator
    length_normalize: bool

    @property
    def needs(self) -> frozenset[str]:
        needs = {"groups", "group_rewards", "ref_logp"}
        if self.estimator != "vanilla":
            needs.add("on_policy")
        if self.estimator == "exact_one_step":
            needs.add("vocab_kl")
        return frozenset(needs)

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        base.check_complete_groups(batch, self.name)
        regularized = batch.reward - self.beta * base.token_ref_log_ratio(batch).sum(1).detach()
        return {"advantage": base.leave_one_out(batch, regularized)}

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch, "ref_logp")
        advantage = base.signal(batch, "advantage")
        log_ratio = base.token_ref_log_ratio(batch).sum(1).detach()
        if self.estimator == "vanilla":
            direction = advantage * base.log_prob(batch)
        else:
            without_own = advantage + self.beta * log_ratio
            direction = without_own * base.log_prob(batch) - self.beta * half_square(batch, self.estimator)
        metrics = {"advantage": advantage, "ref_log_ratio": log_ratio}
        return LossOutput(base.reduce_tokens(-direction, batch, self.length_normalize), metrics)


@dataclass(frozen=True)
class AGROOnPolicy(AGRO):
    """On-policy AGRO: the gradient of the variance of S under π itself, with the term for π's effect on sampling.

    g − (1/(2βn)) Σ_i [(S_i − S̄_−i)² − b_i] ∇logπ(y_i)

    AGRO (arXiv 2503.19612), Equation 6, b_i = 0. Its expectation over n samples of π is exactly −(1/β) ∇½ Var_π(S)
    (Proposition 4), also with `square_baseline=others_variance` (ours), not with leave_one_out (the paper's).

    Signals: advantage, square (S_i − S̄_−i)² − b_i.
    """

    square_baseline: SquareBaseline

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"on_policy"}

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        advantage = super().signals(batch)["advantage"]
        square = advantage.square()
        if self.square_baseline == "leave_one_out":
            square = base.leave_one_out(batch, square)
        elif self.square_baseline == "others_variance":
            square = square - self._others_variance(batch, advantage)
        return {"advantage": advantage, "square": square}

    def __call__(self, batch: Batch) -> LossOutput:
        output = super().__call__(batch)
        square = base.signal(batch, "square")
        term = square / (2 * self.beta) * base.log_prob(batch)
        loss = output.loss + base.reduce_tokens(term, batch, self.length_normalize)
        return LossOutput(loss, {**output.metrics, "square": square})

    def _others_variance(self, batch: Batch, advantage: Tensor) -> Tensor:
        """n/(n−1) times the unbiased variance of the others' S, from S_i − S̄_−i = n/(n−1) (S_i − S̄)."""
        n, _ = base.group_sums(batch, advantage)
        if bool((n < 3).any()):
            raise TOPRError(f"algo={self.name}: square_baseline=others_variance needs at least 3 responses to a prompt")
        centered = advantage * (n - 1) / n  # S_i − S̄: it sums to 0 over the group
        _, total = base.group_sums(batch, centered.square())
        others = total - centered.square() - centered.square() / (n - 1)  # Σ_j≠i (S_j − S̄_−i)²
        return n / (n - 1) * others / (n - 2)


@dataclass(frozen=True)
class RLOO(base.ZeroOne):
    """REINFORCE with a leave-one-out baseline and the KL penalty inside the reward.

    g = (1/n) Σ_i (S_i − S̄_−i) ∇logπ(y_i),   S_i = r_i − β log μ(y_i)/π_ref(y_i)

    Ahmadian et al. (arXiv 2402.14740); AGRO (arXiv 2503.19612), Section 5.2. The reward, penalty included, is that of
    the policy that sampled, so it is fixed while π moves (with π in the penalty it would be AGRO). On-policy, π = μ, g
    equals AGRO's: in expectation the gradient of E[r] − β KL(π‖π_ref). β = 0: plain RLOO, no reference, r̄_−i of all n.

    Signals (β > 0): advantage S_i − S̄_−i. Metrics: advantage.
    """

    beta: base.NotNegative
    length_normalize: bool

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"group_rewards"} if self.beta == 0 else {"groups", "group_rewards", "ref_logp"})

    @property
    def signals(self) -> Callable[[Batch], dict[str, Tensor]] | None:
        return None if self.beta == 0 else self._signals

    def _signals(self, batch: Batch) -> dict[str, Tensor]:
        base.check_complete_groups(batch, self.name)
        penalty = base.masked(batch.mu_logp - base.needed(batch, "ref_logp"), batch).sum(1)
        return {"advantage": base.leave_one_out(batch, batch.reward - self.beta * penalty)}

    def __call__(self, batch: Batch) -> LossOutput:
        base.check_batch(batch)
        if self.beta == 0:
            advantage = base.advantage_of(batch, "leave_one_out", self.name)
        else:
            advantage = base.signal(batch, "advantage")
        loss = base.reduce_tokens(-advantage * base.log_prob(batch), batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage})


@dataclass(frozen=True)
class KLPG(base.ZeroOne):
    """The KL-regularised policy gradient, as AGRO's offline baseline.

    g = (1/n) Σ_i [(r_i − r̄_−i) ∇logπ(y_i) − β ∇ Σ_t KL(π(·|x, y_<t) ‖ π_ref(·|x, y_<t))]

    AGRO (arXiv 2503.19612), Section 8.2. Prefixes are constants, so not the sequence KL's gradient, even on-policy.

    Metrics: advantage, vocab_kl Σ_t KL.
    """

    beta: base.Positive
    length_normalize: bool

    needs: ClassVar[frozenset[str]] = frozenset({"group_rewards", "vocab_kl"})

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = base.advantage_of(batch, "leave_one_out", self.name)
        kl = base.masked(base.needed(batch, "vocab_kl"), batch).sum(1)
        loss = base.reduce_tokens(self.beta * kl - advantage * base.log_prob(batch), batch, self.length_normalize)
        return LossOutput(loss, {"advantage": advantage, "vocab_kl": kl.detach()})


def half_square(batch: Batch, estimator: Estimator) -> Tensor:
    """A function [B] whose gradient is the estimate of ∇½Δ² (AGRO, Section 6); its value means nothing."""
    delta = base.token_ref_log_ratio(batch).detach()
    if estimator == "vanilla":
        return delta.sum(1) * base.log_prob(batch)
    if estimator == "future_only":
        return (_from_here(delta) * base.masked(batch.logp, batch)).sum(1)
    kl = base.masked(base.needed(batch, "vocab_kl"), batch)
    later = _from_here(kl.detach()) - kl.detach()
    return (later * base.masked(batch.logp, batch) + kl).sum(1)


def _from_here(values: Tensor) -> Tensor:
    """Σ_t'≥t of `values` [B, T]."""
    return values.flip(1).cumsum(1).flip(1)
