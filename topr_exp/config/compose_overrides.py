"""Composition of settings from YAMLs and overrides by means of Hydra, whose errors become one line each."""

import copy
import difflib
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import filterfalse
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, OmegaConfBaseException
from yaml import YAMLError

from topr_exp import __version__
from topr_exp.config.hydra_internals import BasicSweeper, get_args_parser
from topr_exp.config.load import (
    GLOBAL_HEADER,
    NAMED_BY_CHOICE,
    SETTINGS,
    VARIABLES,
    is_text,
    unknown_key,
)
from topr_exp.config.model_choice import ModelChoice, choose_settings, expand_home, is_other_model, refuse_toy_settings
from topr_exp.config.yamls import CONF, OwnFolder, find_yaml, plugin_modules, values_of_yaml
from topr_exp.schema import first_line, flatten, literal, show
from topr_exp.types import ConfigError

USED_HYDRA_KEY = re.compile(r"hydra\.(mode|help|searchpath)\b")  # Hydra's own settings that a command line may give
PROGRAM = "python -m topr_exp"
# Of Hydra's error where a YAML lacks the line `# @package _global_`, so that it looks for a group within its own.
OVERRIDE_WITHIN_GROUP = re.compile(r"Could not override '[^']*@(?P<group>\w+)\.")
OTHER_MODEL = "model=FOLDER_OR_HUB_NAME"
# Published methods that are settings of a loss with another name (docs/losses.md), by what a user may call them.
METHODS = {
    "copg": "algo=agro",
    "dapo": "algo=grpo algo.eps_high=0.28 optim.reduction=tokens",
    "dr_grpo": "algo=grpo algo.advantage=group",
    "dro": "algo=opmd",
    "gvpo": "algo=agro",
    "nsr": "algo=naive algo.a_pos=0 algo.b_pos=0 algo.length_normalize=false",
    "psr": "algo=sft algo.length_normalize=false",
    "raft": "algo=sft iterations=3",
    "rebel": "algo=agro",
    "reinforce": "algo=naive",
    "tba": "algo=agro",
}
MODEL_KEYS = ("model", "model.path")  # that may name one
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)  # that needs no quotes
# What is passed over (quoted texts, escapes, ranges), or an element that Hydra reads as a number, true or false.
NUMBER_OR_FLAG = re.compile(
    r"""(?P<passed_over>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|\b(?:range|interval)\(.*)|"""
    r"""(?P<before>(?:^|[,\[(])\s*)(?P<element>[+-]?(?:[\d._]+(?:e[+-]?[\d_]+)?|inf|nan)|true|false)(?:\s*$|(?=\s*[,\])]))""",
    re.IGNORECASE,
)


def parse_arguments(words: Sequence[str]) -> Namespace:
    """Hydra's options by name, and `overrides`; exits with status 2 for an option that Hydra does not have."""
    parser = ArgumentParser(PROGRAM, parents=[get_args_parser()], add_help=False, conflict_handler="resolve")
    parser.add_argument("--version", action="version", version=f"topr_exp {__version__}")
    args, unknown = parser.parse_known_intermixed_args(words)
    refuse_dashes(unknown, words)
    if unknown:
        return parser.parse_intermixed_args(words)
    return args


def refuse_dashes(unknown: Sequence[str], words: Sequence[str]) -> None:
    """Raise ConfigError where an unknown option is a setting with dashes: --KEY=VALUE, --KEY VALUE or a bare --KEY.

    unknown: the options that the parser does not have; words: the whole command line.
    """
    if not unknown or not unknown[0].startswith("-"):
        return
    option = unknown[0]
    setting = option.lstrip("-")
    if "=" not in option:
        key = setting.replace("-", "_")
        following = ""
        if option in words[:-1]:
            following = words[list(words).index(option) + 1]
        if following and "=" not in following and not following.startswith("-"):
            option += f" {following}"
            setting = f"{key}={following}"
        elif key.split(".", 1)[0] in SETTINGS:
            setting = f"{key}=VALUE"
        else:
            return
    raise ConfigError(f"{option}: a setting has no dashes; write {setting}")


class OwnYAMLs(SearchPathPlugin):
    """Puts the folder of --config-dir in front, so that its YAMLs hide ours, and behind ours those of plugins.

    A plugin is an installed package with an entry point in the group `topr_exp.conf` that names a module of YAMLs.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if OwnFolder.path is not None:
            search_path.prepend(provider="command-line", path=f"file://{OwnFolder.path}")
        for name, module in plugin_modules().items():
            search_path.append(provider=name, path=f"pkg://{module}")


def config_loader(config_dir: str | None) -> ConfigLoader:
    """Hydra's loader of `conf/` and of the user's own folder of YAMLs."""
    OwnFolder.use(config_dir)
    Plugins.instance().register(OwnYAMLs)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


class Composition(NamedTuple):
    """What Hydra composes of choices of groups."""

    settings: DictConfig
    hydra: DictConfig  # its own settings


class Composer:
    """Composes the runs of one command line."""

    def __init__(self, args: Namespace) -> None:
        self.loader = config_loader(args.config_dir)
        self.parser = OverridesParser.create(config_loader=self.loader)
        self.multirun = bool(args.multirun)
        self.groups = {*self.loader.list_groups("")}
        self.compositions: dict[tuple[str, ...], Composition] = {}  # by the choices of groups
        self.run_choices: dict[tuple[str, ...], None] = {}  # the choices that runs have, in the order of the runs
        self.checked_models: set[tuple[str, str]] = set()  # choice and path: to read all YAMLs of models takes 0.1 s
        self.model_choices: dict[str, ModelChoice] = {}  # by path: of the models composed so far that are no choice
        # Its folders have choices that the loader does not list.
        self.has_searchpath = any(text.startswith("hydra.searchpath=") for text in args.overrides)
        self.overrides = [self.parse(quote_folder(text)) for text in args.overrides]
        self.refuse_repeated_keys()

    def parse(self, text: str) -> Override:
        """One override, parsed, of a key or a choice that there is."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            hint = "a value with spaces, letters beyond ASCII or any of =~[]{}() needs quotes, as in 'KEY=\"VALUE\"'"
            if self.multirun and ("=" not in text or text.endswith(",")):
                hint = "values of a sweep are separated by commas, without spaces, as in seed=0,1"
            raise ConfigError(f"{text}: expected KEY=VALUE; {hint}") from None
        key = override.key_or_group
        if not key:
            raise ConfigError(f"{text}: expected KEY=VALUE")
        if key in NAMED_BY_CHOICE:
            raise ConfigError(f"{text}: the name of a choice; give {text.replace('.name', '', 1)}")
        if key in self.groups or is_text(key):
            quoted_text = quote_numbers(text)
            if quoted_text != text:
                return self.parse(quoted_text)
        if override.is_delete():
            raise ConfigError(f"{text}: no key can be left out; set it, to null where it allows that")
        if key.startswith(("hydra.", "hydra/")):
            if not USED_HYDRA_KEY.match(key):
                raise ConfigError(f"{text}: nothing reads {key}; output_dir, name and cluster say where runs are")
        elif key in self.groups:
            self.check_choice(text, override)
        return override

    def check_choice(self, text: str, override: Override) -> None:
        """Raise ConfigError for a choice that its group does not have."""
        group = override.key_or_group
        if override.is_sweep_override():
            if group == "experiment":
                raise ConfigError(f"{text}: each has a sweep of its own; start one after the other")
            return
        choice = override.value()
        allowed = self.loader.get_group_options(group)
        is_other = group == "model" and is_other_model(choice, allowed)
        if choice in allowed or is_other or self.has_searchpath or is_no_experiment(override):
            return
        hint = f"allowed: {', '.join(allowed)}"
        near = difflib.get_close_matches(str(choice).lower(), allowed, n=1)
        method = METHODS.get(str(choice).lower())
        if group == "algo" and method:
            hint = f"{choice} is {method} (docs/losses.md)"
        elif near:
            hint = f"did you mean {near[0]}? {hint}"
        if group == "model":
            hint += f"; for another one {OTHER_MODEL}"
        if group == "data" and Path(str(choice)).is_file():
            hint += f"; for a file of problems data=jsonl data.path={choice}, of completions data.completions={choice}"
        raise ConfigError(f"{group}={show(choice)}: no such choice; {unread_yaml(group, choice) or hint}")

    def refuse_repeated_keys(self) -> None:
        """Raise ConfigError for a key that is given twice, alone or in a group: one of its values would be ignored."""
        override_by_key: dict[str, Override] = {}
        for override in self.overrides:
            for key in leaf_keys(override):
                earlier_key = self.find_repeated_key(key, override_by_key)
                if earlier_key is None:
                    continue
                hint = ", its values separated by commas" if override.is_sweep_override() else ""
                pair = f"{override_by_key[earlier_key].input_line} and {override.input_line}"
                raise ConfigError(f"{pair}: {max(key, earlier_key, key=len)} is given twice; give it once{hint}")
            override_by_key |= dict.fromkeys(leaf_keys(override), override)

    def find_repeated_key(self, key: str, earlier_keys: Iterable[str]) -> str | None:
        """Find the earlier key that a key repeats: itself, one that it is a part of, or a part of it."""
        for earlier_key in earlier_keys:
            shorter_key, longer_key = sorted((key, earlier_key), key=len)
            is_choice = shorter_key in self.groups  # whose parts are changed
            is_part = longer_key.startswith(f"{shorter_key}.") and not is_choice
            if shorter_key == longer_key or is_part:
                return earlier_key
        return None

    def searched_modules(self) -> list[str]:
        """The modules on `hydra.searchpath` of the command line, else of the user's config.yaml; Hydra imports them."""
        entries: Any = ()
        if OwnFolder.path is not None and (OwnFolder.path / "config.yaml").is_file():
            settings = self.call(partial(OmegaConf.load, OwnFolder.path / "config.yaml"))
            entries = self.call(partial(OmegaConf.select, settings, "hydra.searchpath")) or ()
        for override in self.fixed_overrides():
            if override.key_or_group == "hydra.searchpath":
                entries = override.value()
        modules = []
        for entry in entries:
            scheme, separator, module = str(entry).partition("://")
            if separator and scheme != "file":
                modules.append(module.replace("/", "."))
        return modules

    @cached_property
    def hydra(self) -> DictConfig:
        """Hydra's own settings, which choices of groups may change."""
        return self.compose_choices(self.hydra_overrides(self.fixed_overrides())).hydra

    def help(self) -> str:
        """The text of --help; Hydra's own command copies its whole registry a hundred times to make it."""
        groups = [
            f"{name}: {', '.join(self.loader.get_group_options(name))}" for name in sorted(self.groups - {"hydra"})
        ]
        return Template(self.hydra.help.template).substitute(APP_CONFIG_GROUPS="\n".join(groups) + "\n")

    def fixed_overrides(self) -> list[Override]:
        """The overrides that are not swept."""
        return [override for override in self.overrides if not override.is_sweep_override()]

    def swept_keys(self) -> list[str]:
        """The keys that the command line gives several values, but for hyper-parameters, which names show anyway."""
        keys = [override.key_or_group for override in self.overrides if override.is_sweep_override()]
        return [key for key in keys if not key.startswith("algo.")]

    @property
    def is_sweep(self) -> bool:
        """True if the command line is a sweep, if only of one run."""
        return self.multirun or self.hydra.mode is RunMode.MULTIRUN

    def jobs(self) -> Iterator[tuple[list[str], DictConfig]]:
        """The overrides and the composed settings of each run."""
        for overrides in self.expand():
            hydra_overrides = self.hydra_overrides(overrides)
            settings = self.compose_hydra_overrides(hydra_overrides)
            self.run_choices[self.choices_among(hydra_overrides)] = None
            self.refuse_larger_model_of_yaml(hydra_overrides, settings)
            yield words_of(overrides), settings

    def expand(self) -> list[list[Override]]:
        """The overrides of each run: every combination of the values that are swept; the last key changes fastest."""
        if not self.is_sweep:
            for override in self.overrides:
                if override.is_sweep_override():
                    raise ConfigError(f"{override.input_line}: several values are a sweep; add -m")
            return [self.fixed_overrides()]
        user_keys = keys_of(self.overrides)
        overrides = []
        for key, value in (self.hydra.sweeper.params or {}).items():
            if key not in user_keys:
                overrides.append(self.parse(f"{key}={value}"))
        overrides += self.overrides
        swept_words = " ".join(words_of(filter(Override.is_sweep_override, overrides)))
        try:
            # Hydra divides the runs into batches; None: all are one.
            (jobs,) = BasicSweeper.split_arguments(overrides, None)
        except (HydraException, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(f"{swept_words}: no list of values ({first_line(error)})") from None
        if not jobs:
            raise ConfigError(f"{swept_words}: there is no such value")
        # Parsed once more, since the values of choice, sort and range come without their quotes.
        parse = cache(self.parse)
        return [[*map(parse, job)] for job in jobs]

    def compose(self, overrides: Sequence[Override]) -> DictConfig:
        """The settings of a run: Hydra composes the choices of groups, then values take their places."""
        return self.compose_hydra_overrides(self.hydra_overrides(overrides))

    def compose_hydra_overrides(self, overrides: Sequence[Override]) -> DictConfig:
        """The settings of a run by its `hydra_overrides`."""
        settings = copy.deepcopy(self.compose_choices(overrides).settings)
        for override in filter(self.is_value, overrides):
            key = override.key_or_group
            is_variable = key.partition(".")[0] in VARIABLES
            if is_variable and OmegaConf.select(settings, key) is None:
                raise unknown_key(key)
            set_value(settings, key, override.value())
        return settings

    def refuse_larger_model_of_yaml(self, overrides: Sequence[Override], settings: DictConfig) -> None:
        """Raise ConfigError where an experiment's YAML names a larger model by its path alone, after model=tiny."""
        if "model.path" in keys_of(overrides):
            return
        choices = self.compose_choices(overrides).hydra.runtime.choices
        choice = str(choices.get("model"))  # "None" in a config.yaml without it
        path = self.call(lambda: OmegaConf.select(settings, "model.path"))
        if isinstance(path, str) and (choice, path) not in self.checked_models:
            refuse_toy_settings(choice, path, self.loader.get_group_options("model"))
            self.checked_models.add((choice, path))

    def compose_choices(self, overrides: Iterable[Override]) -> Composition:
        """Compose the choices of groups among overrides, or return what was composed of them before."""
        choices = self.choices_among(overrides)
        if choices not in self.compositions:  # reading the YAMLs takes 0.1 s
            load = partial(self.loader.load_configuration, "config", overrides=[*choices], run_mode=RunMode.RUN)
            composed = self.call(load)
            settings = OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"])
            self.compositions[choices] = Composition(settings, composed.hydra)
        return self.compositions[choices]

    def choices_among(self, overrides: Iterable[Override]) -> tuple[str, ...]:
        """The choices of groups among overrides, as Hydra takes them."""
        return tuple(word.lstrip("+") for word in words_of(filterfalse(self.is_value, overrides)))

    def hydra_overrides(self, overrides: Sequence[Override]) -> list[Override]:
        """Overrides as Hydra takes them: a model that is no choice of its group as the choice and values."""
        overrides = [override for override in overrides if not is_no_experiment(override)]
        model = self.other_model(overrides)
        if model is None:
            return overrides
        self.model_choices[model.path] = model
        words = [f"model={model.choice}", f"model.path={quote(model.path)}"]
        if "model.name" not in keys_of(overrides):
            words.append(f"model.name={quote(model.name)}")
        further_overrides = [override for override in overrides if override.key_or_group not in MODEL_KEYS]
        return [*map(self.parse, words), *further_overrides]

    def other_model(self, overrides: list[Override]) -> ModelChoice | None:
        """The model that is named by a folder or on the hub, with its settings; None for a choice of the group.

        ConfigError where a shipped model's settings are chosen for a larger one.
        """
        value_by_key = {override.key_or_group: self.plain_value(override) for override in overrides}
        choices = self.loader.get_group_options("model")
        choice = value_by_key.get("model")
        path = value_by_key.get("model.path")
        has_choice = "model" in value_by_key
        if has_choice and not is_other_model(choice, choices):
            if isinstance(path, str):
                refuse_toy_settings(str(choice), path, choices)
            return None
        if has_choice and path is not None:
            raise ConfigError(f"model={choice} model.path={path}: both name the model; give one")
        key = "model" if has_choice else "model.path"
        model = value_by_key.get(key)
        if not isinstance(model, str) or not model:
            return None
        return choose_settings(key, model, choices)

    def plain_value(self, override: Override) -> Any:
        """The value of an override, with `${oc.env:NAME}` in the name of a model computed."""
        value = override.value()
        if override.key_or_group not in MODEL_KEYS or not isinstance(value, str):
            return value
        return self.call(lambda: OmegaConf.create({"value": value})["value"])

    def is_value(self, override: Override) -> bool:
        """True for an override of a setting; False for a choice of a group, and for Hydra's own settings."""
        key = override.key_or_group
        return key not in self.groups and not key.startswith(("hydra.", "hydra/"))

    def hidden_values(self) -> Iterator[str]:
        """Describe the values of each YAML of the user's own that the model's YAML replaces in some run of `jobs`."""
        given_keys = {*keys_of(self.overrides), *(self.hydra.sweeper.params or {})}
        for run_choices in self.run_choices:
            settings, hydra = self.compositions[run_choices]
            choices = hydra.runtime.choices
            own_files = self.find_own_files(choices)
            if not own_files:
                continue
            composed_values = dict(flatten(OmegaConf.to_container(settings)))
            model_file = find_yaml("model", str(choices.get("model")))
            model_values = self.read_values(model_file) if model_file is not None else {}
            for file in own_files:
                hidden = []
                for key, value in self.read_values(file).items():
                    is_replaced = key in model_values and composed_values.get(key) == model_values[key] != value
                    if is_replaced and key not in given_keys:
                        hidden.append(f"{key}={show(value)}")
                if hidden:
                    yield (
                        f"{file}: {', '.join(hidden)} not used, since model={choices.model} comes after it and sets "
                        "other values; say so on the command line or in an experiment's YAML"
                    )

    def find_own_files(self, choices: DictConfig) -> list[Path]:
        """Find the YAMLs of the user's own, or of a plugin, among those of a run's choices of groups."""
        files = []
        for group in sorted((self.groups & choices.keys()) - {"experiment", "hydra", "model"}):
            file = find_yaml(group, str(choices[group]))
            if file is not None and not file.is_relative_to(CONF):
                files.append(file)
        return files

    def read_values(self, file: Path) -> dict[str, Any]:
        """Read the values that the YAML of a choice sets itself."""
        return self.call(partial(values_of_yaml, file))

    def call(self, step: Callable[[], Any]) -> Any:
        """The result of a step of Hydra's; its errors become one line."""
        try:
            return step()
        except YAMLError as error:
            raise ConfigError(f"a YAML file can't be read: {' '.join(str(error).split())}") from None
        except HydraException as error:  # names what could not be found, and then what there is
            message = " ".join(str(error.__cause__ or error).split())
            if within_group := OVERRIDE_WITHIN_GROUP.search(message):
                message += f" A YAML of {within_group['group']}/ with an override begins with {GLOBAL_HEADER}"
            raise ConfigError(message) from None
        except (OmegaConfBaseException, ValueError) as error:
            raise ConfigError(first_line(error)) from None


def set_value(settings: DictConfig, key: str, value: Any) -> None:
    """Set a value, or merge a group into the one that is there."""
    try:
        OmegaConf.update(settings, key, value, force_add=True)
    except ConfigTypeError:  # a list for a group, or a group for a list: the check of types says what is allowed
        OmegaConf.update(settings, key, value, merge=False, force_add=True)
    except (IndexError, ValueError):
        raise ConfigError(f"{key}={show(value)}: no such item of a list, whose first is 0") from None
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={show(value)}: {first_line(error)}") from None


def unread_yaml(group: str, choice: Any) -> str | None:
    """Say how to have a choice's YAML read that is there and is not looked for; None where none is."""
    if OwnFolder.path is not None:
        file = OwnFolder.path / group / f"{choice}.yml"
        return f"rename {file} to .yaml" if file.is_file() else None
    for folder in ("conf", "."):
        file = Path(folder, group, f"{choice}.yaml")
        if file.is_file():
            return f"{file} is read with --config-dir {folder}"
    return None


def words_of(overrides: Iterable[Override]) -> list[str]:
    """The overrides as they are given."""
    return [str(override.input_line) for override in overrides]


def leaf_keys(override: Override) -> list[str]:
    """List the keys that an override gives a value: of a group as in {rank: 8, alpha: 16}, each of its parts."""
    given_value = override.value()
    values = given_value.list if isinstance(given_value, ChoiceSweep) else [given_value]
    keys = dict[str, None]()
    for value in values:
        parts = {override.key_or_group: value}
        keys |= dict.fromkeys(key for key, _ in flatten(parts))
    return list(keys)


def keys_of(overrides: Iterable[Override]) -> set[str]:
    return {override.key_or_group for override in overrides}


def is_no_experiment(override: Override) -> bool:
    """True for experiment=null, the same as no word of it, which Hydra does not take on a command line."""
    return override.key_or_group == "experiment" and not override.is_sweep_override() and override.value() is None


def quote_folder(text: str) -> str:
    """The text of an override with quotes around the folder of a model where its name needs them."""
    key, _, value = text.partition("=")
    if key not in MODEL_KEYS or PLAIN_PATH.fullmatch(value) or not expand_home(value).is_dir():
        return text
    return f"{key}={quote(value)}"


def quote(text: str) -> str:
    """A text in quotes, as a value of an override in which nothing is computed."""
    escaped = str(literal(text)).replace("'", r"\'")
    return f"'{escaped}'"


def quote_numbers(text: str) -> str:
    """The text of an override with quotes around each element that Hydra reads as a number, true or false."""
    key, equals, value = text.partition("=")
    quoted_value = NUMBER_OR_FLAG.sub(quote_match, value)
    return f"{key}{equals}{quoted_value}"


def quote_match(match: re.Match[str]) -> str:
    """A match of NUMBER_OR_FLAG with quotes around its element."""
    return match["passed_over"] or f"{match['before']}'{match['element']}'"
