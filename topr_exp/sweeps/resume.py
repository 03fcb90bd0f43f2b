"""Resuming a sweep from its folder: checks on stored settings, which may be another user's, before anything starts."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.groups import ClusterConfig
from topr_exp.config.load import build_section
from topr_exp.runs.preflight import check_machine
from topr_exp.runs.run_files import LAUNCH
from topr_exp.runs.run_lock import lock_run_folder
from topr_exp.runtime.files import disk_errors, refuse_linked_folders
from topr_exp.runtime.terminal import say, warn
from topr_exp.schema import plain
from topr_exp.sweeps.installed_modules import is_installed
from topr_exp.sweeps.launch import run_unfinished
from topr_exp.sweeps.named_code import CONFIRMATIONS, confirm_code, refuse_strange_place
from topr_exp.sweeps.registry import SCHEDULERS, read_statuses
from topr_exp.sweeps.run_status import missing_status
from topr_exp.sweeps.sweep import CLAIM, Run, missing_runs, newest_run, open_sweep, record_runs
from topr_exp.types import ConfigError, TOPRError

RECOMPOSED_OVERRIDES = ("experiment=", "hydra.searchpath=", "model=", "name=")  # they may set cluster keys


def resume_sweep(folder: Path, settings: Sequence[str]) -> int:
    """Start the unfinished runs of a sweep that are active nowhere; returns the exit code.

    settings: changed cluster settings, and settings that confirm code that the sweep names.
    """
    runs = open_sweep(folder)
    refuse_linked_folders(folder, "*")
    warn_of_other_users(folder, runs)
    newest = newest_run(runs)
    runs_to_start = find_runs_to_start(runs)
    for run in (newest, *runs_to_start):
        refuse_strange_place(run)
    cluster_settings = [text for text in settings if not text.startswith(CONFIRMATIONS)]
    absolute_folder = folder.resolve()
    with disk_errors(f"enter {newest.cwd}, where the sweep was launched"), contextlib.chdir(newest.cwd):
        cluster = recompose(newest.arguments, cluster_settings)
        # Before the settings are loaded, which imports the code.
        code_settings = confirm_code(folder, runs_to_start, cluster, settings)
        use_cluster(runs_to_start, cluster)
        configs = [run.config() for run in runs_to_start]
        for run, config in zip(runs_to_start, configs, strict=True):
            launch_folder = Path(run.cwd, config.folder.parent).resolve()
            if launch_folder != absolute_folder:
                raise TOPRError(f"{folder} was launched as {launch_folder}, where its runs would go on: move it back")
        check_machine(configs)
    say(f"launched in {newest.cwd}; code beyond topr_exp: {', '.join(code_settings) or 'none'}")
    SCHEDULERS[cluster.name].check_available()
    with lock_run_folder(folder, CLAIM, "launched"):
        # Once more, by the files as they are under the lock: they may have changed.
        runs = open_sweep(folder)
        confirm_code(folder, find_runs_to_start(runs), cluster, settings)
        use_cluster(runs, cluster)
        missing = list(map(missing_status, missing_runs(folder, runs)))
        record_runs(folder, runs)
        return run_unfinished(runs, cluster, missing=missing)


def warn_of_other_users(folder: Path, runs: Sequence[Run]) -> None:
    """Warn if files that decide what runs belong to another user."""
    owners = {folder.stat().st_uid}
    for run in runs:
        owners.add((run.folder / LAUNCH).stat().st_uid)
    for owner in owners - {os.getuid()}:
        warn(f"{folder} belongs to user {owner}, whose settings now run as yours, with the code that they name")


def find_runs_to_start(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are neither done nor active."""
    statuses, _ = read_statuses(runs)
    return [status.run for status in statuses if status.needs_start]


def use_cluster(runs: Sequence[Run], cluster: ClusterConfig) -> None:
    """Replace the cluster settings of runs."""
    for run in runs:
        run.settings["cluster"] = plain(cluster)


# ---- the cluster


def recompose(arguments: Sequence[str], settings: Sequence[str]) -> ClusterConfig:
    """Return the cluster of a sweep's last launch, changed by `settings`.

    ConfigError for other settings, and where to compose them would import code that is not installed.
    """
    for override in settings:
        if not belongs_to_cluster(override):
            raise ConfigError(f"{override}: only cluster settings can change when a sweep is resumed")
    args = parse_arguments(arguments)
    launch_overrides = [override for override in args.overrides if may_set_cluster(override)]
    if any(override.startswith("cluster=") for override in settings):
        # A new cluster=NAME replaces the cluster settings of the launch.
        launch_overrides = [override for override in launch_overrides if not override.startswith("cluster")]
    args.overrides = merge_overrides(launch_overrides, settings)
    composer = Composer(args)
    refuse_strange_modules(composer)
    composed = composer.compose(composer.fixed_overrides())
    cluster: ClusterConfig = build_section("cluster", OmegaConf.to_container(composed.cluster, resolve=True))
    return cluster


def merge_overrides(launch_overrides: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the overrides of a launch, and settings in place of those for the same key or a part of it."""
    override_by_key = {key_of(override): override for override in launch_overrides}
    for override in settings:
        key = key_of(override)
        for launch_key in list(override_by_key):
            if launch_key.startswith(f"{key}."):
                del override_by_key[launch_key]
        override_by_key[key] = override
    return [*override_by_key.values()]


def refuse_strange_modules(composer: Composer) -> None:
    """Raise ConfigError for YAMLs of a module that is not installed: whoever packed a sweep may have written it."""
    for module in composer.searched_modules():
        if not is_installed(module):
            raise ConfigError(
                f"hydra.searchpath names {module}, which is not installed: its code would run; if you trust it, launch "
                "the sweep again"
            )


def may_set_cluster(override: str) -> bool:
    return belongs_to_cluster(override) or override.lstrip("+").startswith(RECOMPOSED_OVERRIDES)


def belongs_to_cluster(override: str) -> bool:
    return override.lstrip("+~").startswith(("cluster=", "cluster."))


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
