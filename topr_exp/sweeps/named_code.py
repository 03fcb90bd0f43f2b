"""Code that a sweep's stored settings name: whoever packed the folder wrote them, so `resume` asks for confirmation.

To confirm is to repeat the setting on the command line, as for `evaluate`. This package and installed ones need none.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topr_exp.config.groups import ClusterConfig
from topr_exp.runtime.terminal import printable
from topr_exp.schema import plain, show
from topr_exp.sweeps.installed_modules import is_installed
from topr_exp.sweeps.sweep import Run
from topr_exp.types import ConfigError

TARGET_KEYS = (  # package.module.name
    "algo._target_", "data._target_", "sampler._target_", "data.grader._target_", "schedule.when_stale._target_",
)  # fmt: skip
COMMAND_KEYS = ("sampler.python", "model.trust_remote_code")  # an interpreter; the code in a model's folder
# Options of sbatch that name no command and no file.
HARMLESS_OPTIONS = frozenset({
    "account", "constraint", "exclusive", "mail-type", "mail-user", "mem", "partition", "qos", "reservation"
})  # fmt: skip
HARMLESS_VALUE = re.compile(r"[\w.,:@%+&|*()\[\]/=-]+")  # sbatch reads it as one word, however Submitit quotes it
CODE_KEYS = (*TARGET_KEYS, *COMMAND_KEYS)
CONFIRMATIONS = tuple(f"{key}=" for key in CODE_KEYS)  # how settings of a command line that name code begin


def code_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings of a run, as KEY=VALUE, that name code outside this package."""
    overrides = []
    for key in CODE_KEYS:
        value = value_of(settings, key)
        if names_code(key, value):
            overrides.append(f"{key}={show(value)}")
    return overrides


def value_of(settings: Mapping[str, Any], key: str) -> Any:
    """The nested value of a dotted key, as settings are built from; one that is stored under the dotted key is none."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def names_code(key: str, value: Any) -> bool:
    """True if a setting of CODE_KEYS names code outside this package."""
    if key in COMMAND_KEYS:
        return bool(value)
    return isinstance(value, str) and value.partition(".")[0] != "topr_exp"


def names_installed_code(override: str) -> bool:
    """True if a setting of `code_settings` names a module of an installed distribution."""
    key, _, value = override.partition("=")
    return key not in COMMAND_KEYS and is_installed(value)


def cluster_code_settings(cluster: ClusterConfig) -> list[str]:
    """Return the settings of a cluster, as KEY=VALUE of Hydra's, that may run a command or write a file."""
    overrides = []
    values = plain(cluster)
    setup = values.get("setup")
    if setup:
        overrides.append(f"cluster.setup={json.dumps(setup)}")
    options = values.get("additional_parameters") or {}
    if not all(is_harmless(name, value) for name, value in options.items()):
        option_texts = [f"{name}: {json.dumps(option)}" for name, option in options.items()]
        overrides.append(f"cluster.additional_parameters={{{', '.join(option_texts)}}}")
    return overrides


def is_harmless(option: str, value: Any) -> bool:
    """True for an option of sbatch that runs no command, writes no file and holds no further option."""
    return option.replace("_", "-") in HARMLESS_OPTIONS and HARMLESS_VALUE.fullmatch(str(value)) is not None


def confirm_code(folder: Path, runs: Sequence[Run], cluster: ClusterConfig, settings: Sequence[str]) -> list[str]:
    """Return the settings that name code, of these runs of a sweep and of their cluster.

    settings: of the command line. Raises ConfigError if code that is not installed is not confirmed there, or if a
    confirmation is of no run.
    """
    run_settings: dict[str, None] = {}  # ordered, without repetitions
    for run in runs:
        run_settings.update(dict.fromkeys(code_settings(run.settings)))
    cluster_settings = cluster_code_settings(cluster) if runs else []
    confirmations = {text for text in settings if text.startswith(CONFIRMATIONS)}
    unknown = sorted(confirmations - run_settings.keys())
    if unknown:
        raise ConfigError(f"{unknown[0]}: no run of {folder} that is to start has this setting")
    unconfirmed = [text for text in run_settings if text not in confirmations and not names_installed_code(text)]
    # The command line replaces a cluster's settings, where it has them.
    replaced_keys = {text.lstrip("+~").partition("=")[0] for text in settings}
    unconfirmed += [text for text in cluster_settings if text.partition("=")[0] not in replaced_keys]
    if unconfirmed:
        arguments = printable(shlex.join(unconfirmed), keep="")
        raise ConfigError(
            f"{folder}: its settings run code that is not installed; if you trust it, say so: "
            f"python -m topr_exp.sweeps resume {shlex.quote(str(folder))} {arguments}"
        )
    return [*run_settings, *cluster_settings]


def refuse_strange_place(run: Run) -> None:
    """Raise ConfigError if a run was launched in a folder that its sweep does not lie in.

    The current folder is the user's choice, and a folder that does not exist is an error of the run.
    """
    place = Path(run.cwd)
    if place.is_dir() and not run.folder.resolve().is_relative_to(place.resolve()) and not place.samefile("."):
        raise ConfigError(
            f"{run.folder} was launched in {place}, which it does not lie in and which is not the current folder: to "
            f"trust what is there, cd {shlex.quote(str(place))} first"
        )
