"""Code that a sweep's stored settings name: whoever packed the folder wrote them, so `resume` asks for a word.

The word is the setting itself on the command line, as for `evaluate`. This package and installed ones need none.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_exp.config.groups import ClusterConfig
from topr_exp.runtime.terminal import printable
from topr_exp.schema import plain
from topr_exp.sweeps.sweep import Run
from topr_exp.types import ConfigError

CLASSES = ("algo._target_", "data._target_")  # package.module.Class
FUNCTIONS = ("data.grader", "sampler.name")  # package.module:name; without a colon one of this package's
COMMANDS = ("sampler.python", "model.trust_remote_code")  # an interpreter; the code in a model's folder
OF_CLUSTER = ("cluster.setup", "cluster.additional_parameters")  # shell commands, options of sbatch
KEYS = (*CLASSES, *FUNCTIONS, *COMMANDS)


def code_words(settings: Mapping[str, Any]) -> list[str]:
    """The settings of a run, as KEY=VALUE, that name code of another package, or what may run any code."""
    words = []
    for key in KEYS:
        group, _, name = key.partition(".")
        values = settings.get(group)
        value = values.get(name) if isinstance(values, Mapping) else None
        if key in COMMANDS:
            names_code = bool(value)
        else:
            is_module = isinstance(value, str) and (key in CLASSES or ":" in value)
            names_code = is_module and package_of(str(value)) != "topr_exp"
        if names_code:
            words.append(f"{key}={str(value).lower() if isinstance(value, bool) else value}")
    return words


def is_installed(word: str) -> bool:
    """True if a word of `code_words` names a module of an installed distribution."""
    key, _, value = word.partition("=")
    return key not in COMMANDS and package_of(value) in metadata.packages_distributions()


def package_of(name: str) -> str:
    return name.replace(":", ".").partition(".")[0]


def cluster_words(cluster: ClusterConfig) -> list[str]:
    """The settings of a cluster that a shell or sbatch interprets, as KEY=VALUE of Hydra's."""
    values, words = plain(cluster), []
    for key in OF_CLUSTER:
        value = values.get(key.partition(".")[2])
        if isinstance(value, Mapping):
            value = "{" + ", ".join(f"{name}: {json.dumps(text)}" for name, text in value.items()) + "}"
        elif value:
            value = json.dumps(value)
        if value:
            words.append(f"{key}={value}")
    return words


def confirm_code(folder: Path, runs: Sequence[Run], cluster: ClusterConfig, given: Sequence[str]) -> list[str]:
    """The words for all code that these runs of a sweep and their cluster name.

    given: the settings of the command line. ConfigError where code that is not installed is not among them, and where
    they name some that no run has.
    """
    of_runs = dict.fromkeys(word for run in runs for word in code_words(run.settings))
    of_cluster = cluster_words(cluster) if runs else []
    given_words = {text for text in given if text.startswith(tuple(f"{key}=" for key in KEYS))}
    if unknown := sorted(given_words - of_runs.keys()):
        raise ConfigError(f"{unknown[0]}: no run of {folder} that is to start has this setting")
    given_keys = {text.lstrip("+~").partition("=")[0] for text in given}
    unconfirmed = [word for word in of_runs if word not in given_words and not is_installed(word)]
    unconfirmed += [word for word in of_cluster if word.partition("=")[0] not in given_keys]
    if unconfirmed:
        shown = printable(shlex.join(unconfirmed), keep="")
        raise ConfigError(
            f"{folder}: its settings run code that is not installed; if you trust it, say so: "
            f"python -m topr_exp.sweeps resume {folder} {shown}"
        )
    return [*of_runs, *of_cluster]


def refuse_strange_place(run: Run) -> None:
    """Raise ConfigError where a run's relative paths count from a folder that its sweep does not lie in.

    The current folder is the user's choice, and one that is not there is an error of the run.
    """
    place = Path(run.cwd)
    if place.is_dir() and not run.folder.resolve().is_relative_to(place.resolve()) and not place.samefile("."):
        raise ConfigError(
            f"{run.folder} was launched in {place}, which it does not lie in and which is not the current folder: to "
            f"trust what is there, cd {shlex.quote(str(place))} first"
        )
