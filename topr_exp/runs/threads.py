"""The number of CPU threads that a run computes with."""

from __future__ import annotations

import torch

from topr_exp.config.settings import Config
from topr_exp.runs.console import warn
from topr_exp.runs.folder import RunFolder


def keep_threads(config: Config, folder: RunFolder) -> None:
    """Compute with as many CPU threads as the run was begun with, since their number decides the last digits."""
    before, now = (folder.read("environment.json") or {}).get("threads"), torch.get_num_threads()
    if before is None or before == now:
        return
    if config.cluster.threads is None:
        torch.set_num_threads(before)
    else:
        warn(f"the run was begun with cluster.threads={before}; with {now} its last digits may differ")
