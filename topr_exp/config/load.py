"""Builds a run's settings from what Hydra composed, and checks them.

A mistake raises `ConfigError` with one line: the key, what was given, what is allowed. Nothing heavy is imported, and
no file is read.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import topr_exp
from topr_exp.algorithms.base import NEEDS, Loss
from topr_exp.config import cluster, model
from topr_exp.config.data import SOURCES, DataConfig, Reward
from topr_exp.config.rules import check_rules
from topr_exp.config.schema import build, convert, first_line, hints_of, options_of
from topr_exp.config.settings import Config
from topr_exp.types import ConfigError

# Groups whose choices have different settings, by the choice's name.
CHOICES: dict[str, dict[str, Any]] = {"cluster": cluster.SCHEMAS, "sampler": model.SAMPLERS}


def unknown_key(key: str, known: Iterable[str] = ()) -> ConfigError:
    """The error for a key that nothing reads, with the nearest of all keys; known: those that stand beside it."""
    sources = {choice: class_of("data", target) for choice, target in SOURCES.items()}
    groups = {**CHOICES, "data": sources}
    readers = {f"{group}.{field.name}": f"{group}={choice}" for group, schemas in groups.items()
               for choice, schema in schemas.items() for field in dataclasses.fields(schema)}  # fmt: skip
    if key in readers:
        return ConfigError(f"nothing reads {key} here; {readers[key]} does")
    sections = {group: schema for group, schema in hints_of(Config).items() if dataclasses.is_dataclass(schema)}
    names = [*known, *hints_of(Config), *readers]
    names += [f"{group}.{field.name}" for group, schema in sections.items() for field in dataclasses.fields(schema)]
    last = {"learning_rate": "lr"}.get(key.rpartition(".")[2], key.rpartition(".")[2])
    # Keys of the same depth: "algorithm" is nearer to "algo" than to "algo.ratio".
    level = [name for name in names if name.count(".") == key.count(".")]
    same = [name for name in names if name.rpartition(".")[2] == last]
    near = same or difflib.get_close_matches(key, level, cutoff=0.75 if "." in key else 0.6)
    hint = f"; did you mean {near[0]}?" if near else f" here; allowed: {', '.join(known)}" if known else ""
    return ConfigError(f"nothing reads {key}{hint}")


def is_text(key: str, composed: DictConfig) -> bool:
    """True if the setting at a dotted key is a text (or a list of them), so that no number is meant."""
    group, _, name = key.partition(".")
    schema = schema_of(group, composed) if name else Config
    hint = hints_of(schema).get(name or group) if dataclasses.is_dataclass(schema) else None
    return any(option in (str, list[str]) for option in options_of(hint))


def schema_of(group: str, composed: DictConfig) -> Any:
    """The dataclass of a group as it is composed; None where there is none."""
    name, target = (OmegaConf.select(composed, f"{group}.{key}") for key in ("name", "_target_"))
    if group in CHOICES:
        return CHOICES[group].get(str(name))
    if target is not None:
        return class_of(group, target)
    return hints_of(Config).get(group)


def load(composed: DictConfig) -> Config:
    """Check what Hydra composed and build the run's settings.

    Raises ConfigError (one line) for unknown or missing keys, wrong types, values out of range, settings that
    exclude each other. Files, folders and machines are not looked at: that is `runs.preflight`.
    """
    hints = hints_of(Config)
    sections: dict[str, Any] = {}
    # Groups last: many take a plain key's value over (sampler.seed is seed's), and the mistake is in that.
    for key, value in sorted(resolved(composed).items(), key=lambda item: isinstance(item[1], dict)):
        if key not in hints:
            raise unknown_key(str(key))
        if key in ("algo", "data"):
            sections[key] = build_algorithm(value) if key == "algo" else build_source(value)
        elif dataclasses.is_dataclass(hints[key]):
            sections[key] = build_section(key, value)
        else:
            convert(key, value, hints[key])
            sections[key] = value
    config: Config = build(Config, sections, "", unknown_key)
    try:
        check_rules(config)
    except ValueError as error:
        raise ConfigError(first_line(error)) from None
    return config


def resolved(composed: DictConfig) -> dict[str, Any]:
    """The composed values with `${...}` computed, without Hydra's own and what `optim.lr` was interpolated from."""
    try:
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, ConfigError):
            inner = inner.__context__
        # A resolver of ours has named the key itself.
        raise ConfigError(inner or f"{error.full_key}: {first_line(error)}") from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key not in ("hydra", "learning_rates")}


def build_section(group: str, values: Any) -> Any:
    """The settings of a group, checked; where its choices have different ones, `name` says which."""
    schema = hints_of(Config)[group]
    if group in CHOICES:
        name = values.get("name") if isinstance(values, dict) else values
        if str(name) not in CHOICES[group]:
            raise ConfigError(f"{group}.name={name}: expected one of {', '.join(CHOICES[group])}")
        schema = CHOICES[group][str(name)]
    return build(schema, values, f"{group}.", unknown_key)


def class_of(group: str, target: Any) -> Any:
    """Import the class that `_target_` of a group names; ConfigError where there is none."""
    if not isinstance(target, str):
        raise ConfigError(f"{group}._target_ must name a class, as in package.module.Class; got {target}")
    module, _, name = target.rpartition(".")
    try:
        return getattr(topr_exp.import_own(module), name)
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"{group}._target_={target}: {type(error).__name__}: {first_line(error)}") from None


def build_source(values: Any) -> Any:
    """The source of problems that `data._target_` names, with its fields checked."""
    if not isinstance(values, dict):
        return build(DataConfig, values, "data.", unknown_key)
    target = values.get("_target_")
    schema = class_of("data", target)
    if not (isinstance(schema, type) and issubclass(schema, DataConfig) and not inspect.isabstract(schema)):
        what = "not a source of problems (a dataclass below topr_exp.config.data.DataConfig with `problems`)"
        raise ConfigError(f"data._target_={target}: {what}")
    fields = {field.name for field in dataclasses.fields(schema)}
    left_out = {"_target_"}
    if "source" not in fields and values.get("source") in ("embedded", "hub"):
        left_out.add("source")  # of the benchmarks; a model's YAML says which of the two goes with it
    return build(schema, {key: value for key, value in values.items() if key not in left_out}, "data.", unknown_key)


def build_algorithm(values: Any) -> Any:
    """The loss that `algo._target_` names, with its fields and what it declares checked."""
    target = values.get("_target_") if isinstance(values, dict) else None
    schema = class_of("algo", target)
    if not (dataclasses.is_dataclass(schema) and hasattr(schema, "needs") and hasattr(schema, "uses_baseline")):
        raise ConfigError(f"algo._target_={target}: not a loss (a dataclass with `needs` and `uses_baseline`)")
    loss = build(schema, {key: value for key, value in values.items() if key != "_target_"}, "algo.", unknown_key)
    if problem := broken_contract(loss):
        raise ConfigError(f"algo._target_={target}: {problem}")
    return loss


def broken_contract(loss: Any) -> str | None:
    """Find a declaration of a loss that nothing here understands; None where all is understood."""
    if not isinstance(loss, Loss):
        return "not a loss (it needs `name` and `__call__`)"
    if not isinstance(loss.needs, (set, frozenset)):
        return f"needs must be a set of names; got {loss.needs!r}"
    if unknown := sorted(map(str, loss.needs - NEEDS.keys())):
        return f"needs {unknown[0]}, which nothing provides; allowed: {', '.join(NEEDS)}"
    rewards = getattr(loss, "rewards", Reward.pm1.name)
    two = [name for name in Reward.__members__ if name != Reward.graded.name]  # which a loss may ask for
    if rewards not in two:
        return f"rewards={rewards}: expected one of {', '.join(two)}"
    return None
