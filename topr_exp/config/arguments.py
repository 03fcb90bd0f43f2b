"""A command line's words: Hydra's options, and the overrides that stand between them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from topr_exp import __version__

SWITCHES = ("--help -h", "--hydra-help", "--resolve", "--run -r", "--multirun -m", "--shell-completion -sc")
VALUES = ("--package -p", "--config-path -cp", "--config-name -cn", "--config-dir -cd", "--experimental-rerun")
INFO = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]


def parse(words: Sequence[str], program: str = "python -m topr_exp") -> Namespace:
    """The options by name, and `overrides`; exits with status 2 for an option that Hydra does not have."""
    parser = ArgumentParser(prog=program, add_help=False)
    for flags in SWITCHES:
        parser.add_argument(*flags.split(), action="store_true")
    for flags in VALUES:
        parser.add_argument(*flags.split())
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    parser.add_argument("--info", "-i", const="all", nargs="?", choices=INFO)
    parser.add_argument("--version", action="version", version=f"topr_exp {__version__}")
    parser.add_argument("overrides", nargs="*")
    return parser.parse_intermixed_args(words)
