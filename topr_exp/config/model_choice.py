"""The YAML of conf/model whose settings are for a model that is named by a folder or a name on the hub.

Settings of a shipped model, which is a toy, are for models that are no larger. Nothing but small JSON files is read.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from topr_exp.config.yamls import PACKAGE, find_yaml
from topr_exp.types import ConfigError

SHIPPED = PACKAGE / "tiny"
TOY = "tiny"  # the choice whose settings a toy takes where no YAML is for it
GENERAL = "llama3_8b"  # the choice whose settings any other model takes
LARGEST_FILE = 1 << 22  # bytes of a config.json


class Shape(NamedTuple):
    """Numbers of a model's config.json."""

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int


@dataclass(frozen=True)
class Preset:
    """A YAML of conf/model: its name, the model that it is for, and that one's shape where it is known."""

    name: str
    path: str
    shape: Shape | None
    toy: bool


@dataclass(frozen=True)
class ModelChoice:
    """A model that is no choice of conf/model, and the choice whose settings it takes."""

    choice: str
    reason: str  # why these settings
    path: str
    name: str
    folder: Path | None  # None: on the hub

    @property
    def described(self) -> str:
        return f"model={self.choice}, {self.reason}"


def choose_settings(key: str, word: str, choices: Sequence[str]) -> ModelChoice:
    """The settings for the model that `key`=`word` names; ConfigError for a folder that is not there or has none."""
    folder = find_weights(key, word)
    presets = read_presets(choices)
    name = name_of(word, folder)
    path = word
    named = [preset for preset in presets if preset.path == word]
    if named:
        choice, reason = named[0].name, "which is for it"
    elif folder is None:
        choice, reason = GENERAL, "since no YAML of conf/model names it"
    else:
        choice, reason = settings_of_folder(folder, shape_of(folder), presets)
        if folder != expand_home(word) and not is_shipped(word):
            path = str(folder)  # `word` is a run, and its weights are in its model/
    return ModelChoice(choice, reason, path, name, folder)


def settings_of_folder(folder: Path, shape: Shape | None, presets: Sequence[Preset]) -> tuple[str, str]:
    """The choice whose settings fit a folder of weights, and why."""
    is_small = is_toy(shape, presets)
    fitting = [preset for preset in presets if not preset.toy or is_small]
    name_of_run = preset_of_run(folder)
    folder_parts = {part.lower() for part in folder.resolve().parts}
    for preset in fitting:
        if preset.name == name_of_run:
            return preset.name, "of the run that wrote it"
    for preset in fitting:
        has_other_shape = preset.shape is not None and preset.shape != shape
        if not has_other_shape and folder_parts & folder_names(preset.path):
            return preset.name, "whose model its folder names"
    for preset in fitting:
        if shape is not None and preset.shape == shape:
            return preset.name, "whose model has its shape"
    if is_small:
        return TOY, "since it is as small as a shipped model"
    return GENERAL, "since no YAML of conf/model has its name or shape"


def refuse_toy_settings(choice: str, word: str, choices: Sequence[str]) -> None:
    """Raise ConfigError where `model`=`choice` has settings of a shipped model and `model.path` is a larger one."""
    if is_shipped(word):
        return
    presets = read_presets(choices)
    if not any(preset.toy and preset.name == choice for preset in presets):
        return
    folder = find_weights("model.path", word)
    if folder is None or not is_toy(shape_of(folder), presets):
        raise ConfigError(
            f"model={choice} model.path={word}: settings of a shipped model of 0.6 M parameters, for a larger one; "
            f"leave model={choice} out, or give model={GENERAL} (in a YAML defaults: [override /model: {GENERAL}])"
        )


# ---- what a word on the command line means


def is_other_model(word: Any, choices: Iterable[str]) -> bool:
    """True for a folder or a name on the hub in place of a choice."""
    if not isinstance(word, str) or word in choices:
        return False
    return "/" in word or word.startswith("~") or Path(word).is_dir()


def is_shipped(word: str) -> bool:
    return "/" not in word and (SHIPPED / word / "config.json").is_file()


def is_hub_name(word: str) -> bool:
    return word.count("/") == 1 and not word.startswith((".", "/", "~"))


def expand_home(word: str) -> Path:
    """The path with a home folder in place of `~`, which stays where there is none (pathlib raises RuntimeError)."""
    return Path(os.path.expanduser(word))


def find_named_folder(key: str, word: str) -> Path | None:
    """The folder that `key`=`word` names, a shipped model's or another; None for a name on the hub."""
    if is_shipped(word):
        return SHIPPED / word
    folder = expand_home(word)
    if folder.is_dir():
        return folder
    if is_hub_name(word):
        return None
    names = sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))
    raise ConfigError(f"{key}={word}: no such folder; shipped models are {', '.join(names)}")


def find_weights(key: str, word: str) -> Path | None:
    """The folder of weights that is meant: the named one, or in a run's folder its model/; None on the hub."""
    folder = find_named_folder(key, word)
    if folder is None:
        return None
    # A run's config.json holds its settings, the model's is in its model/.
    is_run = (folder / "state.json").exists() or "resolved" in read_small_json(folder)
    if is_run or (folder / "model").is_dir() or not (folder / "config.json").exists():
        folder = folder / "model"
        if not (folder / "config.json").exists():
            if read_small_json(folder.parent, "summary.json").get("model_saved") is False:
                raise ConfigError(f"{key}={word}: its model was not saved (checkpoint.weights=none)")
            raise ConfigError(f"{key}={word}: there is no model in it, nor in its model/ (no config.json)")
    return folder


def name_of(word: str, folder: Path | None) -> str:
    """The name of a model: the last part of its path, the run's for the model of a run, and both for an update's."""
    path = Path(word)
    if folder is not None and not is_shipped(word):
        path = folder.resolve()
    parts = list(path.parts)
    is_of_update = len(parts) > 1 and parts[-1].startswith("update-") and parts[-2].startswith("iteration-")
    if is_of_update:
        return "_".join(reversed(parts[-3:]))  # update-50_iteration-1_RUN
    while len(parts) > 1 and (parts[-1] == "model" or parts[-1].startswith("iteration-")):
        parts.pop()
    return parts[-1]


def folder_names(path: str) -> set[str]:
    """The names that a download of a model gives a folder."""
    return {path.rpartition("/")[2].lower(), f"models--{path.replace('/', '--')}".lower()}


# ---- files


def read_presets(choices: Sequence[str]) -> list[Preset]:
    """The YAMLs of conf/model that name a model, in the order of their names; the general one before its likes."""
    presets = []
    for choice in sorted(choices, key=lambda name: (name != GENERAL, name)):
        file = find_yaml("model", choice)
        preset = preset_of(choice, file) if file is not None else None
        if preset is not None:
            presets.append(preset)
    return presets


def preset_of(choice: str, file: Path) -> Preset | None:
    """The preset that a YAML is; None for one that names no model, or is damaged (Hydra says so if it is chosen)."""
    try:
        settings = OmegaConf.load(file)
        path = OmegaConf.select(settings, "model.path")
        shape: Any = OmegaConf.select(settings, "preset.shape")
    except (OmegaConfBaseException, YAMLError, AttributeError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    if not isinstance(path, str):
        return None
    if is_shipped(path):
        return Preset(choice, path, shape_of(SHIPPED / path), toy=True)
    if shape is not None:
        if len(shape) != len(Shape._fields):
            raise ConfigError(f"{file}: preset.shape={list(shape)}: expected three numbers, as in [4096, 32, 128256]")
        shape = Shape(*shape)
    return Preset(choice, path, shape, toy=False)


def shape_of(folder: Path) -> Shape | None:
    """The shape of the language model in a folder; None where its config.json does not tell."""
    stored = read_small_json(folder)
    text = stored.get("text_config")
    levels = [stored, text] if isinstance(text, dict) else [stored]  # models of texts and images nest the one of texts
    for level in levels:
        numbers: list[Any] = [level.get(name) for name in Shape._fields]
        if all(isinstance(number, int) for number in numbers):
            return Shape(*numbers)
    return None


def is_toy(shape: Shape | None, presets: Sequence[Preset]) -> bool:
    """True for a model that has no more layers than a shipped one, and none wider."""
    if shape is None:
        return False
    for preset in presets:
        toy = preset.shape
        if not preset.toy or toy is None:
            continue
        if shape.hidden_size <= toy.hidden_size and shape.num_hidden_layers <= toy.num_hidden_layers:
            return True
    return False


def preset_of_run(weights: Path) -> str | None:
    """The label of the model in the settings of the run that wrote a folder of weights; None for another folder."""
    for folder in list(weights.resolve().parents)[:2]:  # <run>/model, <run>/iteration-1/model or /update-50
        resolved = read_small_json(folder).get("resolved")
        model = resolved.get("model") if isinstance(resolved, dict) else None
        if isinstance(model, dict) and isinstance(name := model.get("name"), str):
            return name
    return None


def read_small_json(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The object of a folder's small JSON file; {} where there is none, which those say who load it.

    ConfigError where the disk fails: other settings would be chosen.
    """
    path = folder / name
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            return {}
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, PermissionError, ValueError, RecursionError):
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if isinstance(stored, dict):
        return stored
    return {}
