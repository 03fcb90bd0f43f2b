"""Plan of a command line: its runs, each composed and checked before the first one starts."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from topr_exp.config.compose_overrides import Composer
from topr_exp.config.load import load
from topr_exp.config.settings import Config, unread
from topr_exp.config.yamls import CONF, OwnFolder
from topr_exp.runs.preflight import check_files, describe_unsolvable_problems
from topr_exp.runtime.terminal import say, warn
from topr_exp.schema import show
from topr_exp.types import ConfigError

SHARED_KEYS = ("cluster.name", "name", "output_dir")  # of the runs of a sweep
UNREAD_HYDRA: dict[str, Any] = {  # settings of Hydra's own, as conf/config.yaml or Hydra has them
    "run.dir": ".", "sweep.subdir": ".", "output_subdir": None, "callbacks": {}, "sweeper.max_batch_size": None,
    "job.chdir": False, "job.env_set": {}, "job.env_copy": [],
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One run: the overrides that make it, its checked settings, and these as Hydra composed them."""

    overrides: list[str]
    config: Config
    composed: DictConfig | None = field(default=None, repr=False, compare=False)  # with `learning_rates`
    swept_keys: Sequence[str] = ()  # of the command line
    words: Sequence[str] = field(default=(), repr=False, compare=False)  # the command line, of `topr_exp.plan_runs`

    @property
    def folder(self) -> Path:
        """The run's folder; the name of a new one shows what the command line varies."""
        return self.config.folder_in_sweep(self.swept_keys)


@dataclass(frozen=True)
class Plan:
    """All runs of a command line, and what starts them."""

    jobs: list[Job]  # in the order in which they start
    is_sweep: bool  # with a table of its runs; a single run that is submitted elsewhere is a sweep too


def plan(args: Namespace) -> Plan:
    """Return the checked runs of a parsed command line; ConfigError with one line."""
    composer = Composer(args)
    refuse_plugins(composer.hydra)
    refuse_unread_hydra(composer.hydra)
    if composer.hydra.sweeper.params and not composer.is_sweep:
        warn("set and not read: hydra.sweeper.params; for its sweep add -m, or to the YAML hydra: {mode: MULTIRUN}")
    jobs = []
    for overrides, composed in composer.jobs():
        config = load(composed)
        check_files(config)
        jobs.append(Job(overrides, config, composed, composer.swept_keys()))
    for model in composer.model_choices.values():
        say(f"model {model.path}: settings of {model.described}")
    for line in dict.fromkeys(composer.hidden_values()):
        warn(line)
    warn_of_settings([job.config for job in jobs])
    if composer.is_sweep:
        check_sweep(jobs)
    return Plan(jobs, is_sweep=composer.is_sweep or jobs[0].config.cluster.submits_jobs)


def warn_of_settings(configs: Sequence[Config]) -> None:
    """Warn of settings that no run reads, and of problems that a shipped model can't solve."""
    for key in unread(configs[0]):
        if all(key in unread(config) for config in configs):
            warn(f"set and not read: {key}")
    lines = map(describe_unsolvable_problems, configs)
    for line in dict.fromkeys(lines):  # each once
        if line:
            warn(line)


def check_sweep(jobs: list[Job]) -> None:
    """Raise ConfigError for runs that can't be one sweep."""
    first = jobs[0].config
    overrides_by_folder: dict[Path, list[str]] = {}
    for job in jobs:
        config = job.config
        overrides = " ".join(job.overrides)
        for key in SHARED_KEYS:
            value = attrgetter(key)(config)
            first_value = attrgetter(key)(first)
            if value != first_value:
                values = f"{key.removesuffix('.name')}={first_value},{value}"
                raise ConfigError(f"{values}: the runs of a sweep share it; give one, and start a sweep for each")
        if first.cluster.submits_jobs and config.cluster != first.cluster:
            raise ConfigError(f"{overrides}: its cluster settings differ; start a sweep for each")
        if config.folder in overrides_by_folder:
            raise ConfigError(
                f"{overrides} and {' '.join(overrides_by_folder[config.folder])} are the same run; "
                "what only says where and how it computes doesn't make another one"
            )
        overrides_by_folder[config.folder] = job.overrides


def refuse_plugins(hydra: DictConfig) -> None:
    """Raise ConfigError for a launcher or sweeper of Hydra's."""
    for kind in ("Launcher", "Sweeper"):
        plugin = hydra[kind.lower()]
        target = str(plugin._target_ if OmegaConf.is_dict(plugin) else plugin)
        if not target.endswith(f".Basic{kind}"):
            raise ConfigError(f"hydra/{kind.lower()} is {target}: leave it out; cluster says where runs start")


def refuse_unread_hydra(hydra: DictConfig) -> None:
    """Raise ConfigError for a setting of Hydra's own that a YAML changes and that nothing reads."""
    for key, value in UNREAD_HYDRA.items():
        if OmegaConf.select(hydra, key) == value:
            continue
        if OwnFolder.path is not None and (OwnFolder.path / "config.yaml").is_file():
            raise ConfigError(
                f"{OwnFolder.path / 'config.yaml'} takes the place of {CONF / 'config.yaml'}, which also sets "
                f"hydra.{key}={show(value)}: write an experiment/NAME.yaml in its place, or copy that file"
            )
        raise ConfigError(
            f"nothing reads hydra.{key}, which a YAML sets; output_dir, name and cluster say where runs are"
        )
