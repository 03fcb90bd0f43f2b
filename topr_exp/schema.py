"""Dataclasses from plain values and back: names, types and ranges are the dataclass's, a mistake is one line.

`build` raises ConfigError: the key, what was given, what is allowed.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from topr_exp.types import ConfigError


def build(schema: Any, values: Any, prefix: str, unknown: Callable[[str, list[str]], ConfigError]) -> Any:
    """An instance of the dataclass `schema` from `values`, each checked against its annotation.

    Keys are named with `prefix`; `unknown` gives the error for one that is no field, from it and the fields' keys.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{prefix.rstrip('.')}={values}: expected a group of settings, such as {prefix}name=...")
    hints = typing.get_type_hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema) if field.init}
    for key in values:
        if key not in fields:
            raise unknown(f"{prefix}{key}", [f"{prefix}{name}" for name in fields])
    checked = {key: convert(f"{prefix}{key}", value, hints[key]) for key, value in values.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in checked:
            raise ConfigError(f"{prefix}{name} is not set")
    try:
        return schema(**checked)
    except ValueError as error:
        raise ConfigError(f"{prefix}{first_line(error)}") from None


def convert(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` asks; whole numbers pass as numbers, nothing else is converted."""
    is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if is_union else (hint,)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    for option in options:
        if option is Any:
            return value
        if dataclasses.is_dataclass(option) and isinstance(option, type) and isinstance(value, option):
            return value
        if option is type(None) and value is None:
            return None
        if option is bool and isinstance(value, bool):
            return value
        if option is int and number and isinstance(value, int):
            return value
        if option is float and number and not math.isnan(value):
            return float(value)
        if option is float and value == ".inf":  # what YAML calls infinity is text on Hydra's command line
            return math.inf
        if option is str and (number or isinstance(value, str)):
            return str(value)
        if isinstance(option, type) and issubclass(option, Enum) and value in option.__members__:
            return option[value]
        if typing.get_origin(option) is list and isinstance(value, list):
            return [convert(f"{key}[{i}]", item, typing.get_args(option)[0]) for i, item in enumerate(value)]
    raise ConfigError(f"{key}={show(value)}: expected {' or '.join(describe(option) for option in options)}")


def describe(option: Any) -> str:
    """A type in a user's words."""
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
    if isinstance(option, type) and issubclass(option, Enum):
        return "one of " + ", ".join(option.__members__)
    if typing.get_origin(option) is list:
        return "a list of texts, as in [a, b]" if typing.get_args(option) == (str,) else "a list, as in [1, 2]"
    return words.get(option, str(option))


def plain(value: Any) -> Any:
    """A config object as JSON-ready values; infinities become the strings ".inf" and "-.inf", as in YAML."""
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if hasattr(type(value), "needs"):  # a loss, whose class is a setting too
            values = {"_target_": f"{type(value).__module__}.{type(value).__qualname__}", **values}
        return values
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    return value


def show(value: Any) -> str:
    """A value as it is written on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
