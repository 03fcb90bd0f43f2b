"""Settings as dataclasses: checked and built from plain values, made plain again, and the identity of a run.

The identity is the settings that decide a run's result; its folder is named by them. pydantic would not do: of a user's
own dataclass it ignores unknown keys and takes "1" and true for numbers (`TypeAdapter(Mine).validate_python`), or it
makes another class of it; and its import and 14 schemas add 0.24 s to the 0.65 s of processor time of `--help`.
"""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from topr_exp.types import ConfigError, has_half_pair

# Settings of where and how fast a run computes and what it reports.
NOT_IDENTITY = frozenset({
    "name", "dry_run", "overwrite", "output_dir", "cluster", "tracking", "checkpoint",
    "sampler.python", "sampler.gpu_memory_utilization", "sampler.sleep",
    "optim.micro_batch_size", "optim.gradient_checkpointing", "optim.compile",
})  # fmt: skip

WORD = re.compile(r"[\w./-]+")  # a text that needs no quotes in a list, unless it is one of
NO_TEXTS = frozenset({"null", "true", "false"})


@dataclass(frozen=True)
class Range:
    """The values that a key may have: in the words of an error line, and as a test of one value."""

    allowed: str
    holds: Callable[[Any], bool]


def at_least(minimum: float, allowed: str = "") -> Range:
    """The numbers from a minimum on; allowed: other words for them."""
    return Range(allowed or f"{minimum} or more", lambda value: bool(value >= minimum))


def above(limit: float, allowed: str = "") -> Range:
    """The numbers above a limit; allowed: other words for them."""
    return Range(allowed or f"above {limit}", lambda value: bool(value > limit))


def within(interval: str) -> Range:
    """The numbers of an interval as it is written, such as "(0, 1]"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    excluded_ends = set[float]()
    if interval.startswith("("):
        excluded_ends.add(low)
    if interval.endswith(")"):
        excluded_ends.add(high)

    def holds(value: float) -> bool:
        return low <= value <= high and value not in excluded_ends

    return Range(f"in {interval}", holds)


FINITE = Range("a finite number", math.isfinite)
Count = Annotated[int, at_least(1)]
OptionalCount = Annotated[int | None, at_least(1, "null or 1 or more")]
CountOrAll = Annotated[int | None, at_least(1, "null (all) or 1 or more")]
Seed = Annotated[int, at_least(0)]
NamedValues = Annotated[Any, Range("null or {NAME: VALUE}", lambda value: isinstance(value, Mapping))]
Rule = tuple[str, bool, str]  # the key (dotted within a group), whether its value is allowed, and what is allowed


class Section:
    """Base of the settings' dataclasses.

    A range stands in the annotation of its key, as in `n: Annotated[int, at_least(1)]`; null passes where the type
    allows it. Define a `Range` with a test of your own at module level. Rules about several keys follow in `check`.
    Both raise ValueError. A field has a default where that changes no result; what runs use stands in the YAMLs.
    """

    def __post_init__(self) -> None:
        schema: Any = type(self)
        for name, range_ in ranges(schema):
            value = getattr(self, name)
            if value is not None and not range_.holds(value):
                raise ConfigError(f"{name} must be {range_.allowed}; got {show(value) or 'nothing'}")
        for key, holds, allowed in self.check() or ():
            if not holds:
                text = show(attrgetter(key)(self)) or "nothing"
                raise ConfigError(f"{key.removesuffix('.name')} must be {allowed}; got {text}")

    def check(self) -> Iterable[Rule] | None:
        """Yield the rules about several keys, each of which must hold; or raise ValueError."""


@functools.cache
def ranges(schema: Any) -> list[tuple[str, Range]]:
    """The ranges of the keys that have one, in the order of the keys.

    A range within an annotation, as in `Count | None`, is refused: nothing would apply it.
    """
    hints = typing.get_type_hints(schema, include_extras=True)
    ranges_by_key = []
    for name, hint in hints.items():
        if typing.get_origin(hint) is not ClassVar and has_inner_range(hint):
            raise ConfigError(
                f"{name}: a range within a type is not applied; write Annotated[WHOLE TYPE, RANGE], as in "
                "Annotated[int | None, at_least(1)]"
            )
        for range_ in getattr(hint, "__metadata__", ()):  # what Annotated has beside the type
            ranges_by_key.append((name, range_))
    return ranges_by_key


def has_inner_range(hint: Any) -> bool:
    """True for an annotation with a range on a part of its type alone: of a union, a list or a dict."""
    annotated_type = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    for part in typing.get_args(annotated_type):
        metadata = getattr(part, "__metadata__", ())
        if any(isinstance(item, Range) for item in metadata) or has_inner_range(part):
            return True
    return False


def build(schema: Any, values: Any, prefix: str) -> Any:
    """An instance of the dataclass `schema` from `values`, each checked against its annotation.

    Raises ConfigError with one line: the key (with `prefix`), what was given, what is allowed.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{prefix.rstrip('.')}={values}: expected a group of settings, such as {prefix}name=...")
    hints = hints_of(schema)
    fields = {field.name: field for field in dataclasses.fields(schema) if field.init}
    for key in values:
        if key not in fields:
            raise ConfigError(f"nothing reads {prefix}{key} here; allowed: {', '.join(fields)}")
    checked = {key: convert(f"{prefix}{key}", value, hints[key]) for key, value in values.items()}
    for name, field in fields.items():
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and name not in checked:
            raise ConfigError(f"{prefix}{name} is not set")
    try:
        return schema(**checked)
    except ValueError as error:
        raise ConfigError(f"{prefix}{first_line(error)}") from None


@functools.cache
def hints_of(schema: Any) -> dict[str, Any]:
    """The types of a dataclass's fields by name, without what else their annotations hold."""
    hints = typing.get_type_hints(schema)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def options_of(hint: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return typing.get_args(hint)
    return (hint,)


def convert(key: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` asks; whole numbers pass as numbers, nothing else is converted."""
    options = options_of(hint)
    is_bool = isinstance(value, bool)  # which for Python is an int, too
    if isinstance(value, str):
        refuse_strange_characters(key, value)
    for option in options:
        kind = typing.get_origin(option) or option
        if choices := choices_of(option):
            for choice in choices:
                if type(value) is type(choice) and value == choice:
                    return value
        elif kind is float:  # what YAML calls infinity is text on Hydra's command line
            if value == ".inf":
                return math.inf
            if isinstance(value, (int, float)) and not is_bool and not math.isnan(value):
                return float(value)
        elif dataclasses.is_dataclass(kind) and isinstance(value, dict):  # a group within a group
            return build(kind, value, f"{key}.")
        elif kind in (list, dict) and isinstance(value, kind):
            return convert_items(key, value, option)
        elif kind is Any or (isinstance(value, kind) and is_bool == (kind is bool)):
            return value
    raise wrong_type(key, value, options)


def refuse_strange_characters(key: str, text: str) -> None:
    """Raise ConfigError for a text that no file, or no name of one, can hold."""
    if has_half_pair(text):
        raise ConfigError(f"{key}={text!a}: expected UTF-8; half of a surrogate pair is no character")
    if "\0" in text:
        raise ConfigError(f"{key}={text!a}: expected a text without NUL, which no name of a file can hold")


def convert_items(key: str, values: list[Any] | dict[Any, Any], option: Any) -> list[Any] | dict[Any, Any]:
    """A list or a dict, each of its values converted to the type that `option` has for them, if any."""
    item_hint: Any = Any
    if typing.get_args(option):
        item_hint = typing.get_args(option)[-1]  # of a dict the first one is its keys'
    if isinstance(values, list):
        return [convert(f"{key}[{index}]", item, item_hint) for index, item in enumerate(values)]
    converted = {}
    for name, item in values.items():
        converted[name] = convert(f"{key}.{name}", item, item_hint)
    return converted


def wrong_type(key: str, value: Any, options: Collection[Any]) -> ConfigError:
    """The error for a value that is of none of the types that are allowed."""
    advice = ""
    if str in options and isinstance(value, (bool, int, float)):  # such as 007, of which 7 is left
        advice = "; a text that looks like a number needs quotes"
    wants_number = int in options or float in options
    if isinstance(value, str) and wants_number and is_number(value):
        advice = (
            "; it is a text, as is each number in quotes, after a 0 or from ${oc.env:NAME} "
            "(a YAML makes it a number by ${oc.decode:${oc.env:NAME}})"
        )
    expected = " or ".join(map(describe, options))
    return ConfigError(f"{key}={show(value)}: expected {expected}{advice}")


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def choices_of(option: Any) -> Collection[Any]:
    """The values that a Literal lists; none of another type."""
    if typing.get_origin(option) is Literal:
        return typing.get_args(option)
    return ()


def describe(option: Any) -> str:
    """A type in a user's words."""
    if choices := choices_of(option):
        return "one of " + ", ".join(map(show, choices))
    if dataclasses.is_dataclass(option):
        keys = [f"{field.name}: ..." for field in dataclasses.fields(option)]
        return f"{{{', '.join(keys)}}}"
    if typing.get_origin(option) is dict or (isinstance(option, type) and issubclass(option, Section)):
        return "{_target_: package.module.name}"
    if typing.get_origin(option) is list:
        (item,) = typing.get_args(option)
        if item is str:
            return "a list of texts, as in [a, b]"
        if dataclasses.is_dataclass(item):
            return f"a list, as in [{describe(item)}]"
        return "a list, as in [1, 2]"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(option, str(option))


def drop_keys(values: Mapping[Any, Any], *keys: str) -> dict[Any, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def plain(value: Any) -> Any:
    """A config object as JSON-ready values; infinities become the strings ".inf" and "-.inf", as in YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        if target := class_path(value):
            return {"_target_": target, **values}
        return values
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        if value > 0:
            return ".inf"
        return "-.inf"
    return value


def literal(value: Any) -> Any:
    """A value in which OmegaConf computes nothing: `${oc.env:SECRET}` stays these words."""
    if isinstance(value, dict):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [literal(item) for item in value]
    if isinstance(value, str):
        # OmegaConf takes a backslash before ${ as its escape, and two backslashes there as one.
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    return value


def flatten(value: Any, leaves: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested settings by dotted key.

    leaves: dotted keys that hold null or nothing in some run. A group there, below the first level, is also yielded
    whole, before its own leaves, so that both runs have a value of that key.
    """
    for key, item in value.items():
        name = f"{prefix}{key}"
        is_group = isinstance(item, dict) and bool(item)
        if not is_group or (prefix and name in leaves):
            yield name, item
        if is_group:
            yield from flatten(item, leaves, f"{name}.")


def class_path(value: Any) -> str | None:
    """The `_target_` of a loss, a source, a user's sampler or a staleness policy; None for any other settings."""
    kind = type(value)
    has_method = any(callable(getattr(kind, name, None)) for name in ("problems", "build_sampler", "rank"))
    if has_method or hasattr(kind, "needs"):
        return f"{kind.__module__}.{kind.__qualname__}"
    return None


def show(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, str):
        return value
    return show_item(plain(value))


def show_item(value: Any) -> str:
    """A plain value as it is written in a list or a group: a text in quotes, unless it is a word."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(show_item, value))}]"
    if isinstance(value, dict):
        pairs = [f"{show_item(key)}: {show_item(item)}" for key, item in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str) and (not WORD.fullmatch(value) or value in NO_TEXTS or is_number(value)):
        return repr(value)
    return str(value)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- identity


def identity(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The settings that decide a result, as plain values: of a run, or of its group whose keys begin with `prefix`.

    A neutral value, null or the field's default, is no part of it. THE RULE FOR A NEW KEY or group: its default changes
    no result, so that runs keep their folders and go on. For the same reason a section's `retired_settings` has the
    values of keys that it had in earlier releases. The package's classes go by name: their modules may move.
    """
    target = class_path(settings)
    values: dict[str, Any] = {}
    if target:
        values["_target_"] = re.sub(r"^topr_exp\..*\.", "", target)
    values |= getattr(settings, "retired_settings", {})
    for field, key, value in identity_settings(settings, prefix):
        if dataclasses.is_dataclass(value):
            values[field.name] = identity(value, f"{key}.")
        else:
            values[field.name] = plain(value)
    return values


class Setting(NamedTuple):
    """A field of a group's dataclass with its dotted key and its value."""

    field: dataclasses.Field[Any]
    key: str
    value: Any


def identity_settings(settings: Any, prefix: str) -> Iterator[Setting]:
    """Yield the settings of a group that are part of the identity."""
    for field in dataclasses.fields(settings):
        key = f"{prefix}{field.name}"
        value = getattr(settings, field.name)
        if key not in NOT_IDENTITY and value is not None and value != default_of(field):
            yield Setting(field, key, value)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, also of a list or a group, which a dataclass has made; MISSING where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
