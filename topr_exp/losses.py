"""`python -m topr_exp.losses [NAME ...]`: each loss, and the weight of a completion in it by the policy's change.

The weight of a completion is the gradient on its log-probability (up if correct, down if not), summed over its tokens
and relative to π = μ: 1 is full weight, 0 none, below 0 the wrong direction. Δ = log π − log μ of the whole completion,
spread evenly over its tokens. The group has one more completion, with the other verdict and Δ = 0.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial

from topr_exp.algorithms.base import Loss
from topr_exp.config.load import loss_of_yaml
from topr_exp.config.yamls import OwnFolder, loss_files
from topr_exp.runtime.exit_status import command_parser, exit_status, user_path
from topr_exp.runtime.terminal import plural
from topr_exp.types import ConfigError

DELTAS = (-30.0, -10.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 10.0, 30.0)
LENGTHS = (1, 10, 100)  # tokens of a completion
PICTURES = (".png", ".pdf", ".svg")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = command_parser("topr_exp.losses", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="losses (default: all)")
    parser.add_argument("--config-dir", metavar="FOLDER", help="your own YAMLs, as for python -m topr_exp")
    parser.add_argument("--plot", type=user_path, metavar="FILE", help="also draw the weights (png, pdf, svg)")
    return exit_status(partial(print_losses, parser.parse_args(arguments)))


def print_losses(options: argparse.Namespace) -> int:
    """Print what the losses are and their weights; with --plot draw these, too."""
    if options.plot is not None and options.plot.suffix.lower() not in PICTURES:
        raise ConfigError(f"--plot must be a .png, .pdf or .svg file; got {options.plot}")
    OwnFolder.use(options.config_dir)
    losses = load_losses(options.names)
    for name, loss in losses.items():
        print(f"{name:<18}{arxiv(loss):<18}{', '.join(traits(loss))}")
    print_weights(losses)
    if options.plot is not None:
        from topr_exp.report.loss_figure import draw

        draw(losses, options.plot)
    return 0


def load_losses(names: list[str]) -> dict[str, Loss]:
    """The losses of these names, or all; ConfigError for a name that no YAML has."""
    files = loss_files()
    for name in names:
        if name not in files:
            raise ConfigError(f"no loss is called {name}; allowed: {', '.join(files)}")
    return {name: loss_of_yaml(files[name]) for name in names or files}


def arxiv(loss: Loss) -> str:
    """The paper of a loss as `arXiv NUMBER`; empty for a loss without one."""
    if loss.paper is None or not loss.paper.arxiv:
        return ""
    return f"arXiv {loss.paper.arxiv}"


def traits(loss: Loss) -> list[str]:
    """List what a loss needs and how it differs from REINFORCE with rewards of 1 and -1."""
    words = {
        "drops tokens": loss.drops_tokens,
        "rewards 1 and 0": loss.rewards == "zero_one",
        "no baseline": not loss.uses_baseline,
        "no μ": not loss.needs_mu,
    }
    differences = [word for word, holds in words.items() if holds]
    return differences + sorted(loss.needs)


def print_weights(losses: Mapping[str, Loss]) -> None:
    """Print a table of weights for correct and incorrect completions of each length."""
    from topr_exp.report.loss_weights import weights

    for verdict, is_correct in (("correct", True), ("incorrect", False)):
        for length in LENGTHS:
            print(f"\n{verdict} completions of {plural(length, 'token')}, by Δ")
            titles = "".join(f"{delta:>9g}" for delta in DELTAS)
            print(f"{'':<18}{titles}")
            for name, loss in losses.items():
                row = weights(loss, is_correct=is_correct, length=length, deltas=DELTAS)
                cells = "".join(f"{weight:>9.2g}" for weight in row)
                print(f"{name:<18}{cells}")


if __name__ == "__main__":
    sys.exit(main())
