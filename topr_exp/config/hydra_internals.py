"""Hydra's internals that this package uses, for which Hydra has no public way; pyproject.toml limits its version.

`get_args_parser`: the options of Hydra's command line, without running a job. `BasicSweeper.split_arguments`: the runs
of a sweep in Hydra's order, checked before any starts.
"""

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser

__all__ = ["BasicSweeper", "get_args_parser"]
