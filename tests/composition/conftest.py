"""Settings of a composition without YAMLs."""

from typing import Any

from topr_exp.config.groups import ComposeConfig, ComposeName, Duplicates


def compose(name: str = "uniform", **changes: Any) -> ComposeConfig:
    """The settings of `compose=name`, with 16 pairs a problem unless they are changed."""
    if "duplicates" in changes:
        changes["duplicates"] = Duplicates(changes["duplicates"])
    return ComposeConfig(name=ComposeName[name], **{"pairs_per_problem": 16, **changes})
