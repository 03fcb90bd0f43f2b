"""What a command line stands for: its runs, each composed and checked before the first one starts."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from topr_exp.config import Config, load, unknown_key
from topr_exp.overrides import Composer
from topr_exp.schema import build
from topr_exp.sweeps.config import ClusterConfig, cluster_schema
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


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
    cluster_of(base)  # which Hydra's launcher computes with
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
                "what only says where and how it computes doesn't make another one"
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
