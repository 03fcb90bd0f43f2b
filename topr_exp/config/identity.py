"""The identity of a run: the settings that decide its result, and the name that its folder has by them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from topr_exp.config.schema import class_path, plain

LONGEST = 80  # characters of a name before the hash
# Settings of where and how fast a run computes and what it reports; of the model, labels whose effects are settings.
NOT_IDENTITY = frozenset({
    "name", "dry_run", "output_dir", "cluster", "tracking", "checkpoint", "model.size", "model.learning_rates",
    "sampler.python", "sampler.gpu_memory_utilization", "sampler.cpu_cache_gib",
    "sampler.eager", "sampler.sleep", "sampler.timeout_min",
    "optim.micro_batch_size", "optim.gradient_checkpointing", "optim.score_batch_size",
})  # fmt: skip
# Shorter words for a name.
SHORT = {"baseline": "c", "effective_positive": "pe", "model.lora.rank": "lora"}


def identity(settings: Any, prefix: str = "") -> dict[str, Any]:
    """The settings that decide a result, as plain values: of a run, or of its group whose keys begin with `prefix`.

    A neutral value, null or the default of the dataclass field, is no part of it. THE RULE FOR A NEW KEY, a whole new
    group included: its field has a default that changes no result, so that runs keep their folders and go on. Classes
    of the package are known by name, so that their modules may move.
    """
    target = class_path(settings)
    values: dict[str, Any] = {"_target_": re.sub(r"^topr_exp\..*\.", "", target)} if target else {}
    for field, key, value in deciding(settings, prefix):
        values[field.name] = identity(value, f"{key}.") if dataclasses.is_dataclass(value) else plain(value)
    return values


def deciding(settings: Any, prefix: str) -> Iterator[tuple[dataclasses.Field[Any], str, Any]]:
    """The fields of a group that are part of the identity, with their dotted keys and values."""
    for field in dataclasses.fields(settings):
        key, value = f"{prefix}{field.name}", getattr(settings, field.name)
        if key not in NOT_IDENTITY and value is not None and value != field.default:
            yield field, key, value


def run_name(settings: Any) -> str:
    """A run's folder: algorithm, data, model, learning rate, what is not the default, seed, hash of the identity."""
    parts = [safe(group.name)[:20] for group in (settings.algo, settings.data, settings.model)]
    seed = f"s{settings.seed}"
    for part in (f"lr{shown(settings.optim.lr)}", *beside_defaults(settings)):
        if len("_".join([*parts, part, seed])) <= LONGEST:
            parts.append(part)
    return hashed("_".join([*parts, seed]), identity(settings))


def beside_defaults(settings: Any, prefix: str = "") -> Iterator[str]:
    """The settings that are not at their default, as parts of a name; what is too long for one stands in the hash."""
    for field, key, value in deciding(settings, prefix):
        if dataclasses.is_dataclass(value):
            yield from beside_defaults(value, f"{key}.")
        elif key in SHORT or field.default is not dataclasses.MISSING:
            word, text = SHORT.get(key, field.name), shown(value)
            if isinstance(value, bool):
                yield word if value else f"no-{word}"
            elif len(text) <= 16:
                yield text if word == "name" else f"{word}-{text}" if text[:1].isalpha() else f"{word}{text}"


def shown(value: Any) -> str:
    """A value in a name, such as 1e-3."""
    if isinstance(value, float):
        readable = value == 0 or 0.01 <= abs(value) < 1e5
        return f"{value:g}" if readable else re.sub(r"\.?0*e\+?(-?)0*", r"e\1", f"{value:e}")
    return "-".join(map(shown, value)) if isinstance(value, list) else safe(str(plain(value)))


def hashed(name: str, decides: Any) -> str:
    """The name of a folder: one for the eye, and a hash of all that decides what is in the folder."""
    return f"{name}_{hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]}"


def safe(text: str) -> str:
    """A text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)
