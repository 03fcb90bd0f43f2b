"""Where the YAMLs lie, and what they may compute: `${size:...}` and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from topr_exp.config.model import Size
from topr_exp.config.schema import show
from topr_exp.types import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
LEARNING_RATES = CONF / "learning_rates.json"


def learning_rate(model: str | None, algo: str) -> float:
    """`${learning_rate:ENTRY,ALGO}` in a YAML: what was chosen by validation problems (experiment=learning_rates)."""
    chosen = json.loads(LEARNING_RATES.read_text(encoding="utf-8")).get(model, {})
    try:
        return float(chosen[algo] if isinstance(chosen, dict) else chosen)
    except KeyError:
        raise ConfigError(
            f"optim.lr: none was chosen for algo={algo} on model.learning_rates={show(model)}; set one"
        ) from None


def learning_rate_by_length(*, _root_: Any) -> float:
    """`${learning_rate_by_length:}` in a YAML: the same by turns of the story and loss (experiment=length_rates)."""
    name, path = _root_.algo.name, CONF / "algo" / f"{_root_.algo.name}.yaml"
    usual: Any = OmegaConf.load(path) if path.is_file() else {}
    changed = {key: value for key, value in _root_.algo.items() if value != usual.get(key)}
    return learning_rate(f"{_root_.model.learning_rates}, {_root_.data.turns} turns", loss_name(name, changed))


WIDTHS = ("eps_low", "tau", "cap", "c1_pos")  # what is changed for another width of a loss, one key of each


def loss_name(algo: str, changed: Mapping[str, Any]) -> str:
    """What conf/learning_rates.json calls a loss on long answers: an algorithm and what of these is not its YAML's."""
    ratio = [f"{changed['ratio']} ratio"] if "ratio" in changed else []
    return ", ".join([algo, *ratio, *(f"{key} {changed[key]:g}" for key in WIDTHS if key in changed)])


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
OmegaConf.register_new_resolver("learning_rate", learning_rate, replace=True)
OmegaConf.register_new_resolver("learning_rate_by_length", learning_rate_by_length, replace=True)
OmegaConf.register_new_resolver("size", size, replace=True)
OmegaConf.register_new_resolver("product", lambda a, b: a * b, replace=True)
OmegaConf.register_new_resolver("quotient", quotient, replace=True)
