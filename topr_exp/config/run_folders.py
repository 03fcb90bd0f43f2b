"""Names of runs and of their sweeps' folders, and the folder that a run has already.

A run's name: algorithm, data, model, learning rate, what is not the default, seed, and a hash of the identity.
"""

import dataclasses
import errno
import functools
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from topr_exp.schema import Range, default_of, identity, identity_settings, plain
from topr_exp.types import TOPRError

# Folders of output_dir, or of a run, that are no sweep's.
RESERVED_NAMES = ("store", "check", "model", "wandb", "tensorboard", "checkpoints", "report", "replaced")
MAX_NAME_LENGTH = 80  # characters of a run's name before the hash
MAX_CHOICE_LENGTH = 20  # characters of an algorithm, a data set or a model in it
MAX_VALUE_LENGTH = 16  # characters of a setting's value in it
ABBREVIATIONS = {"baseline": "c", "effective_positive": "pe", "model.lora.rank": "lora"}  # shorter words for it
HASH = re.compile(r"_[0-9a-f]{10}\Z")  # at the end of a run's name
HASH_LENGTH = 11  # characters, the _ among them


def is_name(name: str) -> bool:
    """True for a name that a sweep's folder can have."""
    is_safe = name[:1].isalnum() and all(character.isalnum() or character in "._-" for character in name)
    return is_safe and len(name.encode()) <= 100 and name not in RESERVED_NAMES


NAME = Range(
    f"1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit, and none of {', '.join(RESERVED_NAMES)}",
    is_name,
)


# ---- the name of a run


def run_name(settings: Any, own_loss: Any, swept_keys: Iterable[str] = ()) -> str:
    """A run's folder: algorithm, data, model, learning rate, what is not the default, seed, hash of the identity.

    own_loss: the loss as its own YAML has it, None: unknown; hyper-parameters that differ from it are parts, too.
    swept_keys: other keys that are parts, though they have no default.
    """
    choices = (settings.algo, settings.data, settings.model)
    parts = [safe_name(choice.name)[:MAX_CHOICE_LENGTH] for choice in choices]
    learning_rate = f"lr{text_in_name(settings.optim.lr)}"
    seed = f"s{settings.seed}"
    shown_keys = {*swept_keys} - {"optim.lr", "seed"}  # which have places of their own
    if own_loss is not None:
        for field, key, value in identity_settings(settings.algo, "algo."):
            if getattr(own_loss, field.name) != value:
                shown_keys.add(key)
    for part in (learning_rate, *non_default_parts(settings, shown_keys)):
        name = "_".join([*parts, part, seed])
        if len(name) <= MAX_NAME_LENGTH:
            parts.append(part)
    return name_with_hash("_".join([*parts, seed]), identity(settings))


def non_default_parts(settings: Any, shown_keys: Collection[str], prefix: str = "") -> Iterator[str]:
    """The settings that are not at their default, as parts of a name; what is too long for one stands in the hash.

    shown_keys: of settings without a default that are parts, too.
    """
    for field, key, value in identity_settings(settings, prefix):
        if dataclasses.is_dataclass(value):
            yield from non_default_parts(value, shown_keys, f"{key}.")
        elif key in ABBREVIATIONS or key in shown_keys or default_of(field) is not dataclasses.MISSING:
            part = name_part(ABBREVIATIONS.get(key, field.name), value)
            if part is not None:
                yield part


def name_part(word: str, value: Any) -> str | None:
    """A setting as a part of a run's name; None for a value that is too long for one."""
    text = text_in_name(value)
    if isinstance(value, bool):
        return word if value else f"no-{word}"
    if len(text) > MAX_VALUE_LENGTH:
        return None
    if word == "name":
        return text
    return f"{word}-{text}" if text[:1].isalpha() else f"{word}{text}"


def text_in_name(value: Any) -> str:
    """A value as it stands in a name, such as 1e-3."""
    if isinstance(value, float):
        is_readable = value == 0 or 0.01 <= abs(value) < 1e5
        if is_readable:
            return f"{value:g}"
        # 1.000000e-03 becomes 1e-3.
        return re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{value:e}")
    if isinstance(value, list):
        return "-".join(map(text_in_name, value))
    return safe_name(str(plain(value)))


def name_with_hash(name: str, inputs: Any) -> str:
    """The name of a folder: one for the eye, and a hash of the inputs that decide what is in the folder."""
    text = json.dumps(inputs, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{name}_{digest[:10]}"


def safe_name(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)


# ---- the folder that has it


def folder_of(parent: Path, name: str) -> Path:
    """The folder `name` in `parent`, or where there is none, the one whose name has the same hash.

    The hash alone says what a run is. The words before it change with what a release or a YAML has for a default.
    """
    folder = parent / name
    try:
        if os.path.lexists(folder):
            return folder
        return list_hashed_folders(parent, parent.stat().st_mtime_ns).get(name[-HASH_LENGTH:], folder)
    except OSError as error:
        if error.errno in (errno.EIO, errno.ESTALE):  # a folder of the run may be there
            raise TOPRError(f"{parent} can't be read ({error.strerror})") from None
        return folder  # none there; what can't be written in is refused later


@functools.lru_cache(maxsize=8)
def list_hashed_folders(parent: Path, modified: int) -> dict[str, Path]:
    """The folders of runs in `parent`, by the hash at the end of their names.

    modified: time of its last change, in ns, so that a changed folder is listed anew.
    """
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if HASH.search(entry.name) and entry.is_dir()]
    return {name[-HASH_LENGTH:]: parent / name for name in names}
