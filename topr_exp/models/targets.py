"""Check by names alone that a model has the layers of `model.lora.targets`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from topr_exp.config.model import ALL_LINEAR, LoRA
from topr_exp.types import ConfigError


def check_targets(lora: LoRA, layers: Iterable[str]) -> None:
    """Raise ConfigError for a target that is no linear layer of a block, with the nearest one that is.

    layers: the names of the model's modules that have a matrix. Those of blocks have a number in them, which embeddings
    and the output layer lack. Like peft, a target is a module's whole name or its end.
    """
    names = [name for name in layers if any(part.isdigit() for part in name.split("."))]
    ends = sorted({name.rpartition(".")[2] for name in names})
    for target in lora.names:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            near = difflib.get_close_matches(target, ends, n=1) or difflib.get_close_matches(target, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"model.lora.targets={target}: no linear layer of the model's blocks{hint} (allowed: {ALL_LINEAR}, or "
                f"some of {', '.join(ends)})"
            )
