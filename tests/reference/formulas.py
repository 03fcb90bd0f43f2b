"""Every loss of conf/algo as its formula stands in the paper, for one completion at a time.

A formula maps an `Answer` to its loss, not yet divided by length, and what the loss reports.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.conftest import values_of

TOLERANCE = 1e-3  # a log-ratio so near to a limit does not count as clipped


@dataclass(eq=False)
class Completion:
    """A sampled completion, with what is known of it before the first update."""

    problem: int
    sample: int  # which one of its problem's
    prompt: list[int]
    tokens: list[int]
    is_correct: bool
    is_truncated: bool = False
    is_imported: bool = False
    reward: float = 0.0  # R0
    group_rewards: list[float] = field(default_factory=list)  # of all n completions of its problem
    mu: Any = None  # [T] log μ
    old: Any = None  # [T] log π_old
    ref: Any = None  # [T] log π_ref

    @property
    def centered(self):
        return self.reward - float(np.mean(self.group_rewards))

    @property
    def standardized(self):
        return self.centered / (float(np.std(self.group_rewards, ddof=1)) + 1e-4)

    @property
    def against_others(self):
        """r_i − r̄_−i, the mean over the other n − 1 that were sampled, whether they are trained on or not."""
        total = sum(self.group_rewards) - self.reward
        return self.reward - total / (len(self.group_rewards) - 1)


@dataclass
class Answer:
    """A completion in a loss."""

    algo: dict[str, Any]  # settings of the loss
    completion: Completion
    logp: Tensor  # [T] log π, with gradient
    R: float  # R0 − c
    kl: Tensor | None = None  # [T] to π_ref, with gradient
    signals: dict[str, Any] = field(default_factory=dict)  # from the whole batch or group, constants

    @property
    def delta(self):
        return self.logp - self.completion.mu

    @property
    def advantage(self):
        kind = self.algo["advantage"]
        if kind == "reward":
            return self.R
        names = {"group": "centered", "group_std": "standardized", "leave_one_out": "against_others"}
        return getattr(self.completion, names[kind])


NEUTRAL = {  # values of settings that a YAML leaves out
    "advantage": "reward",
    "rule": "clip",
    "denominator": "sampler",
    "correction": None,
    "correction_level": "token",
    "mask": None,
    "off_policy_mask": None,
    "kl_coef": 0.0,
    "unbiased_kl": False,
    "length_normalize": False,
    "drop": False,
}
ADVANTAGES = {"vespo": "group", "grpo": "group_std"}  # where a YAML leaves that out


def share(is_counted):
    return float(is_counted.double().mean())


# ---- the grammar of policy gradients


def policy_gradient(answer):
    """−Σ_t M_t stopgrad(c_t w_t) A log π_t; with PPO's rule nothing beyond the limits, and its objective's value."""
    algo = answer.algo
    completion = answer.completion
    a = answer.advantage
    logp = answer.logp
    pi = answer.logp.detach()
    is_raised = a > 0 or (a == 0 and completion.is_correct)
    sign = "pos" if is_raised else "neg"
    low = algo[f"a_{sign}"]
    high = algo[f"b_{sign}"]
    denominator = completion.old if algo["denominator"] == "old" else completion.mu
    ratio = ratio_of(algo["ratio"], (pi - denominator).double())
    weight = ratio.clamp(low, high)
    metrics = {
        "clipped_low": share(ratio.log() < log(low) - TOLERANCE),
        "clipped_high": share(ratio.log() > log(high) + TOLERANCE),
    }
    factor = weight
    if algo["correction"] is not None:
        correction = correction_of(algo, completion)
        metrics["correction"] = float(correction.mean())
        factor = factor * correction
    if algo["mask"] is not None:
        is_kept = kept_by_all(algo["mask"], completion, pi, denominator, a)
        metrics["masked"] = share(~is_kept)
        factor = factor * is_kept
    metrics["weight"] = float(factor.mean())
    is_plain = algo["mask"] is None and algo["correction"] is None
    if algo["rule"] == "clip":
        if algo["ratio"] == "sequence" and is_plain:
            metrics["objective"] = a * taper(float(ratio[0]), float(weight[0]))
        return -a * (factor * logp).sum(), metrics
    is_inside = (ratio >= low) & (ratio <= high)
    is_of_answer = is_plain and algo["ratio"] in ("sequence", "geometric")
    value = factor[0] if is_of_answer else factor.sum()
    return -a * (value + (factor * is_inside * (logp - pi)).sum()), metrics


def log(limit):
    return math.log(limit) if limit else -math.inf


def taper(ratio, limited_ratio):
    """TOPR's ρ (Equation 9); 0 where the upper limit is 0."""
    if limited_ratio == 0:
        return 0.0
    return limited_ratio * (1 + math.log(ratio / limited_ratio))


def ratio_of(level, delta):
    if level == "sequence":
        return delta.sum().exp().expand_as(delta)
    if level == "geometric":
        return delta.mean().exp().expand_as(delta)
    ratios = delta.exp()
    if level == "min_prefix":  # times the least of the tokens before, 1 where there is none
        return ratios * torch.stack([ratios[:t].min() if t else ratios.new_ones(()) for t in range(len(ratios))])
    return ratios.cumprod(0) if level == "prefix" else ratios


def correction_of(algo, completion):
    """min(π_old/μ, C) by token, or of the whole answer."""
    gap = (completion.old - completion.mu).double()
    if algo["correction_level"] != "token":
        of_answer = gap.mean() if algo["correction_level"] == "mean" else gap.sum()
        gap = of_answer.expand_as(gap)
    return gap.exp().clamp(max=algo["correction"])


def kept_by_all(masks, completion, pi, denominator, a):
    is_kept = torch.ones(len(pi), dtype=torch.bool)
    for mask in masks:
        policies = (pi, denominator)
        if mask["statistic"].startswith("old_"):
            policies = (completion.old, completion.mu)
        log_p, log_q = (logp.double().numpy() for logp in policies)
        is_kept &= torch.tensor(kept_tokens(mask, log_p, log_q, a))
    return is_kept


def kept_tokens(mask, log_p, log_q, a):
    """[T] True at the tokens that a mask leaves; level, low, high and sides as in the YAML."""
    level = mask["level"]
    kind = mask["statistic"].removeprefix("old_")
    low = -math.inf if mask["low"] is None else mask["low"]
    high = math.inf if mask["high"] is None else mask["high"]
    p = np.exp(log_p)
    q = np.exp(log_q)
    change = log_p - log_q
    if kind == "ratio":
        highest = change.max()
        lowest = change.min()
        if level != "largest":
            highest = lowest = {"token": change, "mean": change.mean(), "sum": change.sum()}[level]
        is_above = np.exp(highest) > high
        is_below = np.exp(lowest) < low
    elif kind == "difference" and level == "token":
        is_above = p - q > high
        is_below = p - q < low
    else:
        size = np.abs(p - q)
        if kind == "divergence":
            size = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
        is_far = {"token": size, "mean": size.mean(), "largest": size.max()}[level] > high
        is_above = is_far & (change > 0)
        is_below = is_far & (change < 0)
        if mask["sides"] == "both":
            is_above = is_below = is_far
    if mask["sides"] == "both":
        is_lost = is_above | is_below
    else:
        is_lost = (is_above & (a > 0)) | (is_below & (a < 0))
    return np.broadcast_to(~np.asarray(is_lost), len(p)).copy()


# ---- clipping


def clipped_objective(algo, delta, advantage):
    """min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), and where its gradient is zero although A is not."""
    ratio = delta.exp()
    low = 1 - algo["eps_low"]
    high = 1 + algo["eps_high"]
    value = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    return value, (ratio > high) & (advantage > 0) | (ratio < low) & (advantage < 0)


def ppo(answer):
    delta = answer.delta if answer.algo["ratio"] == "token" else answer.delta.sum()
    value, is_clipped = clipped_objective(answer.algo, delta, answer.R)
    return -value.sum(), {"objective": float(value.sum()), "clipped": share(is_clipped)}


def grpo(answer):
    value, is_clipped = clipped_objective(answer.algo, answer.delta, answer.advantage)
    return masked(answer, -value.sum(), {"advantage": answer.advantage, "clipped": share(is_clipped)})


def gspo(answer):
    """PPO's rule for the ratio's geometric mean; near to a limit rounding decides whether it counts as clipped."""
    algo = answer.algo
    a = answer.completion.standardized
    mean = answer.delta.mean()
    value, is_clipped = clipped_objective(algo, mean, a)
    clipped = share(is_clipped)
    for limit in (1 - algo["eps_low"], 1 + algo["eps_high"]):
        if abs(mean.item() - math.log(limit)) < 1e-6:
            clipped = math.nan
    return -value, {"advantage": a, "clipped": clipped}


def masked(answer, loss, metrics):
    """Without a completion of negative A that π has left far behind, where the settings ask for that."""
    threshold = answer.algo["off_policy_mask"]
    if threshold is None:
        return loss, metrics
    is_dropped = metrics["advantage"] < 0 and -float(answer.delta.mean()) > threshold
    return loss * (not is_dropped), metrics | {"masked": float(is_dropped)}


def cispo(answer):
    cap = answer.algo["cap"]
    a = answer.completion.standardized
    ratio = answer.delta.detach().exp()
    loss = -a * (ratio.clamp(max=cap) * answer.logp).sum()
    return loss, {"advantage": a, "clipped": share(ratio > cap)}


def vespo(answer):
    """−stopgrad(r^c1 e^(c2 (1 − r))) A log π, c1 and c2 by the sign of A."""
    a = answer.advantage
    sign = "pos" if a >= 0 else "neg"
    c1 = answer.algo[f"c1_{sign}"]
    c2 = answer.algo[f"c2_{sign}"]
    ratio = float(answer.delta.sum().exp())
    weight = ratio**c1 * math.exp(c2 * (1 - ratio))
    return -weight * a * answer.logp.sum(), {"advantage": a, "weight": weight}


def m2po(answer):
    a = answer.completion.standardized
    is_kept = answer.signals["kept"]
    return -a * answer.delta.exp()[is_kept].sum(), {"advantage": a, "masked": share(~is_kept)}


def gmpo(answer):
    """−A times the geometric mean of the ratios, of which those that A has driven beyond a limit stand at it."""
    delta = answer.delta
    a = answer.completion.standardized
    limited_delta = delta
    if a > 0:
        limited_delta = delta.clamp(max=answer.algo["eps_high"])
    elif a < 0:
        limited_delta = delta.clamp(min=-answer.algo["eps_low"])
    return -a * limited_delta.mean().exp(), {"advantage": a, "clipped": share(limited_delta != delta)}


def sapo(answer):
    """−(4/τ) σ(τ (r_t − 1)) A; the weight that is reported is the slope of that in log r_t."""
    a = answer.completion.standardized
    tau = answer.algo["tau_pos"] if a > 0 else answer.algo["tau_neg"]
    ratio = answer.delta.exp()
    gate = torch.sigmoid(tau * (ratio - 1))
    slope = 4 * gate * (1 - gate) * ratio
    weight = float(slope.detach().mean())
    return -a * (4 / tau * gate).sum(), {"advantage": a, "weight": weight}


def rec(answer):
    """A token counts until its ratio has left the trust interval on the side to which A drives it."""
    algo = answer.algo
    a = answer.completion.centered
    ratio = answer.delta.detach().exp()
    is_inside = torch.ones(len(ratio), dtype=torch.bool)
    if a > 0:
        is_inside = ratio <= 1 + algo["eps_high"]
    elif a < 0:
        is_inside = ratio >= 1 - algo["eps_low"]
    return -a * answer.logp[is_inside].sum(), {"advantage": a, "clipped": share(~is_inside)}


def red_drop(answer):
    """A is relative to what is kept of the group, and 0 of what is dropped."""
    a = answer.signals["advantage"]
    return -a * answer.logp.sum(), {"advantage": a, "clipped": 0.0, "kept": answer.signals["kept"]}


# ---- regressions and regularized policy gradients


def dpo(beta, chosen, rejected):
    """−log σ(β [Δ(chosen) − Δ(rejected)]); a tie, but for rounding, is half right."""
    chosen_delta = chosen.delta.sum()
    rejected_delta = rejected.delta.sum()
    margin = beta * (chosen_delta - rejected_delta)
    is_tie = abs(margin) <= TOLERANCE * beta
    accuracy = 0.5 if is_tie else float(margin > 0)
    metrics = {
        "margin": float(margin),
        "accuracy": accuracy,
        "chosen_log_ratio": float(chosen_delta),
        "rejected_log_ratio": float(rejected_delta),
    }
    return (1 + (-margin).exp()).log(), metrics


def oapl(answer):
    """(β log π/π_ref − (r − V*))²; V* is the soft maximum of all that the problem's completions got."""
    completion = answer.completion
    algo = answer.algo
    anchor = completion.mu if algo["anchor"] == "mu" else completion.ref
    scaled_rewards = np.array(completion.group_rewards) / 0.5
    value = 0.5 * math.log(np.exp(scaled_rewards).mean())
    advantage = completion.reward - value
    residual = algo["beta"] * (answer.logp - anchor).sum() - advantage
    return residual**2, {"advantage": advantage, "residual": float(residual)}


def opmd(answer):
    a = answer.completion.centered
    return answer.algo["tau"] / 2 * answer.delta.sum() ** 2 - a * answer.logp.sum(), {"advantage": a}


def asymre(answer):
    a = answer.completion.centered - answer.algo["delta_v"]
    return -a * answer.logp.sum(), {"advantage": a}


def agro(answer):
    """−(S_i − S̄_−i) log π; on-policy π also decides what is sampled."""
    a = answer.signals["advantage"]
    ref_log_ratio = (answer.logp - answer.completion.ref).sum()
    metrics = {"advantage": a, "ref_log_ratio": float(ref_log_ratio)}
    if answer.algo["name"] == "agro":
        return -a * answer.logp.sum(), metrics
    coefficient = a**2 / (2 * answer.algo["beta"]) - a
    return coefficient * answer.logp.sum(), metrics | {"square": a**2}


def reference_kl(answer):
    """Σ_t r − 1 − log r of r = π_ref/π, by token, each times π/μ if it is to be unbiased."""
    log_ratios = answer.completion.ref - answer.logp
    terms = [exp_or_tangent(log_ratio) - 1 - log_ratio for log_ratio in log_ratios]
    if answer.algo["unbiased_kl"]:
        terms = [exp_or_tangent(delta) * term for delta, term in zip(answer.delta, terms, strict=True)]
    return torch.stack(terms).sum()


def exp_or_tangent(log_ratio):
    """e^x; above 20 the tangent there."""
    limit = torch.tensor(20.0, dtype=torch.float64)
    return log_ratio.exp() if log_ratio <= limit else limit.exp() * (1 + log_ratio - limit)


def rloo(answer):
    a = answer.signals["advantage"]
    return -a * answer.logp.sum(), {"advantage": a}


def kl_pg(answer):
    a = answer.completion.against_others
    kl = answer.kl.sum()
    return answer.algo["beta"] * kl - a * answer.logp.sum(), {"advantage": a, "vocab_kl": float(kl)}


OF_THE_GRAMMAR = (
    "topr", "tis", "is", "naive", "sft", "policy_gradient", "decoupled_ppo", "icepop", "dppo_tv", "dppo_kl", "ipo",
    "mis", "trust_region_mask", "vaco", "luspo",
)  # fmt: skip
PENALIZED = (*OF_THE_GRAMMAR, "ppo", "grpo", "cispo", "vespo", "m2po", "sapo")  # may have GRPO's KL penalty
OF_THEIR_OWN = (
    ppo, grpo, gspo, cispo, vespo, m2po, gmpo, sapo, rec, red_drop, oapl, opmd, asymre, agro, rloo, kl_pg,
)  # fmt: skip
FORMULAS = dict.fromkeys(OF_THE_GRAMMAR, policy_gradient) | {"agro_on_policy": agro}
FORMULAS |= {formula.__name__: formula for formula in OF_THEIR_OWN}


# ---- what a loss takes from the whole batch, or from all completions of a problem, with the current π


def losses_of(algo, completions, scores, c):
    """The loss of each example and what it reports; scores: log π of the tokens (`logp`), and `kl` where it is needed.

    Of pairs the chosen completions come first.
    """
    algo = NEUTRAL | {"advantage": ADVANTAGES.get(algo["name"], "reward")} | algo
    answers = []
    for completion, score in zip(completions, scores, strict=True):
        answers.append(Answer(algo, completion, score["logp"], completion.reward - c, score.get("kl")))
    if algo["name"] == "dpo":
        half = len(answers) // 2
        return [dpo(algo["beta"], *pair) for pair in zip(answers[:half], answers[half:], strict=True)]
    if algo["name"] == "m2po":
        set_kept_tokens(answers, algo["tau"])
    outcomes = []
    for answer in answers:
        group = [member for member in answers if member.completion.problem == answer.completion.problem]
        answer.signals |= signals_of(answer, group)
        loss, metrics = FORMULAS[algo["name"]](answer)
        if algo["name"] in PENALIZED and algo["kl_coef"] > 0:
            loss = loss + algo["kl_coef"] * reference_kl(answer)
        divisor = len(answer.logp) if algo["length_normalize"] else 1
        outcomes.append((loss / divisor, metrics))
    return outcomes


def set_kept_tokens(answers, tau):
    """Drop the largest squares of the whole batch until the mean of the others is below τ; equal ones go together."""
    for answer in answers:
        answer.signals["square"] = answer.delta.detach() ** 2
    squares = torch.cat([answer.signals["square"] for answer in answers])
    while len(squares) and squares.mean() >= tau:
        squares = squares[squares < squares.max()]
    largest = squares.max() if len(squares) else -1.0
    for answer in answers:
        answer.signals["kept"] = answer.signals["square"] <= largest


def signals_of(answer, group):
    """What a loss takes from the group of an answer."""
    algo = answer.algo
    completion = answer.completion
    if algo["name"] in ("agro", "agro_on_policy") or (algo["name"] == "rloo" and algo["beta"] > 0):
        rewards_of_others = [regularized_reward(member) for member in group if member is not answer]
        return {"advantage": regularized_reward(answer) - float(np.mean(rewards_of_others))}
    if algo["name"] != "red_drop":
        return {"advantage": completion.against_others}
    # All positives, and as many of the first negatives.
    members = values_of(group, "completion")
    members.sort(key=lambda member: (not member.is_correct, member.sample))
    n_positive = sum(values_of(members, "is_correct"))
    balanced = members[: 2 * n_positive]
    if completion not in balanced:
        return {"kept": 0.0, "advantage": 0.0}
    mean = np.mean(values_of(balanced, "reward"))
    return {"kept": 1.0, "advantage": completion.reward - float(mean)}


def regularized_reward(answer):
    """S = r − β log π/π_ref; RLOO's penalty is of the policy that sampled."""
    completion = answer.completion
    logp = completion.mu if answer.algo["name"] == "rloo" else answer.logp.detach()
    return completion.reward - answer.algo["beta"] * float((logp - completion.ref).sum())


def rate(peak, step, updates, optim):
    """The learning rate of the update `step`, from 1."""
    warmup = optim["warmup_steps"]
    if step <= warmup:
        return peak * step / (warmup + 1)
    progress = (step - 1 - warmup) / (updates - warmup)
    curves = {"constant": 1.0, "linear": 1 - progress, "cosine": math.cos(math.pi * progress / 2) ** 2}
    return peak * curves[optim["schedule"]]
