"""Composes settings from YAMLs and overrides by means of Hydra, whose errors become one line each."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from topr_exp.config.load import is_text, unknown_key
from topr_exp.config.resolvers import CONF  # and with it what the YAMLs compute
from topr_exp.config.schema import first_line, hints_of
from topr_exp.config.settings import Config
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


SECTIONS = {"algo", *(key for key, schema in hints_of(Config).items() if dataclasses.is_dataclass(schema))}
# Of Hydra's own settings these are read from a command line.
HYDRA_READ = re.compile(r"hydra\.(mode|help|searchpath)\b")
OTHER_MODEL = "model=llama3_8b model.name=NAME model.path=FOLDER_OR_HUB_NAME"
# First what is passed over (quoted texts, escapes, ranges), then an element that Hydra reads as a number or as true.
ELEMENT = re.compile(
    r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\\.|\b(?:range|interval)\(.*)|"""
    r"""((?:^|[,\[(])\s*)([+-]?(?:[\d._]+(?:e[+-]?[\d_]+)?|inf|nan)|true|false)(?:\s*$|(?=\s*[,\])]))""",
    re.IGNORECASE,
)


class ConfigDir(SearchPathPlugin):
    """Puts the folder of --config-dir in front, so that a YAML of the user's hides one of ours with the same name."""

    folder: ClassVar[Path | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.folder is not None:
            search_path.prepend(provider="command-line", path=f"file://{self.folder}")


def config_loader(config_dir: str | None) -> ConfigLoader:
    """Hydra's loader of `conf/` and of the user's own folder of YAMLs."""
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such folder")
    ConfigDir.folder = Path(config_dir).resolve() if config_dir is not None else None
    Plugins.instance().register(ConfigDir)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return GlobalHydra.instance().config_loader()


class Composer:
    """Composes the runs of one command line."""

    def __init__(self, args: Namespace) -> None:
        self.loader = config_loader(args.config_dir)
        self.parser = OverridesParser.create(config_loader=self.loader)
        self.name = args.config_name or "config"
        if not any(source.is_config(self.name) for source in self.loader.get_sources()):
            raise ConfigError(f"--config-name {self.name}: no such file; leave it out for conf/config.yaml")
        self.multirun = bool(args.multirun)
        self.groups = {*self.loader.list_groups("")}
        self.overrides = [self.parse(text) for text in args.overrides]

    def parse(self, text: str) -> Override:
        """One override, parsed."""
        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            raise ConfigError(
                f"{text}: expected KEY=VALUE; a value with spaces, letters beyond ASCII or any of =~[]{{}}() needs "
                "quotes, as in 'KEY=\"VALUE\"'"
            ) from None
        if not override.key_or_group:
            raise ConfigError(f"{text}: expected KEY=VALUE")
        if override.key_or_group in self.groups and (quoted := quote_numbers(text)) != text:
            return self.parse(quoted)
        if override.is_delete():
            raise ConfigError(f"{text}: no key can be left out; set it, to null where it allows that")
        if override.key_or_group == "hydra.sweeper.params":  # OmegaConf can't merge it into the null that stands there
            raise ConfigError(f"{text}: that is for YAML files; here give the values themselves, as in -m seed=0,1")
        if override.key_or_group.startswith(("hydra.", "hydra/")) and not HYDRA_READ.match(override.key_or_group):
            raise ConfigError(
                f"{text}: nothing reads {override.key_or_group}; output_dir, name and cluster say where runs are"
            )
        if override.key_or_group == "experiment" and override.is_sweep_override():
            raise ConfigError(f"{text}: each has a sweep of its own; start one after the other")
        return override

    def base(self) -> DictConfig:
        """The config of the overrides that are not swept, with the `hydra` node.

        With it the classes are known, and so which overrides are of texts: from now on those have their own words.
        """
        base, given = self.compose(self.fixed()), self.overrides
        self.overrides = [self.in_words(override, base) for override in given]
        return base if self.overrides == given else self.compose(self.fixed())

    def help(self) -> str:
        """Answer --help; Hydra's own copies its whole registry a hundred times on the way."""
        groups = [
            f"{name}: {', '.join(self.loader.get_group_options(name))}" for name in sorted(self.groups - {"hydra"})
        ]
        template = Template(self.base().hydra.help.template)
        return template.substitute(APP_CONFIG_GROUPS="\n".join(groups) + "\n")

    def in_words(self, override: Override, base: DictConfig) -> Override:
        """An override with its own words, where the setting is a text and Hydra read numbers."""
        quoted = quote_numbers(str(override.input_line))
        another = quoted != override.input_line and is_text(override.key_or_group, base)
        return self.parse(quoted) if another else override

    def fixed(self) -> list[str]:
        """The overrides that are not swept."""
        return [str(override.input_line) for override in self.overrides if not override.is_sweep_override()]

    def sweeps(self, base: DictConfig) -> bool:
        """True if the command line is a sweep, if only of one run."""
        return self.multirun or base.hydra.mode is RunMode.MULTIRUN

    def jobs(self, base: DictConfig) -> Iterator[tuple[list[str], DictConfig]]:
        """The overrides and the composed config of each run."""
        fixed = self.fixed()
        composed: dict[tuple[str, ...], DictConfig] = {}
        for overrides in self.expand(base):
            swept = [self.parse(text) for text in overrides if text not in fixed]
            values = [override for override in swept if self.is_value(override)]
            rest = [text for text in overrides if text not in {override.input_line for override in values}]
            # Reading the YAMLs takes 0.1 s, so runs that differ in values alone are copies of one composition.
            if tuple(rest) not in composed:
                composed[tuple(rest)] = without_hydra(base if rest == fixed else self.compose(rest))
            job = copy.deepcopy(composed[tuple(rest)])
            for override in values:
                step = partial(OmegaConf.update, job, override.key_or_group, override.value(), force_add=True)
                self.call(step, overrides)
            yield overrides, job

    def expand(self, base: DictConfig) -> list[list[str]]:
        """The overrides of each run: every combination of the values that are swept, the last one's fastest."""
        if not self.sweeps(base):
            for override in self.overrides:
                if override.is_sweep_override():
                    raise ConfigError(f"{override.input_line}: several values are a sweep; add -m")
            return [self.fixed()]
        given = {override.key_or_group for override in self.overrides}
        params = {key: value for key, value in (base.hydra.sweeper.params or {}).items() if key not in given}
        swept = [self.parse(f"{key}={value}") for key, value in params.items()]
        words = [self.in_words(override, base) for override in swept]
        for override, in_words in zip(swept, words, strict=True):
            if override is not in_words and not override.is_sweep_override():  # YAML may have read another number
                raise ConfigError(
                    f"{override.input_line}: expected text; in hydra.sweeper.params quote it twice, \"'...'\""
                )
        swept = words
        choices = dict(choices_of(override) for override in swept + self.overrides)  # of a key given twice the last
        # Hydra's functions (choice, sort, range) lose the quotes.
        texts = [[self.in_words(self.parse(text), base).input_line for text in each] for each in choices.values()]
        return [[str(text) for text in job] for job in itertools.product(*texts)]

    def is_value(self, override: Override) -> bool:
        """True for an override of one value; a group's choice decides what YAMLs are read."""
        key = str(override.key_or_group)
        plain = override.type is OverrideType.CHANGE and override.package is None and not key.startswith("hydra")
        return plain and not any(source.is_group(key) for source in self.loader.get_sources())

    def compose(self, overrides: list[str]) -> DictConfig:
        """One config, with the `hydra` node."""
        forced = list(map(self.forced, overrides))
        step = partial(self.loader.load_configuration, self.name, overrides=forced, run_mode=RunMode.RUN)
        return self.call(step, overrides)

    def forced(self, text: str) -> str:
        """An override as Hydra takes it whether or not the YAMLs have its key: `load` says which keys there are."""
        section, dot, _ = text.lstrip("+").partition("=")[0].partition(".")
        add = "++" if dot and section in SECTIONS else ""
        return text if section == "hydra" else add + text.lstrip("+")

    def call(self, step: Callable[[], Any], overrides: list[str]) -> Any:
        """The result of a step of Hydra's; its errors become one line."""
        from yaml import YAMLError

        try:
            return step()
        except YAMLError as error:
            raise ConfigError(f"a YAML file can't be read: {' '.join(str(error).split())}") from None
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group set to null
            raise self.explain(error, overrides) from None

    def explain(self, error: Exception, overrides: list[str]) -> ConfigError:
        """An error of Hydra's as one line that names the key, what was given and what is allowed."""
        text = str(error)
        if isinstance(error, ValueError):  # a group set to null or to a number
            pairs = (override.split("=", 1) for override in overrides if "=" in override)
            text = next((f"Could not find '{k}/{v}'" for k, v in pairs if k in self.groups), text)
        if missing := re.search(r"Could not (?:find|load) '((?:hydra/)?[^']+?)/([^']*)'", text):
            group, choice = missing.groups()
            allowed = f"{group}={choice}: no such choice; allowed: {', '.join(self.loader.get_group_options(group))}"
            other = f"; for another one {OTHER_MODEL}" if group == "model" else ""
            return ConfigError(allowed + other)
        if unknown := re.search(r"Could not (?:override|append to|delete) '([^'@=]+)", text):
            full = re.search(r"full_key: (\S+)", text)
            return unknown_key((full or unknown).group(1))
        return ConfigError(first_line(error.__cause__ or error))


def quote_numbers(override: str) -> str:
    """An override with quotes around each element that Hydra reads as a number, true or false."""
    key, equals, value = override.partition("=")
    return key + equals + ELEMENT.sub(lambda found: found[1] or f"{found[2]}'{found[3]}'", value)


def choices_of(override: Override) -> tuple[str, list[str]]:
    """The key of an override, and an override of it for each of its values; ConfigError for no list of values."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return key, [f"{key}={override.get_value_element_as_str()}"]
    try:
        texts = [f"{key}={value}" for value in override.sweep_string_iterator()]
    except (HydraException, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{override.input_line}: no list of values ({first_line(error)})") from None
    if not texts:
        raise ConfigError(f"{override.input_line}: there is no such value")
    return key, texts


def without_hydra(composed: DictConfig) -> DictConfig:
    from omegaconf import open_dict

    with open_dict(composed):
        del composed["hydra"]
    return composed


def dotted(values: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of nested values, Hydra's own left out."""
    for key, value in values.items():
        if prefix or key != "hydra":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from dotted(value, f"{prefix}{key}.")
