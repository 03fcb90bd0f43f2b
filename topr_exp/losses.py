"""`python -m topr_exp.losses [NAME ...]`: the weight of an answer in each loss, by the policy's change.

The weight of an answer is the gradient on its log-probability (up if right, down if wrong), summed over its tokens and
relative to π = μ: 1 is full weight, 0 none, below 0 the wrong direction. Δ = log π − log μ of the whole answer, spread
evenly over its tokens. The group has one more answer, with the other verdict and Δ = 0.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from topr_exp.config.load import loss_of_yaml
from topr_exp.config.yamls import loss_files, use_own_folder
from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.files import disk_errors
from topr_exp.types import Batch, ConfigError, PairBatch, Tensor

DELTAS = (-30.0, -10.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 10.0, 30.0)
LENGTHS = (1, 10, 100)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = command_parser("topr_exp.losses", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="losses (default: all)")
    parser.add_argument("--config-dir", metavar="FOLDER", help="your own YAMLs, as for python -m topr_exp")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the weights (png, pdf, svg)")
    return exit_status(partial(show, parser.parse_args(arguments)))


def show(options: argparse.Namespace) -> int:
    if options.plot is not None and options.plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigError(f"--plot must be a .png, .pdf or .svg file; got {options.plot}")
    use_own_folder(options.config_dir)
    files = loss_files()
    if unknown := [name for name in options.names if name not in files]:
        raise ConfigError(f"no loss is called {unknown[0]}; allowed: {', '.join(files)}")
    losses = {name: loss_of_yaml(files[name]) for name in options.names or files}
    for name, loss in losses.items():
        drops = "drops tokens" if drops_tokens(loss) else ""
        print(f"{name:<18}{paper(name):<18}{drops:<14}{', '.join(sorted(loss.needs))}")
    for right in (True, False):
        for tokens in LENGTHS:
            print(f"\n{'right' if right else 'wrong'} answers of {tokens} tokens, by Δ")
            print(f"{'':<18}" + "".join(f"{delta:>9g}" for delta in DELTAS))
            for name, loss in losses.items():
                print(f"{name:<18}" + "".join(f"{value:>9.2g}" for value in weights(loss, right, tokens, DELTAS)))
    if options.plot is not None:
        draw(losses, options.plot)
    return 0


def drops_tokens(loss: Any) -> bool:
    """True for a loss that reports a share of dropped tokens or responses."""
    from topr_exp.training.contract import checked_output

    _, batch = made_up(loss, right=True, tokens=1, delta=0.0)
    return bool({"masked", "kept"} & checked_output(loss, batch).metrics.keys())


def paper(name: str) -> str:
    """The first paper that a loss's YAML names."""
    found = re.search(r"arXiv (\d{4}\.\d{5})", loss_files()[name].read_text(encoding="utf-8"))
    return f"arXiv {found[1]}" if found else ""


def weights(loss: Any, right: bool, tokens: int, deltas: Sequence[float]) -> list[float]:
    """The weight of an answer at each Δ, in shares of the larger of the pulls on a right and a wrong one at Δ = 0."""
    unit = max(abs(pulls(loss, verdict, tokens, [0.0])[0]) for verdict in (True, False))
    sign = 1 if right else -1
    return [sign * pull / unit + 0.0 for pull in pulls(loss, right, tokens, deltas)]


def pulls(loss: Any, right: bool, tokens: int, deltas: Sequence[float]) -> list[float]:
    """−∂loss/∂log π of an answer, summed over its tokens, at each Δ."""
    import torch

    from topr_exp.training.contract import checked_output

    found = []
    for delta in deltas:
        logp, batch = made_up(loss, right, tokens, delta)
        (gradient,) = torch.autograd.grad(checked_output(loss, batch).loss.sum(), logp)
        found.append(-float(gradient[0].sum()))
    return found


def made_up(loss: Any, right: bool, tokens: int, delta: float) -> tuple[Tensor, Batch | PairBatch]:
    """An answer at Δ, and one of the other verdict at 0, which is the reference too; [2, tokens] log π as a leaf."""
    import torch

    mu = torch.full((2, tokens), -1.0, dtype=torch.float64)
    logp = (mu + torch.tensor([[delta / tokens], [0.0]], dtype=torch.float64)).requires_grad_()
    correct, mask = torch.tensor([right, not right]), torch.ones(2, tokens, dtype=torch.bool)
    low = 0.0 if getattr(loss, "rewards", "pm1") == "zero_one" else -1.0
    reward = torch.where(correct, 1.0, low).double()
    if "pairs" in loss.needs:
        return logp, PairBatch(*(Batch(logp[i], mu[i], mask[i], reward[i], correct[i]) for i in (correct, ~correct)))
    batch = Batch(
        logp, mu, mask, reward, correct,
        group=torch.zeros(2, dtype=torch.int64), sample=torch.arange(2), group_mean=reward.mean().expand(2),
        group_std=reward.std().expand(2), group_size=torch.full((2,), 2), group_rewards=reward.expand(2, 2),
        old_logp=mu, ref_logp=mu, vocab_kl=torch.zeros_like(mu),
    )  # fmt: skip
    if callable(getattr(loss, "signals", None)):
        with torch.no_grad():
            batch = dataclasses.replace(batch, signals=loss.signals(batch))
    return logp, batch


def draw(losses: dict[str, Any], path: Path) -> None:
    """A panel a loss: weight against Δ, right and wrong, a line a length."""
    import matplotlib.pyplot as plt

    deltas = [step / 10 for step in range(-50, 51)]
    columns = min(6, len(losses))
    figure, axes = plt.subplots(-(-len(losses) // columns), columns, squeeze=False, sharex=True, sharey=True,
                                figsize=(2.2 * columns, 1.9 * -(-len(losses) // columns)))  # fmt: skip
    for axis in axes.flat[len(losses) :]:
        axis.axis("off")
    for axis, (name, loss) in zip(axes.flat, losses.items(), strict=False):
        for right, color, width, alpha in ((True, "tab:blue", 2.4, 0.5), (False, "tab:red", 1.0, 1.0)):
            for tokens, style in zip(LENGTHS, (":", "--", "-"), strict=True):
                points = weights(loss, right, tokens, deltas)
                axis.plot(deltas, points, style, color=color, linewidth=width, alpha=alpha)
        axis.set_title(name, fontsize=8)
        axis.set_ylim(-0.5, 3)
        axis.tick_params(labelsize=6)
    figure.supxlabel("Δ; blue: right, red: wrong; dotted, dashed, solid: 1, 10, 100 tokens", fontsize=8)
    figure.supylabel("weight", fontsize=8)
    figure.tight_layout()
    with disk_errors(f"write {path}"):
        figure.savefig(path, dpi=150)


if __name__ == "__main__":
    sys.exit(main())
