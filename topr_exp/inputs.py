"""The user's files that a run reads, by content: a run goes on only with those that it began with."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from topr_exp.config import Config
from topr_exp.data import folder
from topr_exp.grading.grader import source_file
from topr_exp.store.files import disk_errors, file_digest


def fingerprints(config: Config) -> dict[str, str]:
    """A hash of each file that a setting names, by setting and name; models are known by their weights instead."""
    found = {}
    for key, path in named_files(config):
        with disk_errors(f"read {path}"):
            found[f"{key} ({path.name})"] = file_digest(path)
    return found


def named_files(config: Config) -> Iterator[tuple[str, Path]]:
    data = config.data
    if data.source not in ("embedded", "hub"):
        for split in ("train", "test"):
            for path in folder.paths(data.format, split, Path(data.source).expanduser()):
                yield "data.source", path
    for key, name in (("data.completions", data.completions), ("data.fewshot_file", data.fewshot_file)):
        if name is not None and Path(name).is_file():
            yield key, Path(name)
    if data.grader is not None and (source := source_file(data.grader)) is not None:
        yield "data.grader", source
    module = type(config.algo).__module__
    if not module.startswith("topr_exp.") and (spec := importlib.util.find_spec(module)) and spec.origin:
        yield "algo._target_", Path(spec.origin)
