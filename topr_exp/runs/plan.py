"""From a command line to its runs, each composed and checked before the first one starts."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.groups import ClusterConfig
from topr_exp.config.load import build_section, load
from topr_exp.config.settings import Config, unread
from topr_exp.runs.preflight import asks_too_much, check_files
from topr_exp.runtime.terminal import warn
from topr_exp.types import ConfigError


@dataclass(frozen=True)
class Job:
    """One run: the overrides that make it, its checked settings, and these as Hydra composed them."""

    overrides: list[str]
    config: Config
    composed: DictConfig | None = field(default=None, repr=False, compare=False)  # with `learning_rates`


@dataclass(frozen=True)
class Plan:
    """All runs of a command line, and what starts them."""

    jobs: list[Job]  # in the order in which they start
    sweep: bool  # with a table of its runs; a single run that is submitted elsewhere is a sweep too


def plan(args: Namespace) -> Plan:
    """The checked runs of a parsed command line; ConfigError with one line."""
    composer = Composer(args)
    base = composer.base()
    sweep, jobs = composer.sweeps(base), []
    refuse_plugins(base)
    for overrides, composed in composer.jobs(base):
        jobs.append(Job(overrides, load(composed), composed))
        check_files(jobs[-1].config)
    for key in unread(jobs[0].config):
        if all(key in unread(job.config) for job in jobs):
            warn(f"set and not read: {key}")
    for text in dict.fromkeys(asks_too_much(job.config) for job in jobs):
        if text:
            warn(text)
    if sweep:
        check_sweep(jobs)
    return Plan(jobs, sweep or jobs[0].config.cluster.submits_jobs)


def recompose(arguments: Sequence[str], settings: Sequence[str]) -> ClusterConfig:
    """The cluster of a resumed sweep: of its last launch, changed by `settings`; ConfigError for other settings."""
    for text in settings:
        if not belongs_to_cluster(text):
            raise ConfigError(f"{text}: only cluster settings can change when a sweep is resumed")
    args = parse_arguments(arguments)
    another = any(text.startswith("cluster=") for text in settings)
    others = ("experiment=", "hydra.searchpath=", "model=", "name=")
    kept = [text for text in args.overrides if text.lstrip("+").startswith(others) or belongs_to_cluster(text)]
    kept = [text for text in kept if not (another and text.startswith("cluster"))]
    last = {key_of(text): text for text in [*kept, *settings]}
    args.overrides = list(last.values())
    base = Composer(args).base()
    checked: ClusterConfig = build_section("cluster", OmegaConf.to_container(base.cluster, resolve=True))
    return checked


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def belongs_to_cluster(override: str) -> bool:
    return override.lstrip("+~").startswith(("cluster=", "cluster."))


def check_sweep(jobs: list[Job]) -> None:
    first, seen = jobs[0].config, dict[Path, list[str]]()
    for job in jobs:
        config = job.config
        for key in ("cluster.name", "name", "output_dir"):
            one, other = (attrgetter(key)(settings) for settings in (first, config))
            if one != other:
                shown = f"{key.removesuffix('.name')}={one},{other}"
                raise ConfigError(f"{shown}: the runs of a sweep share it; give one, and start a sweep for each")
        if first.cluster.submits_jobs and config.cluster != first.cluster:
            raise ConfigError(f"{' '.join(job.overrides)}: its cluster settings differ; start a sweep for each")
        if config.folder in seen:
            raise ConfigError(
                f"{' '.join(job.overrides)} and {' '.join(seen[config.folder])} are the same run; "
                "what only says where and how it computes doesn't make another one"
            )
        seen[config.folder] = job.overrides


def refuse_plugins(base: DictConfig) -> None:
    for kind in ("Launcher", "Sweeper"):
        given = base.hydra[kind.lower()]
        target = str(given._target_ if OmegaConf.is_dict(given) else given)
        if not target.endswith(f".Basic{kind}"):
            raise ConfigError(f"hydra/{kind.lower()} is {target}: leave it out; cluster says where runs start")
