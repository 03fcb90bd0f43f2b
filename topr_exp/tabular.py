"""Two figures that need no language model: AGRO's tabular check and TOPR's objectives against the ratio.

`python -m topr_exp.tabular [--out FOLDER]` writes both as PNG and PDF, and the numbers behind them as JSON. The losses
are those that train language models; here a softmax bandit stands for the model.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.algorithms.agro import AGRO, KLPG, Estimator
from topr_exp.algorithms.ppo import clipped_objective
from topr_exp.algorithms.tapered import taper
from topr_exp.exit_status import exit_status
from topr_exp.store.files import disk_errors, write_whole
from topr_exp.types import Batch, ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

# The bandit of AGRO's Figure 1: all of this is ours, the paper gives no numbers.
ACTIONS, GROUPS, GROUP_SIZE = 10, 128, 4
BETA, LEARNING_RATE, UPDATES, SEEDS = 0.5, 4.0, 1000, 5
KL_FLOOR = 1e-12  # float64 can't tell a smaller KL from 0

EPS = 0.2
RATIOS = [i / 100 for i in range(1, 301)]

# Okabe and Ito's colours; the line styles tell the curves apart in grey.
BLUE, ORANGE, BLACK = "#0072B2", "#D55E00", "#000000"


def agro_convergence(updates: int = UPDATES, seeds: int = SEEDS) -> dict[str, Any]:
    """KL(π ‖ π*) after each update of AGRO and of the KL-regularised policy gradient on fixed off-policy samples.

    A softmax bandit with rewards in [0, 1], random π_ref and, unrelated to it, random μ; 128 groups of 4 actions drawn
    from μ once; π starts at π_ref and follows the full gradient. π* ∝ π_ref exp(r/β) is the optimum of
    E_π[r] − β KL(π ‖ π_ref). AGRO (arXiv 2503.19612), Figure 1 and Theorem 2.
    """
    losses: list[AGRO | KLPG] = [
        AGRO(name="agro", beta=BETA, estimator=Estimator.vanilla, length_normalize=False),
        KLPG(name="kl_pg", beta=BETA, length_normalize=False),
    ]
    curves = {loss.name: [_train(loss, seed, updates) for seed in range(seeds)] for loss in losses}
    return {
        "actions": ACTIONS,
        "groups": GROUPS,
        "group_size": GROUP_SIZE,
        "beta": BETA,
        "learning_rate": LEARNING_RATE,
        "updates": updates,
        "seeds": seeds,
        "kl_to_optimum": curves,
        "final_kl": {name: [runs[-1] for runs in by_seed] for name, by_seed in curves.items()},
    }


def _train(loss: AGRO | KLPG, seed: int, updates: int) -> list[float]:
    """KL(π ‖ π*) before the first and after each update."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    reward = torch.rand(ACTIONS, generator=generator, dtype=torch.float64)
    ref, mu = torch.randn(2, ACTIONS, generator=generator, dtype=torch.float64).log_softmax(1)
    optimum = (ref + reward / BETA).log_softmax(0)
    actions = torch.multinomial(mu.exp(), GROUPS * GROUP_SIZE, replacement=True, generator=generator)
    logits = ref.clone().requires_grad_()
    history = []
    for update in range(updates + 1):
        logp = logits.log_softmax(0)
        history.append(max(_kl(logp.detach(), optimum).item(), 0.0))
        if update < updates:
            batch = _bandit_batch(actions, logp, mu, ref, reward)
            if isinstance(loss, AGRO):
                batch = dataclasses.replace(batch, signals=loss.signals(batch))
            (gradient,) = torch.autograd.grad(loss(batch).loss.mean(), logits)
            logits = (logits - LEARNING_RATE * gradient).detach().requires_grad_()
    return history


def _kl(logp: Tensor, logq: Tensor) -> Tensor:
    return (logp.exp() * (logp - logq)).sum()


def _bandit_batch(actions: Tensor, logp: Tensor, mu: Tensor, ref: Tensor, reward: Tensor) -> Batch:
    """The fixed samples as responses of one token."""
    count = len(actions)
    rewards = reward[actions]
    group = actions.new_tensor(range(GROUPS)).repeat_interleave(GROUP_SIZE)
    column = actions[:, None]
    return Batch(
        logp=logp[column],
        mu_logp=mu[column],
        mask=column >= 0,
        reward=rewards,
        positive=rewards > 0.5,
        group=group,
        group_mean=rewards.view(GROUPS, GROUP_SIZE).mean(1)[group],
        group_size=actions.new_full((count,), GROUP_SIZE),
        ref_logp=ref[column],
        vocab_kl=_kl(logp, ref).expand(count, 1),
    )


def objectives() -> dict[str, Any]:
    """The objective of one response as a function of its ratio, for R = +1 and R = −1: TOPR (Eq. 11) and PPO (Eq. 6).

    TOPR (arXiv 2503.14286), Figure 2: a⁺ = 1, b⁺ = 1 + ε, a⁻ = 0, b⁻ = 1, ε = 0.2.
    """
    import torch

    delta = torch.tensor(RATIOS, dtype=torch.float64).log()
    curves: dict[str, Any] = {"eps": EPS, "ratio": RATIOS}
    for sign, (a, b), reward in (("positive", (1.0, 1 + EPS), 1.0), ("negative", (0.0, 1.0), -1.0)):
        log_a, log_b = (delta.new_tensor(math.log(x) if x > 0 else -math.inf) for x in (a, b))
        advantage = delta.new_tensor(reward)
        curves[sign] = {
            "topr": (taper(delta, log_a, log_b) * reward).tolist(),
            "ppo": clipped_objective(delta, advantage, EPS, EPS)[0].tolist(),
            "importance_sampling": (delta.exp() * reward).tolist(),
        }
    return curves


def plot_convergence(data: dict[str, Any]) -> Figure:
    """KL to the optimal policy over updates: median over seeds, shaded from the lowest to the highest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    updates = range(data["updates"] + 1)
    styles = {"agro": ("AGRO", BLUE, "-"), "kl_pg": ("KL-regularised policy gradient", ORANGE, "--")}
    for name, (label, color, line) in styles.items():
        columns = [[max(kl, KL_FLOOR) for kl in column] for column in zip(*data["kl_to_optimum"][name], strict=True)]
        median = [statistics.median(column) for column in columns]
        axes.fill_between(updates, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.2, lw=0)
        axes.plot(updates, median, color=color, linestyle=line, linewidth=2, label=label)
    axes.set(
        yscale="log", ylim=(10 * KL_FLOOR, 3), xlim=(0, data["updates"]), xlabel="updates on fixed off-policy samples"
    )
    axes.set_ylabel(r"KL($\pi$ ‖ $\pi^*$)")
    axes.set_title(f"Softmax bandit, {data['actions']} actions, β = {data['beta']}, {data['seeds']} seeds", fontsize=10)
    axes.legend(frameon=False, loc="center right")
    _quiet(axes)
    return figure


def plot_objectives(data: dict[str, Any]) -> Figure:
    """The objectives against the ratio, one panel a sign of the reward."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    styles = {
        "importance_sampling": ("importance sampling", BLACK, ":", 1.2),
        "ppo": ("PPO", ORANGE, "--", 2),
        "topr": ("TOPR", BLUE, "-", 2),
    }
    for axes, sign, reward, limits in zip(
        panels, ("positive", "negative"), ("+1", "−1"), ((-2, 3), (-3, 0.2)), strict=True
    ):
        for name, (label, color, line, width) in styles.items():
            axes.plot(data["ratio"], data[sign][name], color=color, linestyle=line, linewidth=width, label=label)
        axes.axvspan(1 - data["eps"], 1 + data["eps"], color="0.92", zorder=0)
        axes.text(1, limits[1], "1 ± ε", ha="center", va="bottom", color="0.4", fontsize=8)
        axes.set(xlim=(0, 3), ylim=limits, xlabel=r"ratio $\pi(y|x)\,/\,\mu(y|x)$")
        axes.set_title(f"R = {reward}", loc="left")
        _quiet(axes)
    panels[0].set_ylabel("objective")
    panels[0].legend(frameon=False, loc="lower right")
    return figure


def _quiet(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)


def write(folder: Path, convergence: dict[str, Any], curves: dict[str, Any]) -> list[Path]:
    """Both figures as PNG and PDF and the numbers as JSON; each file is there whole or not at all."""
    figures = {"agro_convergence": plot_convergence(convergence), "objectives": plot_objectives(curves)}
    written = []
    with disk_errors(f"write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            for kind, metadata in (("png", {}), ("pdf", {"CreationDate": None})):
                data = io.BytesIO()
                figure.savefig(data, format=kind, dpi=200, metadata=metadata)
                written.append(folder / f"{name}.{kind}")
                write_whole(written[-1], data.getvalue())
        numbers = {"agro_convergence": convergence, "objectives": curves}
        written.append(folder / "tabular.json")
        write_whole(written[-1], json.dumps(numbers).encode())
    return written


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m topr_exp.tabular", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/tabular"), metavar="FOLDER", help="default: %(default)s"
    )
    return exit_status(partial(draw, parser.parse_args(arguments).out))


def draw(folder: Path) -> int:
    """Draw, write, say what came out."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}") from None
    convergence = agro_convergence()
    files = write(folder, convergence, objectives())
    for name, values in convergence["final_kl"].items():
        print(f"{name}: KL to the optimal policy after {UPDATES} updates: {min(values):.2g} to {max(values):.2g}")
    print("\n".join(str(path) for path in files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
