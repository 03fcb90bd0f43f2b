"""What a command line stands for: its runs, each composed and checked before the first one starts."""

from __future__ import annotations

import copy
import json
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from topr_exp.config import Config, load, unknown_key
from topr_exp.schema import build, first_line
from topr_exp.sweeps.config import ClusterConfig, cluster_schema
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

PACKAGE = Path(__file__).resolve().parent
# An installed package carries `conf/` inside; in the repository it stands at the top.
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf"
LEARNING_RATES = CONF / "learning_rates.json"


def learning_rate(model: str, algo: str) -> float:
    """`${learning_rate:MODEL,ALGO}` in a YAML: what was chosen by validation problems (experiment=learning_rates)."""
    chosen = json.loads(LEARNING_RATES.read_text(encoding="utf-8")).get(model, {})
    try:
        return float(chosen[algo] if isinstance(chosen, dict) else chosen)
    except KeyError:
        raise ConfigError(f"optim.lr: none was chosen for algo={algo} on model={model}; set one") from None


def size(tiny: Any, paper: Any, *, _root_: Any) -> Any:
    """`${size:TINY,PAPER}` in a YAML: the first for the tiny models, the second for all others."""
    return tiny if str(_root_.model.name).startswith("tiny") else paper


def quotient(whole: int, part: int) -> int:
    """`${quotient:WHOLE,PART}` in a YAML."""
    if whole % part:
        raise ConfigError(f"{part}: expected a divisor of {whole}")
    return whole // part


OmegaConf.register_new_resolver("learning_rate", learning_rate, replace=True)
OmegaConf.register_new_resolver("size", size, replace=True)
OmegaConf.register_new_resolver("product", lambda a, b: a * b, replace=True)
OmegaConf.register_new_resolver("quotient", quotient, replace=True)


@dataclass(frozen=True)
class Job:
    """A run of a command line: the overrides that make it, and its checked settings."""

    overrides: list[str]
    config: Config


@dataclass(frozen=True)
class Plan:
    """What a command line stands for."""

    jobs: list[Job]  # in the order in which they start
    sweep: bool  # a sweep has a table of its own, and so does a single run that is submitted elsewhere
    launcher: dict[str, Any]  # Hydra's launcher, which the `cluster` group chooses and fills


def plan(args: Namespace) -> Plan:
    """The checked runs of parsed Hydra arguments, one or (multirun) many.

    Raises ConfigError with one line, for a sweep also when its runs would not be runs of one sweep.
    """
    composer = Composer(args)
    base = composer.base()
    sweep, launcher = composer.sweeps(base), launcher_of(base)
    jobs = [Job(overrides, load(composed)) for overrides, composed in composer.jobs(base)]
    if sweep:
        check_sweep(jobs)
    return Plan(jobs, sweep, launcher)


def recompose(arguments: Sequence[str], settings: Sequence[str]) -> tuple[ClusterConfig, dict[str, Any]]:
    """Where a sweep that is resumed computes: as its last launch said, changed by `settings`, and Hydra's launcher.

    Raises ConfigError with one line, for a setting too that would make other runs.
    """
    from hydra._internal.utils import get_args_parser

    for text in settings:
        if not belongs_to_cluster(text):
            raise ConfigError(f"{text}: only cluster settings can change when a sweep is resumed")
    args = get_args_parser().parse_args(list(arguments))
    another = any(text.startswith("cluster=") for text in settings)
    kept = [text for text in args.overrides if text.startswith("experiment=") or belongs_to_cluster(text)]
    args.overrides = [text for text in kept if not (another and text.startswith("cluster"))] + list(settings)
    base = Composer(args).base()
    launcher = launcher_of(base)
    return cluster_of(base), launcher


def belongs_to_cluster(override: str) -> bool:
    return override.lstrip("+~").startswith(("cluster=", "cluster.", "hydra.launcher.", "hydra/launcher="))


def cluster_of(base: DictConfig) -> ClusterConfig:
    values = OmegaConf.to_container(base.cluster, resolve=True)
    checked: ClusterConfig = build(cluster_schema(values), values, "cluster.", unknown_key)
    return checked


def check_sweep(jobs: list[Job]) -> None:
    """Refuse what can't be one sweep: several places or folders, or one run twice."""
    first, seen = jobs[0].config, dict[Path, list[str]]()
    for job in jobs:
        config = job.config
        for key in ("cluster.name", "name", "output_dir"):
            one, other = (attrgetter(key)(settings) for settings in (first, config))
            if one != other:
                shown = f"{key.removesuffix('.name')}={one},{other}"
                raise ConfigError(f"{shown}: the runs of a sweep share it; give one, and start a sweep for each")
        if config.folder in seen:
            raise ConfigError(
                f"{' '.join(job.overrides)} and {' '.join(seen[config.folder])} are the same run; "
                "cluster, tracking and checkpoint don't make another one"
            )
        seen[config.folder] = job.overrides


def launcher_of(base: DictConfig) -> dict[str, Any]:
    """The settings of Hydra's launcher; ConfigError for a launcher or sweeper that would be passed over."""
    allowed = {
        "launcher": ("BasicLauncher", "SlurmLauncher", "basic or submitit_slurm (set by cluster=local or slurm)"),
        "sweeper": ("BasicSweeper", "BasicSweeper", "basic"),
    }
    for kind, (basic, other, names) in allowed.items():
        target = str(base.hydra[kind]._target_)
        if target.rsplit(".", 1)[-1] not in (basic, other):
            raise ConfigError(f"hydra/{kind} is {target}: it must be {names}")
    values = OmegaConf.to_container(base.hydra.launcher, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


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
                f"{text}: expected KEY=VALUE; a value with any of =~[]{{}}() needs quotes, as in 'KEY=\"VALUE\"'"
            ) from None
        if not override.key_or_group:
            raise ConfigError(f"{text}: expected KEY=VALUE")
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

        try:
            return step()
        except (HydraException, OmegaConfBaseException, ValueError) as error:  # ValueError: a group set to null
            raise self.explain(error, overrides) from None

    def explain(self, error: Exception, overrides: list[str]) -> ConfigError:
        """A refusal of Hydra's as one line that names the key, what was given and what is allowed."""
        text = str(error)
        if isinstance(error, ValueError):  # a group set to null or to a number
            pairs = (override.split("=", 1) for override in overrides if "=" in override)
            text = next((f"Could not find '{k}/{v}'" for k, v in pairs if k in self.loader.list_groups("")), text)
        if missing := re.search(r"Could not (?:find|load) '([^']+)/([^/']*)'", text):
            group, choice = missing.groups()
            return ConfigError(
                f"{group}={choice}: no such choice; allowed: {', '.join(self.loader.get_group_options(group))}"
            )
        if twice := re.search(r"Multiple values for (\S+?)\. ", text):
            return ConfigError(f"{twice.group(1)} is set already; write {twice.group(1)}=CHOICE without +")
        if removed := re.search(r"Could not delete from config\. '([^']+)' does not exist", text):
            return ConfigError(f"~{removed.group(1)}: no key can be left out; set it, to null where it allows that")
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
