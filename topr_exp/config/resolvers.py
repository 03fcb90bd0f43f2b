"""Folder of the YAMLs, and the resolvers in them: `${size:...}` and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from topr_exp.config.model import Size
from topr_exp.config.schema import show
from topr_exp.types import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


def size(tiny: Any, large: Any, *, _root_: Any) -> Any:
    """`${size:TINY,LARGE}` in a YAML: as the model's YAML says."""
    by_size, given = {Size.tiny.name: tiny, Size.large.name: large}, OmegaConf.select(_root_, "model.size")
    if given not in by_size:
        raise ConfigError(f"model.size={show(given)}: expected {' or '.join(by_size)}, in the model's YAML")
    return by_size[given]


def quotient(whole: int, part: int) -> int:
    """`${quotient:WHOLE,PART}` in a YAML."""
    if whole % part:
        raise ConfigError(f"{part}: expected a divisor of {whole}")
    return whole // part


def below_float32(precision: str) -> bool:
    """`${below_float32:PRECISION}` in a YAML."""
    return precision != "float32"


OmegaConf.register_new_resolver("below_float32", below_float32, replace=True)
OmegaConf.register_new_resolver("size", size, replace=True)
OmegaConf.register_new_resolver("product", lambda a, b: a * b, replace=True)
OmegaConf.register_new_resolver("quotient", quotient, replace=True)
