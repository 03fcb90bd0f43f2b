"""Draw docs/images/names.png: `python -m scripts.names_figure FILE`, losses of one name in several frameworks.

Each panel is a name, each line a framework's loss: the settings that docs/names.md gives for it, which tests hold equal
to it, or the formula that stands there. Weight: the pull on a token's log-probability as a share of |A|.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from topr_exp.api import loss as named_loss
from topr_exp.report.loss_weights import answer_batch

Curve = Callable[[bool, float], float]  # from whether the answer is right and a log-ratio to the weight of a token

DELTAS = [step / 50 for step in range(-100, 101)]
BY_TOKEN = {"ratio": "token", "advantage": "group"}
PPO = {"rule": "ppo", "a_neg": 0.8, "b_pos": 1.2, **BY_TOKEN}


def weight(loss: Any, tokens: int, unit: float, sampler: bool, right: bool, delta: float) -> float:
    """Weight of the first token where all have log-ratio δ, beside an answer of the other verdict at 0."""
    logp, batch = answer_batch(loss, right, tokens, tokens * delta)
    if sampler:
        batch = dataclasses.replace(batch, old_logp=logp.detach())
    output = loss(batch)
    (gradient,) = torch.autograd.grad(output.loss.sum(), logp)
    size = float(output.metrics["advantage"][0].abs()) if "advantage" in output.metrics else 1.0
    return -float(gradient[0, 0]) * unit / size * (1 if right else -1)


def ours(name: str, tokens: int = 10, unit: float = 1.0, sampler: bool = False, **settings: Any) -> Curve:
    """The curve of a loss; `sampler`: against log π_old/μ, at π = π_old. `unit` undoes a division by T."""
    return partial(weight, named_loss(name, **settings), tokens, unit, sampler)


def gate(right: bool, delta: float) -> float:
    tau = 1.0 if right else 1.05
    return 4 / tau / (1 + math.exp(-tau * (math.exp(delta) - 1)))


def harmful_second_moment(right: bool, delta: float) -> float:
    return 0.0 if (delta if right else -delta) > 0.2 else math.exp(delta)


def penalty_by_token(right: bool, delta: float) -> float:
    return 1 - 0.1 * (delta if right else -delta)


def band(low: float, high: float) -> dict[str, Any]:
    return {"statistic": "old_ratio", "level": "token", "low": low, "high": high, "sides": "both"}


PANELS: dict[str, dict[str, Curve]] = {
    "TOPR": {
        "paper, T = 10": ours("topr", unit=10),
        "Trinity-RFT, ROLL; veRL's pull request": ours("topr", unit=10, ratio="token"),
    },
    "PPO and GRPO": {
        "TRL, NeMo-RL, SkyRL, AReaL": ours("policy_gradient", **PPO),
        "veRL, Trinity-RFT": ours("policy_gradient", **PPO, b_neg=3.0),
        "ROLL, dual_clip_loss": ours("policy_gradient", **PPO, b_neg=1.4),
    },
    "GSPO (ε = 0.2), answers of 10 on average": {
        "TRL, veRL, NeMo-RL, T = 10": ours("gspo", unit=10, eps_low=0.2, eps_high=0.2),
        "the same, T = 100": ours("gspo", tokens=100, unit=10, eps_low=0.2, eps_high=0.2),
        "AReaL, any T": ours("luspo", a_neg=0.8, b_pos=1.2, advantage="group"),
    },
    "CISPO": {
        "TRL, SkyRL": ours("cispo"),
        "Trinity-RFT, open-instruct": ours("cispo", cap=1.28),
        "veRL, NeMo-RL": ours("policy_gradient", **BY_TOKEN, a_pos=0.8, a_neg=0.8, b_pos=1.2, b_neg=1.2),
    },
    "SAPO": {"TRL, veRL, SkyRL, AReaL": ours("sapo", unit=10), "Trinity-RFT": gate},
    "M2PO": {
        "paper, in this batch": ours("m2po"),
        "authors' code": ours("m2po", form="released"),
        "Trinity-RFT": harmful_second_moment,
    },
    "Corrections, by log π_old/μ": {
        "TIS, 2": ours("decoupled_ppo", sampler=True, advantage="group", correction=2.0),
        "IcePop, 0.5 to 5": ours("decoupled_ppo", sampler=True, advantage="group", mask=[band(0.5, 5.0)]),
        "TRL, token_mask, 3": ours("decoupled_ppo", sampler=True, advantage="group", mask=[band(0.0, 3.0)]),
    },
    "OPMD, Kimi k1.5": {
        "paper, T = 10": ours("opmd"),
        "ROLL; veRL's dro": penalty_by_token,
        "Trinity-RFT, times 1 + τ": ours("opmd", tau=0.0),
    },
}


def main(path: Path) -> None:
    figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex=True)
    for axis, (title, curves) in zip(axes.flat, PANELS.items(), strict=True):
        for (label, curve), style in zip(curves.items(), ("-", "--", ":"), strict=False):
            for right, color in ((True, "tab:blue"), (False, "tab:red")):
                axis.plot(DELTAS, [curve(right, delta) for delta in DELTAS], style, color=color, linewidth=1.4)
            axis.plot([], [], style, color="black", label=label)
        axis.set_title(title, fontsize=10)
        axis.set_ylim(-0.2, 4.2)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel("log-ratio of each token; blue: a right answer, red: a wrong one", fontsize=9)
    figure.supylabel("weight of a token", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
