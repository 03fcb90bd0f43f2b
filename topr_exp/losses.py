"""`python -m topr_exp.losses [NAME ...]`: the weight of an answer in each loss, by the policy's change.

The weight of an answer is the gradient on its log-probability (up if right, down if wrong), summed over its tokens and
relative to π = μ: 1 is full weight, 0 none, below 0 the wrong direction. Δ = log π − log μ of the whole answer, spread
evenly over its tokens. The group has one more answer, with the other verdict and Δ = 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.config.load import loss_of_yaml
from topr_exp.config.yamls import loss_files, use_own_folder
from topr_exp.runtime.exit_status import command_parser, exit_status
from topr_exp.runtime.files import disk_errors
from topr_exp.types import Batch, ConfigError, PairBatch, Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = NDArray[np.float64]

DELTAS = (-30.0, -10.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 10.0, 30.0)
LENGTHS = (1, 10, 100)
COLUMNS = 5  # of the picture
POINTS = 201  # of a line
SHOWN = (-0.75, 3.25)  # weights in a panel


@dataclass(frozen=True)
class Axis:
    """An x axis of the picture, from −reach to reach: the Δ of an answer, or of each of its tokens."""

    title: str
    reach: float
    of_a_token: bool = False

    def places(self, points: int) -> Points:
        return np.linspace(-self.reach, self.reach, points)


AXES = (  # the last one for losses whose weights depend on length by either of the others
    Axis("Δ of an answer of any length", 5.0),
    Axis("Δ of each token, in an answer of any length", 1.5, of_a_token=True),
    Axis("Δ of an answer of 10 tokens", 5.0),
)


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


# ---- the picture


@dataclass(frozen=True)
class Panel:
    """Losses whose weights are the same, [points] of right and of wrong answers."""

    names: list[str]
    right: Points
    wrong: Points


def panels(losses: Mapping[str, Any]) -> dict[Axis, list[Panel]]:
    """Map each x axis to its panels: losses by what their weights depend on, those of equal weights together."""
    by_axis: dict[Axis, list[Panel]] = {axis: [] for axis in AXES}
    for name, loss in losses.items():
        axis = axis_of(loss)
        curves = curves_of(loss, 10, axis, POINTS)
        alike = [panel for panel in by_axis[axis] if are_equal(curves, np.stack([panel.right, panel.wrong]))]
        if alike:
            alike[0].names.append(name)
        else:
            by_axis[axis].append(Panel([name], *curves))
    return {axis: block for axis, block in by_axis.items() if block}


def axis_of(loss: Any) -> Axis:
    """The first axis along which an answer's weight is the same at every length, else the last axis."""
    for axis in AXES[:-1]:
        shortest, *longer = [curves_of(loss, tokens, axis, 31) for tokens in LENGTHS]
        if all(are_equal(shortest, curves) for curves in longer):
            return axis
    return AXES[-1]


def curves_of(loss: Any, tokens: int, axis: Axis, points: int) -> Points:
    """[2, points] weights of right and wrong answers along an axis."""
    deltas = axis.places(points) * (tokens if axis.of_a_token else 1)
    return np.array([weights(loss, right, tokens, deltas.tolist()) for right in (True, False)])


def are_equal(first: Points, second: Points) -> bool:
    """Check that weights agree wherever a panel shows them."""
    return np.allclose(np.clip(first, *SHOWN), np.clip(second, *SHOWN), atol=0.001)


def draw(losses: Mapping[str, Any], path: Path) -> None:
    """Write a picture of weights by log-ratio: a panel for losses of equal weights, a block for each x axis."""
    from matplotlib.figure import Figure

    blocks = panels(losses)
    columns = min(COLUMNS, max(map(len, blocks.values())))
    rows = [-(-len(block) // columns) for block in blocks.values()]
    figure = Figure(figsize=(2.2 * columns, 2.0 * sum(rows)), layout="constrained")
    parts = figure.subfigures(len(blocks), height_ratios=rows, squeeze=False)[:, 0]
    for part, row_count, (axis, block) in zip(parts, rows, blocks.items(), strict=True):
        cells = part.subplots(row_count, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for cell, panel in zip(cells, block, strict=False):
            draw_panel(cell, panel, axis.places(POINTS))
        for cell in cells[len(block) - columns : len(block)]:  # below which there is none
            cell.tick_params(labelbottom=True)
        for cell in cells[len(block) :]:
            cell.set_axis_off()
        part.supxlabel(axis.title, fontsize=10)
        part.supylabel("weight", fontsize=10)
    with disk_errors(f"write {path}"):
        figure.savefig(path, dpi=130)


def draw_panel(cell: Axes, panel: Panel, x: Points) -> None:
    """Draw the lines of a panel, with a name beside each."""
    cell.set_title("\n".join(wrap(", ".join(panel.names), 26)), fontsize=10)
    cell.set_ylim(*SHOWN)
    cell.tick_params(labelsize=8)
    cell.grid(color="0.92")
    if are_equal(panel.right, panel.wrong):
        draw_line(cell, x, panel.right, other=None, name="both", color="black")
        return
    draw_line(cell, x, panel.right, other=panel.wrong, name="right", color="#0072B2")
    draw_line(cell, x, panel.wrong, other=panel.right, name="wrong", color="#D55E00")


def draw_line(cell: Axes, x: Points, y: Points, *, other: Points | None, name: str, color: str) -> None:
    """Draw a line; its name stands where it is farthest from the other line, on the side turned away from that one."""
    cell.plot(x, y, color=color, linewidth=1.6)
    above, position = True, POINTS // 4
    if other is not None:
        has_room = (y > SHOWN[0] + 0.4) & (y < SHOWN[1] - 0.4) & (np.abs(x) < 0.75 * x[-1])
        distance = np.where(has_room, np.abs(np.clip(y - other, -1.5, 1.5)), -1.0)
        position = int(distance.argmax())
        above = bool(y[position] > other[position])
    slope = (y[position + 5] - y[position - 5]) * (1 if above else -1)
    horizontal = "center"
    if abs(slope) > 0.1:
        horizontal = "right" if slope > 0 else "left"
    cell.annotate(
        name, (x[position], y[position]), (0, 3 if above else -3), textcoords="offset points",
        ha=horizontal, va="bottom" if above else "top", color=color, fontsize=9,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
