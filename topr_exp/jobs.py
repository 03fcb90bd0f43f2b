"""What a command line stands for: its runs, each composed and checked before the first one starts."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config import Config, first_line, known_keys, load, unknown_key
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

PACKAGE = Path(__file__).resolve().parent
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"


def expand(args: Namespace) -> list[Config]:
    """The checked runs of parsed Hydra arguments, one or (multirun) many, in the order in which they start.

    Raises ConfigError with one line.
    """
    return [load(job) for job in Composer(args).jobs()]


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
        self.multirun = bool(args.multirun)
        self.overrides = [self.parse(text) for text in args.overrides]

    def parse(self, text: str) -> Any:
        """One override, parsed."""
        from hydra.errors import HydraException

        try:
            return self.parser.parse_overrides([text])[0]
        except HydraException as error:
            raise ConfigError(f"{text}: {first_line(error)}; expected KEY=VALUE") from None

    def jobs(self) -> Iterator[DictConfig]:
        """The composed config of each run."""
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
        from hydra.types import RunMode
        from omegaconf import open_dict

        fixed = [override.input_line for override in self.overrides if not override.is_sweep_override()]
        base = self.compose(fixed)
        lists = [fixed]
        if self.multirun or base.hydra.mode is RunMode.MULTIRUN:
            swept = [self.parse(f"{key}={value}") for key, value in (base.hydra.sweeper.params or {}).items()]
            batches = BasicSweeper.split_arguments(swept + self.overrides, max_batch_size=None)
            lists = [list(job) for job in batches[0]]
        elif len(fixed) < len(self.overrides):
            sweep = next(override.input_line for override in self.overrides if override.is_sweep_override())
            raise ConfigError(f"{sweep}: several values are a sweep; add -m")
        for overrides in lists:
            job = base if overrides == fixed else self.compose(overrides)
            with open_dict(job):
                del job["hydra"]
            yield job

    def compose(self, overrides: list[str]) -> DictConfig:
        """One config from YAML and overrides, the `hydra` node included."""
        from hydra.errors import HydraException
        from hydra.types import RunMode
        from omegaconf.errors import OmegaConfBaseException

        try:
            return self.loader.load_configuration(self.name, overrides=overrides, run_mode=RunMode.RUN)
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group set to null
            raise self.explain(error, overrides) from None

    def explain(self, error: Exception, overrides: list[str]) -> ConfigError:
        """A refusal of Hydra's as one line that names the key, what was given and what is allowed."""
        text = str(error)
        if isinstance(error, ValueError):  # a group set to null or to a number
            pairs = (override.split("=", 1) for override in overrides if "=" in override)
            text = next((f"Could not find '{k}/{v}'" for k, v in pairs if k in self.loader.list_groups("")), text)
        if missing := re.search(r"Could not (?:find|load) '([^']+)/([^/']+)'", text):
            group, choice = missing.groups()
            return ConfigError(
                f"{group}={choice}: no such choice; allowed: {', '.join(self.loader.get_group_options(group))}"
            )
        if unknown := re.search(r"Could not (?:override|append to|delete) '([^'@=]+)", text):
            full = re.search(r"full_key: (\S+)", text)
            return unknown_key(
                full.group(1) if full else unknown.group(1), self.candidates(unknown.group(1), overrides)
            )
        return ConfigError(first_line(error.__cause__ or error))

    def candidates(self, refused: str, overrides: list[str]) -> list[str]:
        """Every key that could have been meant: those of the config without the refused override."""
        from omegaconf import OmegaConf

        rest = [text for text in overrides if text.lstrip("+~").split("=", 1)[0].split("@", 1)[0] != refused]
        if len(rest) == len(overrides):
            return known_keys()
        try:
            values: Any = OmegaConf.to_container(self.compose(rest))
            return list(dotted(values)) + known_keys()
        except ConfigError:
            return known_keys()


def dotted(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of nested values, Hydra's own left out."""
    for key, value in values.items():
        if prefix or key != "hydra":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from dotted(value, f"{prefix}{key}.")
