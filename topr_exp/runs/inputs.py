"""Inputs of a run: hashes of its files, models and packages. A run goes on only with those that it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.config.data import DataConfig
from topr_exp.grading.grader import source_file
from topr_exp.imported.sources import source_files
from topr_exp.models import model_folder
from topr_exp.runtime.checksums import cached_digest
from topr_exp.runtime.distributed import main_process_only
from topr_exp.runtime.files import disk_errors, find_module_file
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.terminal import warn
from topr_exp.types import TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.runs.folder import RunFolder

INPUTS = "inputs.json"
MOST_THREADS = 4096

Hashes = Mapping[str, str]  # by setting


# ---- comparing


@main_process_only
def compare_inputs(run: RunFolder, inputs: Mapping[str, Hashes], *, adds_kinds: bool = False) -> None:
    """Raise TOPRError if inputs, by kind, differ from those that the run began with; adds_kinds: note new kinds."""
    noted_inputs = run.read(INPUTS)
    for kind, hashes in inputs.items():
        if kind in noted_inputs:
            refuse_changes(run.path, noted_inputs[kind], hashes)
    merged_inputs = {**noted_inputs, **inputs}
    if adds_kinds and merged_inputs != noted_inputs:
        write_json(run.path / INPUTS, merged_inputs)


def refuse_changes(folder: Path, noted_hashes: Hashes, hashes: Hashes) -> None:
    """Raise TOPRError for an input that is not the one that a run's folder was begun with."""
    for setting in {**noted_hashes, **hashes}:
        if noted_hashes.get(setting) != hashes.get(setting):
            raise TOPRError(
                f"{setting} has changed since {folder} was begun; overwrite=true begins it again (what is there "
                "goes to replaced/ beside it), name=OTHER keeps both"
            )


def note_model_of_the_hub(run: RunFolder, config: Config, fingerprint: str) -> None:
    """Note a hub model once it is loaded, since the hub may have another one later."""
    if "model.path" not in model_folders(config):
        compare_inputs(run, {"hub": {"model.path": fingerprint}}, adds_kinds=True)


def keep_threads(run: RunFolder, config: Config) -> None:
    """Compute with as many CPU threads as the run began with, since their number decides the last digits."""
    import torch

    threads_at_start = run.read("environment.json").get("threads")
    threads = torch.get_num_threads()
    if threads_at_start is None or threads_at_start == threads:
        return
    if not 1 <= threads_at_start <= MOST_THREADS:
        warn(f"{run.path / 'environment.json'} is damaged: a run of {threads_at_start} threads")
        return
    if config.cluster.threads is None:
        torch.set_num_threads(threads_at_start)
    else:
        warn(f"the run was begun with cluster.threads={threads_at_start}; with {threads} its last digits may differ")


@main_process_only
def refuse_damaged_model(folder: Path) -> None:
    """Raise TOPRError if the model of a finished run has changed."""
    model_folder.check_folder(folder, str(folder))
    model_folder.refuse_damage(folder)
    model_folder.refuse_damage(folder / model_folder.ADAPTER)


# ---- hashing


def hash_inputs(config: Config) -> dict[str, Hashes]:
    """Return hashes of the files, models and packages on this machine that settings name, by kind and setting."""
    file_hashes = {}
    for key, path in named_files(config):
        name = f"{key} ({path.name})"
        if name in file_hashes:  # two files of one name, such as train/a.jsonl and test/a.jsonl
            name = f"{key} ({path.parent.name}/{path.name})"
        with disk_errors(f"read {path}"):
            file_hashes[name] = cached_digest(path)
    model_hashes = {key: model_folder.weights_fingerprint(folder) for key, folder in model_folders(config).items()}
    return {"files": file_hashes, "models": model_hashes, "packages": user_packages(config)}


def model_folders(config: Config) -> dict[str, Path]:
    """Return the model folders on this machine that a run reads, by setting; hub models are known once loaded."""
    models = {
        "model.path": config.model.path,
        "model.reference": config.model.reference,
        "mu": config.mu_path,
        "task.solver": config.task.solver,
    }
    folders = {}
    for key, model in models.items():
        if model is None:
            continue
        folder = model_folder.find_folder(model, key)
        if folder is not None:
            folders[key] = folder
    return folders


def named_files(config: Config) -> Iterator[tuple[str, Path]]:
    """Yield the files that settings name, each with its setting."""
    data = config.data
    for key, path in data.files():
        yield f"data.{key}", path
    if isinstance(data.shots, str) and Path(data.shots).is_file():
        yield "data.shots", Path(data.shots)
    if data.completions is not None:
        for path in source_files(data.completions):
            yield "data.completions", path
    yield from code_of_data(data)
    for key, settings in settings_with_class(config).items():
        code_file = file_of_user_class(settings)
        if code_file is not None:
            yield key, code_file


def settings_with_class(config: Config) -> dict[str, object]:
    """Return the settings beside `data` whose class may be a user's, by the key that names it."""
    return {
        "sampler._target_": config.sampler,
        "algo._target_": config.algo,
        "schedule.when_stale._target_": config.schedule.staleness_policy,
    }


def code_of_data(data: DataConfig) -> Iterator[tuple[str, Path]]:
    """Yield the files of a user's code behind problems and grades, each with its setting."""
    grader_file = source_file(data.grader_name)
    if grader_file is not None:
        yield "data.grader._target_", grader_file
    data_file = file_of_user_class(data)
    if data_file is not None:
        yield "data._target_", data_file


def file_of_user_class(settings: object) -> Path | None:
    """Return the source file of a user's class; None for the package's."""
    module = type(settings).__module__
    if module.startswith("topr_exp."):
        return None
    return find_module_file(module)


def user_packages(config: Config) -> Hashes:
    """Return name and version of the installed packages whose code settings name, by setting."""
    settings_by_key = settings_with_class(config) | {"data._target_": config.data}
    modules = {key: type(settings).__module__ for key, settings in settings_by_key.items()}
    if isinstance(config.data.grader, dict):
        modules["data.grader._target_"] = config.data.grader_name.rpartition(".")[0]
    user_modules = {key: module for key, module in modules.items() if not module.startswith("topr_exp.")}
    if not user_modules:
        return {}
    packages_by_module = metadata.packages_distributions()
    versions = {}
    for key, module in user_modules.items():
        for package in packages_by_module.get(module.partition(".")[0], ()):
            versions[key] = f"{package} {metadata.version(package)}"
    return versions
