"""Figure docs/images/names.png: losses of one name in several frameworks (`python -m scripts.names_figure FILE`).

Each panel is a name, each line a framework's loss: the settings that docs/names.md gives for it, which tests hold equal
to it, or the formula that stands there. Weight: the pull on a token's log-probability as a share of |A|.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from topr_exp.api import loss as named_loss
from topr_exp.report.loss_weights import MovedCompletion, batch_with

Curve = Callable[[bool, float], float]  # (is_correct, log-ratio) to the weight of a token

DELTAS = [step / 50 for step in range(-100, 101)]
BY_TOKEN = {"ratio": "token", "advantage": "group"}
PPO = {"rule": "ppo", "a_neg": 0.8, "b_pos": 1.2, **BY_TOKEN}
# Of M2PO's released code: in a batch of one harmful completion no limit is wider.
LEAST_CLIP = {"a_neg": 0.7, "b_pos": 1.5}


@dataclass(frozen=True)
class LossCurve:
    """The weight of a completion's first token by its log-ratio."""

    loss: Any
    tokens: int
    unit: float  # undoes a division by T
    against_sampler: bool  # the log-ratio is log π_old/μ, at π = π_old

    def __call__(self, is_correct: bool, delta: float) -> float:
        """Compute the weight if all tokens have log-ratio δ, beside a completion of the other verdict at 0."""
        completion = MovedCompletion(is_correct, self.tokens, self.tokens * delta)
        logp, batch = batch_with(self.loss, completion)
        if self.against_sampler:
            batch = dataclasses.replace(batch, old_logp=logp.detach())
        output = self.loss(batch)
        (gradient,) = torch.autograd.grad(output.loss.sum(), logp)
        weight = -float(gradient[0, 0]) * self.unit * sign_of(is_correct)
        if "advantage" in output.metrics:
            advantage = output.metrics["advantage"][0]
            weight /= float(advantage.abs())
        return weight


def curve(name: str, tokens: int = 10, unit: float = 1.0, against_sampler: bool = False, **settings: Any) -> LossCurve:
    """Make the curve of one of our losses."""
    return LossCurve(named_loss(name, **settings).function, tokens, unit, against_sampler)


def sign_of(is_correct: bool) -> int:
    if is_correct:
        return 1
    return -1


def gate(is_correct: bool, delta: float) -> float:
    tau = 1.05
    if is_correct:
        tau = 1.0
    return 4 / tau / (1 + math.exp(-tau * (math.exp(delta) - 1)))


def harmful_second_moment(is_correct: bool, delta: float) -> float:
    if sign_of(is_correct) * delta > 0.2:
        return 0.0
    return math.exp(delta)


def penalty_by_token(is_correct: bool, delta: float) -> float:
    return 1 - 0.1 * sign_of(is_correct) * delta


def band(low: float, high: float) -> dict[str, Any]:
    return {"statistic": "old_ratio", "level": "token", "low": low, "high": high, "sides": "both"}


PANELS: dict[str, dict[str, Curve]] = {
    "TOPR": {
        "paper, T = 10": curve("topr", unit=10),
        "Trinity-RFT, ROLL; veRL's pull request": curve("topr", unit=10, ratio="token"),
    },
    "PPO and GRPO": {
        "TRL, NeMo-RL, SkyRL, AReaL": curve("policy_gradient", **PPO),
        "veRL, Trinity-RFT": curve("policy_gradient", **PPO, b_neg=3.0),
        "ROLL, dual_clip_loss": curve("policy_gradient", **PPO, b_neg=1.4),
    },
    "GSPO (ε = 0.2), 10 tokens on average": {
        "NeMo-RL, Trinity-RFT, T = 10": curve("gspo", unit=10, eps_low=0.2, eps_high=0.2),
        "the same, T = 100": curve("gspo", tokens=100, unit=10, eps_low=0.2, eps_high=0.2),
        "AReaL, veRL 0.9.1, any T": curve("luspo", a_neg=0.8, b_pos=1.2, advantage="group"),
    },
    "CISPO": {
        "TRL, SkyRL": curve("cispo"),
        "Trinity-RFT, open-instruct": curve("cispo", cap=1.28),
        "veRL, NeMo-RL": curve("policy_gradient", **BY_TOKEN, a_pos=0.8, a_neg=0.8, b_pos=1.2, b_neg=1.2),
    },
    "SAPO": {"TRL, veRL, SkyRL, AReaL": curve("sapo", unit=10), "Trinity-RFT": gate},
    "M2PO": {
        "paper, in this batch": curve("m2po"),
        "authors' code": curve("policy_gradient", **PPO | LEAST_CLIP),
        "Trinity-RFT": harmful_second_moment,
    },
    "Corrections, by log π_old/μ": {
        "TIS, 2": curve("decoupled_ppo", against_sampler=True, advantage="group", correction=2.0),
        "IcePop, 0.5 to 5": curve("decoupled_ppo", against_sampler=True, advantage="group", mask=[band(0.5, 5.0)]),
        "TRL, token_mask, 3": curve("decoupled_ppo", against_sampler=True, advantage="group", mask=[band(0.0, 3.0)]),
    },
    "OPMD, Kimi k1.5": {
        "paper, T = 10": curve("opmd"),
        "ROLL; veRL's dro": penalty_by_token,
        "Trinity-RFT, times 1 + τ": curve("opmd", tau=0.0),
    },
}


def main(path: Path) -> None:
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True)
    for axis, (title, curves) in zip(axes.flat, PANELS.items(), strict=True):
        for (label, weight_of), style in zip(curves.items(), ("-", "--", ":"), strict=False):
            for is_correct, color in ((True, "tab:blue"), (False, "tab:red")):
                weights = [weight_of(is_correct, delta) for delta in DELTAS]
                axis.plot(DELTAS, weights, style, color=color, linewidth=1.4)
            axis.plot([], [], style, color="black", label=label)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(-0.2, 4.2)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel("log-ratio of each token; blue: correct, red: incorrect", fontsize=9)
    figure.supylabel("weight of a token", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
