"""Inputs of a run: hashes of files, models and packages; a run goes on only with those that it began with."""

from __future__ import annotations

from collections.abc import Iterator
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


# ---- inputs: a run goes on only with those that it was begun with


@main_process_only
def compare_inputs(run: RunFolder, found: dict[str, dict[str, str]], note: bool = False) -> None:
    """Raise TOPRError where hashes by kind and setting are not those that the run was begun with; note: keep new ones.

    Nothing is written without `note`.
    """
    noted = run.read(INPUTS)
    for kind, now in found.items():
        before = noted[kind] if isinstance(noted.get(kind), dict) else now
        if changed := [key for key in {**before, **now} if before.get(key) != now.get(key)]:
            raise TOPRError(
                f"{changed[0]} has changed since {run.path} was begun; overwrite=true begins it again (what is there "
                "goes to replaced/ beside it), name=OTHER keeps both"
            )
    if note and {**noted, **found} != noted:
        write_json(run.path / INPUTS, {**noted, **found})


def note_model_of_the_hub(run: RunFolder, config: Config, fingerprint: str) -> None:
    """Note the model of `model.path` once it is loaded, since the hub may have another one later."""
    if "model.path" not in model_folders(config):
        compare_inputs(run, {"hub": {"model.path": fingerprint}}, note=True)


def inputs_of(config: Config) -> dict[str, dict[str, str]]:
    """Hashes of the files and of the models on this machine that settings name."""
    files = {}
    for key, path in named_files(config):
        with disk_errors(f"read {path}"):
            name = f"{key} ({path.name})"
            files[f"{key} ({path.parent.name}/{path.name})" if name in files else name] = cached_digest(path)
    models = {key: model_folder.weights_fingerprint(path) for key, path in model_folders(config).items()}
    return {"files": files, "models": models, "packages": own_packages(config)}


@main_process_only
def refuse_damaged_model(folder: Path) -> None:
    """Raise TOPRError when the model of a finished run is not what it was."""
    model_folder.check_folder(folder, str(folder))
    for part in (folder, folder / model_folder.ADAPTER):
        model_folder.refuse_damage(part)


def keep_threads(run: RunFolder, config: Config) -> None:
    """Compute with as many CPU threads as the run was begun with, since their number decides the last digits."""
    import torch

    before, now = run.read("environment.json").get("threads"), torch.get_num_threads()
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
        "mu_model": config.mu_model,
        "task.solver": config.task.solver,
    }
    found = {key: model_folder.find_folder(name, key) for key, name in names.items() if name is not None}
    return {key: path for key, path in found.items() if path is not None}


def named_files(config: Config) -> Iterator[tuple[str, Path]]:
    data = config.data
    for key, path in data.files():
        yield f"data.{key}", path
    if data.fewshot_file is not None and Path(data.fewshot_file).is_file():
        yield "data.fewshot_file", Path(data.fewshot_file)
    for path in source_files(data.completions) if data.completions is not None else ():
        yield "data.completions", path
    yield from own_files(data)
    if ":" in (name := config.sampler.name) and (source := find_module_file(name.partition(":")[0])):
        yield "sampler.name", source
    if source := file_of_class(config.algo):
        yield "algo._target_", source


def own_files(data: DataConfig) -> Iterator[tuple[str, Path]]:
    """The user's code behind problems and grades, each file with the setting that names it."""
    if path := source_file(data.grader_name):
        yield "data.grader", path
    if path := file_of_class(data):
        yield "data._target_", path


def file_of_class(settings: object) -> Path | None:
    module = type(settings).__module__
    return None if module.startswith("topr_exp.") else find_module_file(module)


def own_packages(config: Config) -> dict[str, str]:
    """Version of each installed package whose code the settings name, by the setting."""
    classes = {"algo._target_": type(config.algo).__module__, "data._target_": type(config.data).__module__}
    functions = {"data.grader": config.data.grader_name, "sampler.name": config.sampler.name}
    named = classes | {key: name.partition(":")[0] for key, name in functions.items() if ":" in name}
    tops = {key: module.partition(".")[0] for key, module in named.items() if not module.startswith("topr_exp.")}
    known = metadata.packages_distributions() if tops else {}
    return {key: f"{name} {metadata.version(name)}" for key, top in tops.items() for name in known.get(top, ())}
