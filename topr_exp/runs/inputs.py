"""Inputs of a run (files and models by content, CPU threads): it goes on only with those that it was begun with."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.config.data import DataConfig
from topr_exp.config.settings import Config
from topr_exp.grading.grader import source_file
from topr_exp.models.loading import ADAPTER, check_folder, find_folder, read_files, refuse_damage, weights_fingerprint
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.exit_status import warn
from topr_exp.runtime.files import disk_errors, file_digest
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.runs.folder import RunFolder


def refuse_changed_inputs(run: RunFolder, config: Config) -> None:
    """Raise TOPRError when a file or a model folder is not what the run was begun with. Nothing is written.

    A model whose files have their old sizes and times is not read: hashing 16 GB takes 8 seconds and more.
    """
    if run.read("inputs.json", "files") is None:
        return
    run.refuse_changed("files", fingerprints(config))
    models, looks = run.noted("models") or {}, run.noted("looks") or {}
    folders = {key: path for key, path in model_folders(config).items() if key in models}
    other = {key: path for key, path in folders.items() if stat_signature(path) != looks.get(key)}
    run.refuse_changed("models", models | {key: weights_fingerprint(path) for key, path in other.items()})


@main_process_only
def refuse_damaged_model(folder: Path) -> None:
    """Raise TOPRError when the model of a finished run is not what it was."""
    try:
        check_folder(folder, str(folder))
    except TOPRError as error:
        remedy = "restore it, or remove it and DONE beside it, and the same command trains it again"
        raise TOPRError(f"{error}; {remedy}") from None
    for part in (folder, folder / ADAPTER):
        refuse_damage(part)


def note_models(run: RunFolder, config: Config, fingerprint: str) -> None:
    """Note the models of a run, whose own has this fingerprint now that it is loaded; TOPRError when that has changed.

    The others were compared by `refuse_changed_inputs`.
    """
    folders = model_folders(config)
    noted = run.noted("models")
    if noted is None:
        noted = {key: weights_fingerprint(path) for key, path in folders.items() if key != "model.path"}
    found = {**noted, "model.path": fingerprint}
    run.refuse_changed("models", found)
    run.note("models", found)
    run.note("looks", {key: stat_signature(path) for key, path in folders.items()})


def keep_threads(run: RunFolder, config: Config) -> None:
    """Compute with as many CPU threads as the run was begun with, since their number decides the last digits."""
    import torch

    before, now = (run.read("environment.json") or {}).get("threads"), torch.get_num_threads()
    if before is None or before == now:
        return
    if config.cluster.threads is None:
        torch.set_num_threads(before)
    else:
        warn(f"the run was begun with cluster.threads={before}; with {now} its last digits may differ")


def model_folders(config: Config) -> dict[str, Path]:
    """The models that a run reads from this machine, by setting; those on the hub are known once they are loaded."""
    names = {
        "model.path": config.model.path,
        "model.reference": config.model.reference,
        "task.solver": config.task.solver,
    }
    found = {key: find_folder(name, key) for key, name in names.items() if name is not None}
    return {key: path for key, path in found.items() if path is not None}


def stat_signature(path: Path) -> dict[str, list[int]]:
    """Sizes and times of a model folder's files, without reading them."""
    with disk_errors(f"read {path}"):
        statuses = {file.name: file.stat() for file in read_files(path)}
    return {name: [status.st_size, status.st_mtime_ns] for name, status in statuses.items()}


def fingerprints(config: Config) -> dict[str, str]:
    """A hash of each file that a setting names, by setting and name; models are known by their weights instead."""
    found = {}
    for key, path in named_files(config):
        with disk_errors(f"read {path}"):
            status = path.stat()
            found[f"{key} ({path.name})"] = digest_of(path, status.st_size, status.st_mtime_ns)
    return found


@functools.lru_cache
def digest_of(path: Path, size: int, changed: int) -> str:
    """The hash of a file with this size and time: the runs of a sweep read the same files."""
    return file_digest(path)


def named_files(config: Config) -> Iterator[tuple[str, Path]]:
    data = config.data
    for key, path in data.files():
        yield f"data.{key}", path
    for key, name in (("data.completions", data.completions), ("data.fewshot_file", data.fewshot_file)):
        if name is not None and Path(name).is_file():
            yield key, Path(name)
    yield from own_files(data)
    if source := file_of_class(config.algo):
        yield "algo._target_", source


def own_files(data: DataConfig) -> Iterator[tuple[str, Path]]:
    """The user's code behind problems and grades, each file with the setting that names it."""
    if path := source_file(data.grader_name):
        yield "data.grader", path
    if path := file_of_class(data):
        yield "data._target_", path


def file_of_class(settings: object) -> Path | None:
    """The file of a user's class; None for one of the package."""
    module = type(settings).__module__
    spec = None if module.startswith("topr_exp.") else importlib.util.find_spec(module)
    return Path(spec.origin) if spec is not None and spec.origin else None
