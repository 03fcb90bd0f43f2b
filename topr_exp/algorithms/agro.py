"""AGRO (arXiv 2503.19612) off- and on-policy, and the two baselines that it is compared with: RLOO and KL-PG.

All compare the n completions to a prompt. With S_i = r_i − β Δ_i, Δ_i = log π(y_i)/π_ref(y_i), the optimal policy makes
S the same for all; AGRO minimises its variance (Lemma 3, Equations 4 to 6). Losses are minus the ascent directions.
None is divided by length by default: E_π[∇logπ / T] is not 0, so dividing by T breaks the group baselines.
"""

from dataclasses import dataclass
from typing import ClassVar

from topr_exp.algorithms.base import (
    NotNegative,
    Paper,
    Positive,
    ZeroOneLoss,
    advantage_of,
    check_batch,
    check_complete_groups,
    leave_one_out,
    log_prob,
    needed,
    reduce_tokens,
    ref_log_ratio,
    signal,
    sum_over_tokens,
)
from topr_exp.types import Batch, LossOutput, Tensor

ARXIV = "2503.19612"


@dataclass(frozen=True)
class AGRO(ZeroOneLoss):
    """Off-policy AGRO: gradient ascent on −½ Var(S)/β, estimated from n completions of any origin.

    g = (1/n) Σ_i (S_i − S̄_−i) ∇logπ(y_i),   S detached, at the current π

    AGRO (arXiv 2503.19612), Equation 4: −1/β times the gradient of the pairwise unbiased estimate of ½ Var(S).

    Signals: advantage S_i − S̄_−i. Metrics: advantage, ref_log_ratio Δ (its mean over samples of π is KL(π‖π_ref)).
    """

    beta: Positive  # weight of the divergence from the reference; ours, the paper has no default
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"agro": Paper("AGRO", ARXIV, "Equation 4")}
    needs = frozenset({"groups", "group_rewards", "ref_logp"})
    needs_mu = False
    signal_names = frozenset({"advantage"})
    retired_settings: ClassVar = {"estimator": "vanilla"}  # earlier releases' keys, for `identity`

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        check_complete_groups(batch, self.name)
        regularized = batch.reward - self.beta * ref_log_ratio(batch).detach()
        return {"advantage": leave_one_out(batch, regularized)}

    def __call__(self, batch: Batch) -> LossOutput:
        check_batch(batch)
        delta = ref_log_ratio(batch).detach()
        advantage = signal(batch, "advantage")
        loss = -advantage * log_prob(batch)
        metrics = {"advantage": advantage, "ref_log_ratio": delta}
        return self.output(loss, batch, metrics)


@dataclass(frozen=True)
class AGROOnPolicy(AGRO):
    """On-policy AGRO: the gradient of the variance of S under π itself, with the term for π's effect on sampling.

    g − (1/(2βn)) Σ_i (S_i − S̄_−i)² ∇logπ(y_i)

    AGRO (arXiv 2503.19612), Equation 6. Its expectation over n samples of π is exactly −(1/β) ∇½ Var_π(S)
    (Proposition 4).

    Signals: advantage, square (S_i − S̄_−i)².
    """

    papers: ClassVar = {"agro_on_policy": Paper("AGRO on-policy", ARXIV, "Equation 6")}
    needs = AGRO.needs | {"on_policy"}
    signal_names = frozenset({"advantage", "square"})
    retired_settings: ClassVar = {"estimator": "vanilla", "square_baseline": "none"}  # as AGRO's

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        advantage = super().signals(batch)["advantage"]
        return {"advantage": advantage, "square": advantage.square()}

    def __call__(self, batch: Batch) -> LossOutput:
        output = super().__call__(batch)
        square = signal(batch, "square")
        square_term = square / (2 * self.beta) * log_prob(batch)
        loss = output.loss + reduce_tokens(square_term, batch, self.length_normalize)
        return LossOutput(loss, output.metrics | {"square": square})


@dataclass(frozen=True)
class RLOO(ZeroOneLoss):
    """REINFORCE with a leave-one-out baseline and the KL penalty inside the reward.

    g = (1/n) Σ_i (S_i − S̄_−i) ∇logπ(y_i),   S_i = r_i − β log μ(y_i)/π_ref(y_i)

    Ahmadian et al. (arXiv 2402.14740); AGRO (arXiv 2503.19612), Section 5.2. The reward, penalty included, is that of
    the policy that sampled, so it is fixed while π moves (with π in the penalty it would be AGRO). On-policy, π = μ, g
    equals AGRO's: in expectation the gradient of E[r] − β KL(π‖π_ref). β = 0: plain RLOO, no reference, r̄_−i of all n.

    Signals (β > 0): advantage S_i − S̄_−i. Metrics: advantage.
    """

    beta: NotNegative  # weight of the penalty; ours, as for agro; 0 is plain RLOO without a reference
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"rloo": Paper("RLOO", "2402.14740")}

    @property
    def needs(self) -> frozenset[str]:
        if self.beta == 0:
            return frozenset({"group_rewards"})
        return frozenset({"groups", "group_rewards", "ref_logp"})

    @property
    def needs_mu(self) -> bool:
        return self.beta > 0

    @property
    def signal_names(self) -> frozenset[str]:
        if self.beta == 0:
            return frozenset()
        return frozenset({"advantage"})

    def signals(self, batch: Batch) -> dict[str, Tensor]:
        if self.beta == 0:
            return {}
        check_complete_groups(batch, self.name)
        penalty = sum_over_tokens(batch.mu_logp - needed(batch, "ref_logp"), batch)
        return {"advantage": leave_one_out(batch, batch.reward - self.beta * penalty)}

    def __call__(self, batch: Batch) -> LossOutput:
        check_batch(batch)
        if self.beta == 0:
            advantage = advantage_of(batch, "leave_one_out", self.name)
        else:
            advantage = signal(batch, "advantage")
        loss = -advantage * log_prob(batch)
        return self.output(loss, batch, {"advantage": advantage})


@dataclass(frozen=True)
class KLPG(ZeroOneLoss):
    """The KL-regularised policy gradient, as AGRO's offline baseline.

    g = (1/n) Σ_i [(r_i − r̄_−i) ∇logπ(y_i) − β ∇ Σ_t KL(π(·|x, y_<t) ‖ π_ref(·|x, y_<t))]

    AGRO (arXiv 2503.19612), Section 8.2. Prefixes are constants, so not the sequence KL's gradient, even on-policy.

    Metrics: advantage, vocab_kl Σ_t KL.
    """

    beta: Positive  # weight of the KL; ours, as for agro
    length_normalize: bool  # divide a completion's loss by its number of tokens

    papers: ClassVar = {"kl_pg": Paper("KL-regularised policy gradient", ARXIV, "Section 8.2")}
    needs = frozenset({"group_rewards", "vocab_kl"})
    needs_mu = False

    def __call__(self, batch: Batch) -> LossOutput:
        advantage = advantage_of(batch, "leave_one_out", self.name)
        kl = sum_over_tokens(needed(batch, "vocab_kl"), batch)
        loss = self.beta * kl - advantage * log_prob(batch)
        metrics = {"advantage": advantage, "vocab_kl": kl.detach()}
        return self.output(loss, batch, metrics)
