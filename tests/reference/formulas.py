"""Every loss of conf/algo as its formula stands in the paper, for one completion at a time.

A formula takes the settings of `algo`, a completion, log π of its tokens, R = R0 − c and what else is known: of the
problem's group (`advantage` and so on, constants) and of the tokens (`kl`, with a gradient as log π has). It returns
the loss, not yet divided by length, and what the loss reports.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-3  # a log-ratio so near to a limit does not count as clipped

Record = dict[str, Any]


@dataclass(eq=False)
class Completion:
    """A sampled completion, with what is known of it before the first update."""

    problem: int
    sample: int  # which one of its problem's
    prompt: list[int]
    tokens: list[int]
    correct: bool
    truncated: bool = False
    elsewhere: bool = False  # made, where others were sampled
    reward: float = 0.0  # R0
    mean: float = 0.0  # of the rewards of all n completions of its problem
    std: float = 0.0
    n: int = 0
    rewards: list[float] = field(default_factory=list)  # all n of them
    mu: Any = None  # [T] log μ
    old: Any = None  # [T] log π_old
    ref: Any = None  # [T] log π_ref


NEUTRAL = {  # values of settings that a YAML leaves out
    "advantage": "reward", "rule": "clip", "denominator": "sampler", "correction": None, "correction_level": "token",
    "mask": None, "off_policy_mask": None,
}  # fmt: skip


def advantage_of(algo: Any, one: Completion, reward: float) -> float:
    if algo["advantage"] == "reward":
        return reward
    spread = one.std + 1e-4 if algo["advantage"] == "group_std" else 1.0
    return against_others(one) if algo["advantage"] == "leave_one_out" else (one.reward - one.mean) / spread


def policy_gradient(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """−Σ_t M_t stopgrad(c_t w_t) A log π_t; with PPO's rule nothing beyond the limits, and its objective's value."""
    a, now, count = advantage_of(algo, one, reward), logp.detach(), len(logp)
    under = one.old if algo["denominator"] == "old" else one.mu
    sign = "pos" if a > 0 or (a == 0 and one.correct) else "neg"
    low, high = algo[f"a_{sign}"], algo[f"b_{sign}"]
    delta = (now - under).double()
    ratio = {
        "sequence": delta.sum().exp().expand(count), "geometric": delta.mean().exp().expand(count),
        "token": delta.exp(), "prefix": delta.exp().cumprod(0),
    }[algo["ratio"]]  # fmt: skip
    clipped, correction, kept = ratio.clamp(low, high), torch.ones(count, dtype=torch.double), torch.ones(count).bool()
    metrics = {
        "clipped_low": share(ratio.log() < (math.log(low) if low else -math.inf) - TOLERANCE),
        "clipped_high": share(ratio.log() > (math.log(high) if high else -math.inf) + TOLERANCE),
    }
    if algo["correction"] is not None:
        gap = (one.old - one.mu).double()
        gap = {"token": gap, "mean": gap.mean().expand(count), "sum": gap.sum().expand(count)}[algo["correction_level"]]
        correction = gap.exp().clamp(max=algo["correction"])
        metrics["correction"] = float(correction.mean())
    for mask in algo["mask"] or []:
        pair = (one.old, one.mu) if mask["statistic"].startswith("old_") else (now, under)
        kept &= torch.tensor(kept_tokens(mask, *(each.double().tolist() for each in pair), a))
    if algo["mask"] is not None:
        metrics["masked"] = share(~kept)
    factor = clipped * correction * kept
    metrics["weight"] = float(factor.mean())
    plain = algo["mask"] is None and algo["correction"] is None
    if algo["ratio"] == "sequence" and algo["rule"] == "clip" and plain:
        metrics["objective"] = a * (float(clipped[0]) * (1 + math.log(float(ratio[0] / clipped[0]))) if high else 0.0)
    if algo["rule"] == "clip":
        return -a * (factor * logp).sum(), metrics
    inside = (ratio >= low) & (ratio <= high)
    value = factor[0] if plain and algo["ratio"] in ("sequence", "geometric") else factor.sum()
    return -a * (value + (factor * inside * (logp - now)).sum()), metrics


def kept_tokens(mask: Record, now: list[float], before: list[float], a: float) -> list[bool]:
    """The tokens that a mask leaves; level, low, high and sides as in the YAML, now and before log-probabilities."""
    level, low, high, kind = mask["level"], mask["low"], mask["high"], mask["statistic"].removeprefix("old_")
    p, q = [math.exp(each) for each in now], [math.exp(each) for each in before]
    low, high, change = -math.inf if low is None else low, math.inf if high is None else high, np.subtract(now, before)
    if kind == "ratio":
        over = {"token": change, "mean": change.mean(), "sum": change.sum()}
        most, least = (change.max(), change.min()) if level == "largest" else (over[level], over[level])
        above, below = np.exp(most) > high, np.exp(least) < low
    elif kind == "difference" and level == "token":
        above, below = np.subtract(p, q) > high, np.subtract(p, q) < low
    else:
        size = [abs(x - y) for x, y in zip(p, q, strict=True)]
        if kind == "divergence":
            size = [y * math.log(y / x) + (1 - y) * math.log((1 - y) / (1 - x)) for x, y in zip(p, q, strict=True)]
        far = {"token": size, "mean": np.mean(size), "largest": max(size)}[level] > np.float64(high)
        above, below = far & (change > 0), far & (change < 0)
        if mask["sides"] == "both":
            above = below = far
    lost = above | below if mask["sides"] == "both" else (above & (a > 0)) | (below & (a < 0))
    return [not each for each in np.broadcast_to(lost, len(now)).tolist()]


def ppo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    tokens = logp - one.mu
    value, clipped = clipped_objective(algo, tokens if algo["ratio"] == "token" else tokens.sum(), reward)
    return -value.sum(), {"objective": float(value.sum()), "clipped": share(clipped)}


def clipped_objective(algo: Any, delta: Tensor, advantage: float) -> tuple[Tensor, Tensor]:
    """min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), and where its gradient is zero although A is not."""
    ratio, low, high = delta.exp(), 1 - algo["eps_low"], 1 + algo["eps_high"]
    value = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
    return value, (ratio > high) & (advantage > 0) | (ratio < low) & (advantage < 0)


def dpo(algo: Any, chosen: Completion, rejected: Completion, good: Tensor, bad: Tensor) -> tuple[Tensor, Record]:
    """−log σ(β [Δ(chosen) − Δ(rejected)]); without a sign, where the margin is 0, the accuracy is anything."""
    better, worse = (good - chosen.mu).sum(), (bad - rejected.mu).sum()
    margin = algo["beta"] * (better - worse)
    metrics = {"margin": float(margin), "accuracy": float(margin > 0) if abs(margin) > 1e-5 else math.nan}
    return (1 + (-margin).exp()).log(), metrics | {
        "chosen_log_ratio": float(better),
        "rejected_log_ratio": float(worse),
    }


def grpo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    advantage = (one.reward - one.mean) / (one.std + 1e-4 if algo["advantage"] != "group" else 1.0)
    value, clipped = clipped_objective(algo, logp - one.mu, advantage)
    return masked(algo, one, logp, advantage, -value.sum(), {"advantage": advantage, "clipped": share(clipped)})


def gspo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """PPO's rule for the ratio's geometric mean; near to a limit rounding decides whether it counts as clipped."""
    advantage, mean = standard(one), (logp - one.mu).mean()
    value, clipped = clipped_objective(algo, mean, advantage)
    limits = (math.log(1 - algo["eps_low"]), math.log(1 + algo["eps_high"]))
    unsure = min(abs(float(mean) - limit) for limit in limits) < 1e-6
    metrics = {"advantage": advantage, "clipped": math.nan if unsure else share(clipped)}
    return masked(algo, one, logp, advantage, -value, metrics)


def masked(algo, one, logp, advantage, loss, metrics):
    """Without a completion of negative A that π has left far behind, where the settings ask for that."""
    if algo["off_policy_mask"] is None:
        return loss, metrics
    dropped = advantage < 0 and float((one.mu - logp.detach()).mean()) > algo["off_policy_mask"]
    return 0 * loss if dropped else loss, metrics | {"masked": float(dropped)}


def cispo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    ratio, advantage = (logp.detach() - one.mu).exp(), standard(one)
    loss = -advantage * (torch.clamp(ratio, max=algo["cap"]) * logp).sum()
    return loss, {"advantage": advantage, "clipped": share(ratio > algo["cap"])}


def vespo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """−stopgrad(r^c1 e^(c2 (1 − r))) A log π, c1 and c2 by the sign of A."""
    ratio, advantage = math.exp(float((logp.detach() - one.mu).sum())), advantage_of(algo, one, reward)
    sign = "pos" if advantage >= 0 else "neg"
    weight = ratio ** algo[f"c1_{sign}"] * math.exp(algo[f"c2_{sign}"] * (1 - ratio))
    return -weight * advantage * logp.sum(), {"advantage": advantage, "weight": weight}


def m2po(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    advantage = standard(one)
    kept = known["kept"]
    return -advantage * (logp - one.mu).exp()[kept].sum(), {"advantage": advantage, "masked": share(~kept)}


def gmpo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """−A times the geometric mean of the ratios, of which those that A has driven beyond a limit stand at it."""
    delta, a = logp - one.mu, standard(one)
    limited = delta.clamp(max=algo["eps_high"]) if a > 0 else delta.clamp(min=-algo["eps_low"]) if a < 0 else delta
    return -a * limited.mean().exp(), {"advantage": a, "clipped": share(limited.detach() != delta.detach())}


def sapo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """−(4/τ) σ(τ (r_t − 1)) A; the weight that is reported is the slope of that in log r_t."""
    ratio, advantage = (logp - one.mu).exp(), standard(one)
    tau = algo["tau_pos"] if advantage > 0 else algo["tau_neg"]
    gate = 1 / (1 + (-tau * (ratio - 1)).exp())
    weight = float((4 * gate * (1 - gate) * ratio).mean())
    return -advantage * (4 / tau * gate).sum(), {"advantage": advantage, "weight": weight}


def oapl(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """(β log π/π_ref − (r − V*))²; V* is the soft maximum of all that the problem's completions got."""
    value = 0.5 * math.log(float(np.mean(np.exp(np.array(one.rewards) / 0.5))))
    residual = algo["beta"] * (logp - (one.mu if algo["anchor"] == "mu" else one.ref)).sum() - (one.reward - value)
    return residual**2, {"advantage": one.reward - value, "residual": float(residual)}


def opmd(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    advantage = one.reward - one.mean
    return algo["tau"] / 2 * (logp - one.mu).sum() ** 2 - advantage * logp.sum(), {"advantage": advantage}


def asymre(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    advantage = one.reward - (one.mean + algo["delta_v"])
    return -advantage * logp.sum(), {"advantage": advantage}


def rec(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """A token counts until its ratio has left the trust interval on the side to which A drives it."""
    advantage = known["advantage"] if algo["drop"] else one.reward - one.mean
    ratio = (logp.detach() - one.mu).exp()
    inside = (ratio <= 1 + algo["eps_high"]) & (advantage >= 0) | (ratio >= 1 - algo["eps_low"]) & (advantage <= 0)
    metrics = {"advantage": advantage, "clipped": share(~inside)}
    return -advantage * logp[inside].sum(), metrics | ({"kept": known["kept"]} if algo["drop"] else {})


def agro(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    """−(S_i − S̄_−i) log π."""
    delta, advantage, beta = logp.detach() - one.ref, known["advantage"], algo["beta"]
    loss = -advantage * logp.sum()
    metrics = {"advantage": advantage, "ref_log_ratio": float(delta.sum())}
    if "square" in known:  # on-policy: π also decides what is sampled
        loss, metrics["square"] = loss + known["square"] / (2 * beta) * logp.sum(), known["square"]
    return loss, metrics


def rloo(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    return -known["advantage"] * logp.sum(), {"advantage": known["advantage"]}


def kl_pg(algo: Any, one: Completion, logp: Tensor, reward: float, known: Record) -> tuple[Tensor, Record]:
    advantage, kl = against_others(one), known["kl"].sum()
    return algo["beta"] * kl - advantage * logp.sum(), {"advantage": advantage, "vocab_kl": float(kl)}


FORMULAS: dict[str, Callable[..., tuple[Tensor, Record]]] = {"ppo": ppo, "grpo": grpo, "opmd": opmd, "asymre": asymre}
FORMULAS |= {"rec": rec, "red_drop": rec} | dict.fromkeys(("topr", "tis", "is", "naive", "sft"), policy_gradient)
FORMULAS |= dict.fromkeys(("policy_gradient", "decoupled_ppo", "icepop", "dppo_tv", "dppo_kl", "ipo"), policy_gradient)
FORMULAS |= dict.fromkeys(("mis", "trust_region_mask", "vaco", "luspo"), policy_gradient) | {"gmpo": gmpo}
FORMULAS |= {"gspo": gspo, "cispo": cispo, "vespo": vespo, "m2po": m2po, "sapo": sapo, "oapl": oapl}
FORMULAS |= {"agro": agro, "agro_on_policy": agro, "rloo": rloo, "kl_pg": kl_pg}


def share(where: Tensor) -> float:
    return float(where.double().mean())


def standard(one: Completion) -> float:
    return (one.reward - one.mean) / (one.std + 1e-4)


def against_others(one: Completion) -> float:
    """r_i − r̄_−i, the mean over the other n − 1 that were sampled, whether they are trained on or not."""
    return one.reward - (one.n * one.mean - one.reward) / (one.n - 1)


def losses_of(algo: Any, sides: list[Completion], scores: list[Record], c: float) -> Iterator[tuple[Tensor, Record]]:
    """The loss of each example and what the loss reports of it; scores: log π of the tokens (`logp`) and their `kl`."""
    algo = NEUTRAL | ({"advantage": "group"} if algo["name"] == "vespo" else {}) | algo
    logps = [score["logp"] for score in scores]
    if algo["name"] == "dpo":
        half = len(sides) // 2
        yield from (dpo(algo, sides[i], sides[half + i], logps[i], logps[half + i]) for i in range(half))
        return
    whole = of_batch(algo, sides, [logp.detach() for logp in logps])
    for i, one in enumerate(sides):
        group = [j for j, other in enumerate(sides) if other.problem == one.problem]
        known = of_group(algo, [sides[j] for j in group], [logps[j].detach() for j in group])[group.index(i)]
        known = {**scores[i], **known, **whole[i]}
        loss, metrics = FORMULAS[algo["name"]](algo, one, logps[i], one.reward - c, known)
        yield loss / len(one.tokens) if algo.get("length_normalize") else loss, metrics


# ---- what a loss takes from the whole batch, or from all completions of a problem, with the current π


def of_batch(algo: Any, batch: list[Completion], logps: list[Tensor]) -> list[Record]:
    """Per completion of a batch, of whose tokens log π is `logps`."""
    if algo["name"] != "m2po":
        return [{} for _ in batch]
    squares = [(p - one.mu) ** 2 for one, p in zip(batch, logps, strict=True)]
    left = sorted(float(square) for each in squares for square in each)
    while left and np.mean(left) >= algo["tau"]:
        left = [square for square in left if square < left[-1]]  # equal ones go together
    return [{"kept": square <= (left[-1] if left else -1.0)} for square in squares]


def of_group(algo: Any, group: list[Completion], logps: list[Tensor]) -> list[Record]:
    """Per completion of a problem's group, of whose tokens log π is `logps`."""
    if algo["name"] in ("agro", "agro_on_policy") or (algo["name"] == "rloo" and algo["beta"] > 0):
        # S = r − β log π/π_ref; RLOO's penalty is of the policy that sampled.
        now = [one.mu for one in group] if algo["name"] == "rloo" else logps
        s = [one.reward - algo["beta"] * float((p - one.ref).sum()) for one, p in zip(group, now, strict=True)]
        apart = [value - float(np.mean(without(s, i))) for i, value in enumerate(s)]
        known = [{"advantage": value} for value in apart]
        if algo["name"] == "agro_on_policy":
            for i, value in enumerate(apart):
                known[i]["square"] = value**2
        return known
    if algo.get("drop"):  # the first negatives, as many as there are positives
        right = [one for one in group if one.correct]
        wrong = sorted((one for one in group if not one.correct), key=lambda one: one.sample)[: len(right)]
        mean = float(np.mean([one.reward for one in right + wrong])) if right else 0.0
        kept = [one in right + wrong for one in group]
        return [{"kept": float(k), "advantage": k * (one.reward - mean)} for one, k in zip(group, kept, strict=True)]
    return [{"advantage": against_others(one)} for one in group]


def without(values: list[float], place: int) -> list[float]:
    return values[:place] + values[place + 1 :]


def rate(peak: float, step: int, updates: int, optim: Any) -> float:
    """The learning rate of the update `step`, from 1."""
    warmup = optim["warmup_steps"]
    if step <= warmup:
        return peak * step / (warmup + 1)
    gone = (step - 1 - warmup) / (updates - warmup)
    return peak * {"constant": 1.0, "linear": 1 - gone, "cosine": math.cos(math.pi * gone / 2) ** 2}[optim["schedule"]]
