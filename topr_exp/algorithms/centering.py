"""Score centering: the part of a policy gradient that no reward explains, where the sampler is not the policy.

Marek and Ryabinin (arXiv 2609.20807; formulas as public implementations have them). At a prefix let s_v = ∇log π(v),
q the sampler's distribution and w_v the weight of token v. Then E_q[A w s] = E_q[A] · E_q[w s] + Cov_q(A, w s), and the
first term drifts even at a constant A: under π itself E[s] = 0, under q it is not. The loss of a token becomes

    − A [w_t log π(y_t) − Σ_{v in H} stopgrad(q_v w_v − α w_rest p_v) log π(v)],   α = (1 − Σ_H q) / (1 − Σ_H p)

H: the head, the tokens that the sampler found likeliest. Outside it q is taken for α p, so that w_rest is the weight at
the ratio 1/α; as Σ_v p_v s_v = 0 over the vocabulary, the tail's part stands at the head. With the whole vocabulary in
H it is exact.
"""

from collections.abc import Callable

from topr_exp.algorithms.base import check_field, check_shape, needed
from topr_exp.types import Batch, Tensor

SMALLEST_TAIL = 1e-6  # probability outside the head below which there is none: rounding in float32

LogWeight = Callable[[Tensor], Tensor]  # maps log π/q to the log of the weight, in the same shape


def expected_score(batch: Batch, log_weight: LogWeight) -> Tensor:
    """Σ_{v in H} stopgrad(q_v w_v − α w_rest p_v) log π(v) of each token, [B, T], whose gradient is E_q[w s].

    log_weight: called with log-ratios [B, T, k] of the head and [B, T, 1] of the tail.
    """
    check_head(batch)
    head_logp = needed(batch, "head_logp")
    log_q = needed(batch, "head_mu_logp")
    log_p = head_logp.detach()
    is_drawable = log_q.isfinite()
    drawable_log_q = log_q.where(is_drawable, 0.0)
    log_product = drawable_log_q + log_weight(log_p - drawable_log_q)
    expected_weight = log_product.exp().where(is_drawable, 0.0)  # q_v w_v, [B, T, k]
    moved_tail = tail_weight(log_p, log_q, log_weight) * log_p.exp()  # α w_rest p_v, [B, T, k]
    coefficient = expected_weight - moved_tail
    return (coefficient * head_logp).sum(-1)


def tail_weight(log_p: Tensor, log_q: Tensor, log_weight: LogWeight) -> Tensor:
    """α w_rest of each token, [B, T, 1]; 0 where the head holds all that the sampler can draw."""
    tail_q = 1 - log_q.exp().sum(-1, keepdim=True)
    tail_p = 1 - log_p.exp().sum(-1, keepdim=True)
    alpha = tail_q.clamp(min=SMALLEST_TAIL) / tail_p.clamp(min=SMALLEST_TAIL)
    log_alpha = alpha.log()
    log_product = log_alpha + log_weight(-log_alpha)
    has_tail = tail_q > SMALLEST_TAIL
    return log_product.exp().where(has_tail, 0.0)


def check_head(batch: Batch) -> None:
    """Raise TOPRError unless both policies' heads are there, of shape [B, T, k]."""
    shape = list(batch.logp.shape)
    head_shape = list(needed(batch, "head_logp").shape)
    check_field("head_logp", f"of shape {[*shape, 'k']}", head_shape, head_shape[:-1] == shape)
    check_shape("head_mu_logp", needed(batch, "head_mu_logp"), head_shape)
