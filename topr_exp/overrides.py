"""From YAMLs and overrides to composed settings: Hydra's composition, with its refusals turned into one line each."""

from __future__ import annotations

import copy
import re
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from topr_exp.config import unknown_key
from topr_exp.resolvers import CONF  # and with it what the YAMLs compute
from topr_exp.schema import first_line
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


OTHER_MODEL = "model=llama3_8b model.name=NAME model.path=FOLDER_OR_HUB_NAME"


class Composer:
    """Hydra's composition, with its refusals turned into one line each."""

    def __init__(self, args: Namespace) -> None:
        from hydra._internal.config_loader_impl import ConfigLoaderImpl
        from hydra._internal.utils import create_config_search_path
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.core.plugins import Plugins

        Plugins.instance()
        search_path = create_config_search_path(str(CONF))
        if args.config_dir is not None:
            if not Path(args.config_dir).is_dir():
                raise ConfigError(f"--config-dir {args.config_dir}: no such folder")
            search_path.prepend(provider="command-line", path=f"file://{Path(args.config_dir).resolve()}")
        self.loader = ConfigLoaderImpl(config_search_path=search_path)
        self.parser = OverridesParser.create(config_loader=self.loader)
        self.name = args.config_name or "config"
        if self.loader.repository.load_config(self.name) is None:
            raise ConfigError(f"--config-name {self.name}: no such file; leave it out for conf/config.yaml")
        self.multirun = bool(args.multirun)
        self.overrides = [self.parse(text) for text in args.overrides]

    def parse(self, text: str) -> Any:
        """One override, parsed."""
        from hydra.errors import HydraException

        try:
            override = self.parser.parse_overrides([text])[0]
        except HydraException:
            raise ConfigError(
                f"{text}: expected KEY=VALUE; a value with spaces, letters beyond ASCII or any of =~[]{{}}() needs "
                "quotes, as in 'KEY=\"VALUE\"'"
            ) from None
        if not override.key_or_group:
            raise ConfigError(f"{text}: expected KEY=VALUE")
        if override.is_delete():
            raise ConfigError(f"{text}: no key can be left out; set it, to null where it allows that")
        if override.key_or_group == "experiment" and override.is_sweep_override():
            raise ConfigError(f"{text}: each has a sweep of its own; start one after the other")
        return override

    def base(self) -> DictConfig:
        """The config of what is not swept, the `hydra` node included."""
        fixed = self.fixed()
        try:
            return self.compose(fixed)
        except ConfigError:
            # With algo swept, algo.beta=0.1 may be a key that only the swept ones have: each run will say.
            groups = {text: text.lstrip("+~").split("=", 1)[0].split(".")[0] for text in fixed if "." in text}
            others = {*self.loader.list_groups("")} - {"cluster", "hydra"}  # what says where runs compute stays
            base = self.compose([text for text in fixed if groups.get(text) not in others])
            swept = {override.key_or_group for override in self.overrides if override.is_sweep_override()}
            swept |= set(base.hydra.sweeper.params or {})
            if not swept & set(groups.values()):
                raise
            return base

    def fixed(self) -> list[str]:
        return [override.input_line for override in self.overrides if not override.is_sweep_override()]

    def sweeps(self, base: DictConfig) -> bool:
        """Whether the command line stands for a sweep, if only of one run."""
        from hydra.types import RunMode

        return self.multirun or base.hydra.mode is RunMode.MULTIRUN

    def jobs(self, base: DictConfig) -> Iterator[tuple[list[str], DictConfig]]:
        """The overrides and the composed config of each run."""
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        fixed = self.fixed()
        lists = [fixed]
        if self.sweeps(base):
            given = {override.key_or_group for override in self.overrides}
            params = {key: value for key, value in (base.hydra.sweeper.params or {}).items() if key not in given}
            swept = [self.parse(f"{key}={value}") for key, value in params.items()]
            for override in swept + self.overrides:
                self.check_values(override)
            batches = BasicSweeper.split_arguments(swept + self.overrides, max_batch_size=None)
            lists = [list(job) for job in batches[0]]
        elif len(fixed) < len(self.overrides):
            sweep = next(override.input_line for override in self.overrides if override.is_sweep_override())
            raise ConfigError(f"{sweep}: several values are a sweep; add -m")
        composed: dict[tuple[str, ...], DictConfig] = {}
        for overrides in lists:
            swept = [self.parse(text) for text in overrides if text not in fixed]
            values = [override for override in swept if self.is_value(override)]
            rest = [text for text in overrides if text not in {override.input_line for override in values}]
            # Reading the YAMLs takes 0.1 s, so runs that differ in values alone are copies of one composition.
            if tuple(rest) not in composed:
                composed[tuple(rest)] = without_hydra(base if rest == fixed else self.compose(rest))
            job = copy.deepcopy(composed[tuple(rest)])
            self.refused(partial(self.loader._apply_overrides_to_config, values, job), overrides)
            yield overrides, job

    def check_values(self, override: Any) -> None:
        """Refuse a sweep over nothing, or over what is no list of values."""
        from hydra.errors import HydraException

        if not override.is_sweep_override():
            return
        try:
            number = len(list(override.sweep_string_iterator()))
        except (HydraException, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(f"{override.input_line}: no list of values ({first_line(error)})") from None
        if number == 0:
            raise ConfigError(f"{override.input_line}: there is no such value")

    def is_value(self, override: Any) -> bool:
        """Whether an override sets one value, no more: not a group's choice, which decides what YAMLs are read."""
        from hydra.core.override_parser.types import OverrideType

        key = str(override.key_or_group)
        plain = override.type is OverrideType.CHANGE and override.package is None and not key.startswith("hydra")
        return plain and not self.loader.repository.group_exists(key)

    def compose(self, overrides: list[str]) -> DictConfig:
        """One config from YAML and overrides, the `hydra` node included."""
        from hydra.types import RunMode

        step = partial(self.loader.load_configuration, self.name, overrides=overrides, run_mode=RunMode.RUN)
        return self.refused(step, overrides)

    def refused(self, step: Callable[[], Any], overrides: list[str]) -> Any:
        """What a step of Hydra's gives, its refusals explained."""
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError

        try:
            return step()
        except YAMLError as error:
            raise ConfigError(f"a YAML file can't be read: {' '.join(str(error).split())}") from None
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group set to null
            raise self.explain(error, overrides) from None

    def explain(self, error: Exception, overrides: list[str]) -> ConfigError:
        """A refusal of Hydra's as one line that names the key, what was given and what is allowed."""
        text = str(error)
        if isinstance(error, ValueError):  # a group set to null or to a number
            pairs = (override.split("=", 1) for override in overrides if "=" in override)
            text = next((f"Could not find '{k}/{v}'" for k, v in pairs if k in self.loader.list_groups("")), text)
        if missing := re.search(r"Could not (?:find|load) '([^']+?)/([^']*)'", text):
            group, choice = missing.groups()
            allowed = f"{group}={choice}: no such choice; allowed: {', '.join(self.loader.get_group_options(group))}"
            other = f"; for another one {OTHER_MODEL}" if group == "model" else ""
            return ConfigError(allowed + other)
        if twice := re.search(
            r"Multiple values for (\S+?)\. |Could not append to config\. An item is already at '(.+?)'", text
        ):
            key = twice.group(1) or twice.group(2)
            return ConfigError(f"{key} is set already; write {key}=VALUE without +")
        if unknown := re.search(r"Could not (?:override|append to|delete) '([^'@=]+)", text):
            full = re.search(r"full_key: (\S+)", text)
            return unknown_key(
                full.group(1) if full else unknown.group(1), self.candidates(unknown.group(1), overrides)
            )
        return ConfigError(first_line(error.__cause__ or error))

    def candidates(self, refused: str, overrides: list[str]) -> list[str]:
        """Keys that could have been meant: those of the config without the refused override."""
        rest = [text for text in overrides if text.lstrip("+~").split("=", 1)[0].split("@", 1)[0] != refused]
        if len(rest) == len(overrides):
            return []
        try:
            values: Any = OmegaConf.to_container(self.compose(rest))
            return list(dotted(values))
        except ConfigError:
            return []


def without_hydra(composed: DictConfig) -> DictConfig:
    from omegaconf import open_dict

    with open_dict(composed):
        del composed["hydra"]
    return composed


def dotted(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of nested values, Hydra's own left out."""
    for key, value in values.items():
        if prefix or key != "hydra":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from dotted(value, f"{prefix}{key}.")
