"""Where the YAMLs lie, and what they may compute: `${size:...}` and the like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from topr_exp.types import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
SHIPPED = ("tiny", "tiny_long", "tiny_noise", "tiny_tasks", "tiny_verifier")  # models of a size that any CPU trains


def size(tiny: Any, paper: Any, *, _root_: Any) -> Any:
    """`${size:TINY,PAPER}` in a YAML: the first for the tiny models, the second for all others."""
    return tiny if _root_.model.name in SHIPPED else paper


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
