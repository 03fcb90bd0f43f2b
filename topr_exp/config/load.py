"""Settings of a run, built from what Hydra composed and checked; the resolvers of the YAMLs.

A mistake raises `ConfigError`, one line: key, value, what is allowed. Nothing heavy is imported and no file is read;
a model's YAML may choose the sampler by the machine (`config.sampler_choice`).
"""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from topr_exp.algorithms.base import NEEDS, Loss, Paper, Rewards
from topr_exp.algorithms.policy_gradient import PolicyGradient
from topr_exp.algorithms.topr import Tapered
from topr_exp.config.data import SOURCES, DataConfig
from topr_exp.config.model import SAMPLERS, SamplerConfig
from topr_exp.config.other_names import SETTING_BY_OTHER_NAME
from topr_exp.config.retired import refuse_retired
from topr_exp.config.sampler_choice import by_sampler, sampler_here
from topr_exp.config.settings import Config
from topr_exp.config.staleness import StalenessPolicy
from topr_exp.config.user_code import UserCodeError, import_user_module
from topr_exp.schema import build, convert, drop_keys, first_line, flatten, hints_of, literal, options_of, show
from topr_exp.types import ConfigError

VARIED_GROUPS = ("data", "cluster", "sampler")  # whose choices have different settings; losses have theirs by class
NAMED_BY_CHOICE = ("cluster.name", "compose.name", "task.name", "tracking.name")  # given as GROUP=CHOICE alone
VARIABLES = ("learning_rates", "preset")  # nodes of YAMLs that settings are interpolated from
INCLUDED = "defaults: [NAME, _self_]"
GLOBAL_HEADER = "# @package _global_"  # of a YAML that sets keys of several groups
MISSING_RATE = re.compile(r"'learning_rates\.(?P<place>\S+)\.(?P<loss>\S+)'")  # in OmegaConf's error
SETTINGS = tuple(hints_of(Config))  # the keys of a run, groups among them
SECTIONS = {key for key, schema in hints_of(Config).items() if dataclasses.is_dataclass(schema)}


def load(composed: DictConfig) -> Config:
    """Check what Hydra composed and build the run's settings.

    Raises ConfigError (one line) for unknown or missing keys, wrong types, values out of range, settings that
    exclude each other. Files, folders and machines are not looked at: that is `runs.preflight`.
    """
    hints = hints_of(Config)
    settings = dict[str, Any]()
    # Groups last: many take over the value of a plain key (sampler.seed is seed's), which an error has to name.
    for key, value in sorted(resolve(composed).items(), key=lambda item: isinstance(item[1], dict)):
        if key not in hints:
            [(first_leaf, _), *_] = flatten({key: value})
            raise unknown_key(first_leaf)
        if key in SECTIONS:
            settings[key] = build_section(key, value)
        else:
            convert(key, value, hints[key])  # raises for a wrong type
            settings[key] = value
    return build(Config, settings, "")


def load_stored(settings: Mapping[str, Any]) -> Config:
    """The settings of a run from its plain values, checked; what they say of `${...}` is not computed once more."""
    return load(OmegaConf.create(literal(settings)))


def resolve(composed: DictConfig) -> dict[str, Any]:
    """The composed values with `${...}` computed, without Hydra's own and what others are interpolated from."""
    try:
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(describe_interpolation_error(error)) from None
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key not in ("hydra", *VARIABLES)}


def describe_interpolation_error(error: OmegaConfBaseException) -> str:
    """Describe in a line why a value was not computed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConfigError):
        cause = cause.__context__
    if cause is not None:
        return str(cause)  # of one of our resolvers, which has named the key itself
    message = f"{error.full_key}: {first_line(error)}"
    missing_rate = MISSING_RATE.search(message)
    if error.full_key == "optim.lr" and missing_rate:
        fault = f"no learning rate was chosen for {missing_rate['loss']} on {missing_rate['place']}"
        return f"optim.lr: {fault}; set optim.lr"
    return message


def build_section(group: str, values: Any) -> Any:
    """The settings of a group, checked."""
    schema = schema_of(group, values)
    if isinstance(values, dict):  # `build` refuses anything else
        target = values.get("_target_")
        if names_class(group, values):
            values = drop_keys(values, "_target_")
        allowed_keys = [f"{group}.{field.name}" for field in dataclasses.fields(schema) if field.init]
        for name in values:
            key = f"{group}.{name}"
            if key not in allowed_keys:
                raise unknown_key(key, allowed_keys)
        if group == "schedule" and isinstance(values.get("when_stale"), dict):
            values = values | {"when_stale": build_policy(values["when_stale"])}
    section = build(schema, values, f"{group}.")
    if group == "algo" and (problem := broken_contract(section)):
        raise ConfigError(f"algo._target_={target}: {problem}")
    return section


def build_policy(settings: Mapping[str, Any]) -> StalenessPolicy:
    """The staleness policy that settings name; ConfigError where they name none."""
    key = "schedule.when_stale"
    return build(named_class(key, settings), drop_keys(settings, "_target_"), f"{key}.")


def loss_of_yaml(path: Path) -> Any:
    """The loss of a YAML, with its values and nothing that it sets elsewhere."""
    values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(values, dict)
    return build_section("algo", drop_keys(values, "defaults"))


def names_class(group: str, settings: Any) -> bool:
    """True for the settings of a group that name their own class, by its `_target_`."""
    if group == "sampler":
        return isinstance(settings, Mapping) and "_target_" in settings
    return group in ("algo", "data")


def schema_of(group: str, values: Any) -> Any:
    """The dataclass of a group's settings; ConfigError where they name none that there is."""
    settings = values if isinstance(values, Mapping) else {}
    if names_class(group, settings):
        return schema_of_class(group, settings)
    if group in VARIED_GROUPS:
        return schema_of_choice(group, values)
    return hints_of(Config)[group]


def schema_of_class(group: str, settings: Mapping[str, Any]) -> Any:
    """The dataclass of a group's settings that name it; of TOPR's the larger one where settings need that."""
    schema = named_class(group, settings)
    name = str(settings.get("name"))
    if group == "sampler" and name in SAMPLERS:
        package_names = ", ".join(SAMPLERS)
        raise ConfigError(f"sampler.name={name}: expected another name than {package_names} with sampler._target_")
    if schema is Tapered and not settings.keys() <= {"_target_", *hints_of(Tapered)}:
        return PolicyGradient  # which has the other settings too: masks, corrections, PPO's rule
    return schema


def schema_of_choice(group: str, values: Any) -> Any:
    """The dataclass of a group's settings by the choice that is their name; values other than settings are refused."""
    name = str(values)
    if isinstance(values, Mapping):
        if group in values:
            raise unknown_key(f"{group}.{group}")
        if "name" not in values:
            hint = f"a YAML may take what it leaves out from another, as by {INCLUDED}"
            raise ConfigError(f"{group}.name is not set; {hint}")
        name = str(values["name"])
    if group == "sampler" and ":" in name:
        raise ConfigError(f"sampler.name={name}: name the class as in sampler._target_={name.replace(':', '.')}")
    schemas = schemas_by_choice(group)
    if name not in schemas:
        raise ConfigError(f"{group}.name={name}: expected one of {', '.join(schemas)}")
    return schemas[name]


@dataclass(frozen=True)
class Contract:
    """Base and method of the classes that a setting may name by its `_target_`."""

    base: type
    method: str
    kind: str  # in words


CONTRACTS = {
    "algo": Contract(Loss, "__call__", "a loss"),
    "data": Contract(DataConfig, "problems", "a source of problems"),
    "sampler": Contract(SamplerConfig, "build_sampler", "the settings of a sampler"),
    "schedule.when_stale": Contract(StalenessPolicy, "rank", "a staleness policy"),
}


def named_class(key: str, settings: Mapping[str, Any]) -> Any:
    """The class that settings name by their `_target_`; ConfigError unless it keeps the contract of `key`."""
    contract = CONTRACTS[key]
    target = settings.get("_target_")
    schema = class_of(f"{key}._target_", target)
    is_below = isinstance(schema, type) and issubclass(schema, contract.base)
    if not is_below or not hasattr(schema, contract.method) or inspect.isabstract(schema):
        base = f"{contract.base.__module__}.{contract.base.__qualname__}"
        raise ConfigError(
            f"{key}._target_={target}: not {contract.kind} (a dataclass below {base} with `{contract.method}`)"
        )
    if lacks_decorator(schema):
        raise ConfigError(
            f"{key}._target_={target}: write @dataclass(frozen=True) above the class, whose fields are lost"
        )
    return schema


def lacks_decorator(schema: type) -> bool:
    """True for a class that adds fields to those of its base and is not made a dataclass itself."""
    if "__dataclass_fields__" in vars(schema):
        return False
    return any("ClassVar" not in str(hint) for hint in inspect.get_annotations(schema).values())


def class_of(key: str, target: Any) -> Any:
    """Import the class that a setting names; ConfigError where there is none."""
    if not isinstance(target, str):
        raise ConfigError(f"{key} must name a class, as in package.module.Class; got {show(target)}")
    if ":" in target:
        raise ConfigError(f"{key}={target}: write {key}={target.replace(':', '.')}")
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_user_module(module), name)
    except (UserCodeError, AttributeError) as error:
        raise ConfigError(f"{key}={target}: {first_line(error)}") from None


def broken_contract(loss: Loss) -> str | None:
    """Say which part of a loss's description nothing here understands; None where all is understood."""
    if not isinstance(loss.needs, (set, frozenset)):
        return f"needs must be a set of names; got {loss.needs!r}"
    if unknown := sorted(map(str, loss.needs - NEEDS.keys())):
        return f"needs {unknown[0]}, which nothing provides; allowed: {', '.join(NEEDS)}"
    if loss.rewards not in get_args(Rewards):
        return f"rewards={loss.rewards}: expected one of {', '.join(get_args(Rewards))}"
    if not isinstance(loss.papers, Mapping) or not all(isinstance(paper, Paper) for paper in loss.papers.values()):
        return f"papers must be a dictionary from names of losses to Paper(...); got {loss.papers!r}"
    schema = type(loss)
    if schema.signals is not Loss.signals and schema.signal_names is Loss.signal_names:
        return "signal_names must name the tensors that `signals` returns"
    return None


def is_text(key: str) -> bool:
    """True for a setting that is a text, or a list of them, so that no number is meant."""
    group, _, name = key.partition(".")
    if not name:
        hints = [hints_of(Config).get(key)]
    else:
        hints = [hints_of(schema).get(name) for schema in possible_schemas(group, name)]
    return any({str, list[str]} & {*options_of(hint)} for hint in hints)


def possible_schemas(group: str, name: str) -> list[Any]:
    """The dataclasses that a group with a setting `name` may have; none for losses: each class has its own."""
    if group == "data" and name in hints_of(DataConfig):
        return [DataConfig]  # without the import of a class for each choice
    if group in VARIED_GROUPS:
        return [*schemas_by_choice(group).values()]
    if group in SECTIONS - {"algo"}:
        return [hints_of(Config)[group]]
    return []


def schemas_by_choice(group: str) -> dict[str, Any]:
    """The classes of a group whose choices have different settings, by the choice's name."""
    if group == "data":  # imported only where they are asked for
        return {choice: class_of("data._target_", target) for choice, target in SOURCES.items()}
    if group == "cluster":  # each with the scheduler that it has settings for
        return class_of("cluster.name", "topr_exp.sweeps.clusters.CLUSTERS")
    return SAMPLERS


def unknown_key(key: str, siblings: Iterable[str] = ()) -> ConfigError:
    """The error for a key that nothing reads, with the key that is most like it; siblings: the keys of its group."""
    refuse_retired(key)
    group, _, name = key.partition(".")
    if group == "experiment" or (group == name and group in SECTIONS):
        return ConfigError(
            f"nothing reads {key}; a YAML of {group}/ that sets whole groups begins with {GLOBAL_HEADER}"
        )
    choice_by_key = choices_with_keys()
    if key in choice_by_key:
        return ConfigError(f"nothing reads {key} here; {choice_by_key[key]} does")
    if setting := SETTING_BY_OTHER_NAME.get(key.rpartition(".")[2]):
        return ConfigError(f"nothing reads {key}; did you mean {setting}?")
    hints = hints_of(Config)
    keys = {*siblings, *hints, *choice_by_key}
    for section in SECTIONS - {"algo", *VARIED_GROUPS}:
        keys |= {f"{section}.{setting}" for setting in hints_of(hints[section])}
    if near := nearest_key(key, sorted(keys)):
        return ConfigError(f"nothing reads {key}; did you mean {near}?")
    hint = f" here; allowed: {', '.join(siblings)}" if siblings else ""
    return ConfigError(f"nothing reads {key}{hint}")


def choices_with_keys() -> dict[str, str]:
    """A choice that has it, as in data=jsonl, for each setting of a group whose choices have different ones."""
    choice_by_key = {}
    for group in VARIED_GROUPS:
        for choice, schema in schemas_by_choice(group).items():
            for name in hints_of(schema):
                choice_by_key[f"{group}.{name}"] = f"{group}={choice}"
    return choice_by_key


def nearest_key(key: str, keys: list[str]) -> str | None:
    """The key that is most like a mistyped one: of the same name in any group, else of the same depth."""
    name = key.rpartition(".")[2]
    cutoff = 0.75 if "." in key else 0.6
    candidates = [candidate for candidate in keys if candidate.rpartition(".")[2] == name]
    if candidates:
        cutoff = 0.0
    else:  # "algorithm" is nearer to "algo" than to "algo.ratio"
        candidates = [candidate for candidate in keys if candidate.count(".") == key.count(".")]
    matches = difflib.get_close_matches(key.lower(), candidates, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def size(tiny: Any, large: Any, *, _root_: Any) -> Any:
    """`${size:TINY,LARGE}` in a YAML: as the model's YAML says."""
    by_size = {"tiny": tiny, "large": large}
    model_size = OmegaConf.select(_root_, "preset.size")
    if model_size not in by_size:
        raise ConfigError(f"preset.size={show(model_size)}: expected {' or '.join(by_size)}, in the model's YAML")
    return by_size[model_size]


def quotient(dividend: int, divisor: int) -> int:
    """`${quotient:DIVIDEND,DIVISOR}` in a YAML."""
    if dividend % divisor:
        raise ConfigError(f"{divisor}: expected a divisor of {dividend}")
    return dividend // divisor


def pinned(name: str, revision: str, *, _root_: Any) -> str | None:
    """`${pinned:NAME,REVISION}` in a model's YAML: its revision on the hub; null where model.path is another model."""
    if OmegaConf.select(_root_, "model.path") == name:
        return revision
    return None


OmegaConf.register_new_resolver("pinned", pinned, replace=True)
OmegaConf.register_new_resolver("size", size, replace=True)
OmegaConf.register_new_resolver("sampler_here", sampler_here, replace=True)
OmegaConf.register_new_resolver("by_sampler", by_sampler, replace=True)
OmegaConf.register_new_resolver("quotient", quotient, replace=True)
OmegaConf.register_new_resolver("product", lambda a, b: a * b, replace=True)
