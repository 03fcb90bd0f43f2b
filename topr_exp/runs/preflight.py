"""Checks before anything starts that what the settings name is there: files, models, functions, programs."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.config.cluster import SlurmCluster
from topr_exp.config.model import VLLMConfig
from topr_exp.data.prompts import build_prompter
from topr_exp.models import files
from topr_exp.models.files import check_targets
from topr_exp.runs import reading
from topr_exp.runs.inputs import model_folders
from topr_exp.runtime.distributed import check_device
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config


def check_files(config: Config, trains: bool = True) -> None:
    """Refuse (ConfigError) what is named and not there, or can't be used, as far as files on this machine tell.

    What is on the hub shows when it is loaded. trains: False where a model is sampled from alone.
    """
    data = config.data
    if config.tracking.name == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "tracking=tensorboard: the package tensorboard is not installed (pip install 'topr-exp[tensorboard]')"
        )
    if trains and config.model.lora is not None and importlib.util.find_spec("peft") is None:
        raise ConfigError("model.lora: the package peft is not installed (pip install 'topr-exp[lora]')")
    if data.completions is not None:
        places = (Path(data.completions), config.store / data.completions / "key.json")
        if not any(place.is_file() for place in places):
            raise ConfigError(
                f"data.completions={data.completions}: neither a file nor a table of {config.store} (kind/hash)"
            )
    folders = check_models(config)
    build_prompter(data)  # refuses worked examples that are not there
    if data.grader is not None:
        from topr_exp.grading.grader import check_name

        check_name(data.grader)
    model = folders.get("model.path")
    try:
        reading.check_problems(config)
        reading.check_completions(config, rows_of(model) if model is not None else None)
    except TOPRError as error:
        raise ConfigError(str(error)) from None


def check_models(config: Config) -> dict[str, Path]:
    """The folders of the models that are on this machine, by setting, none of which is missing, damaged or unfit."""
    folders = model_folders(config)
    if "model.path" in folders and config.model.revision is not None:
        raise ConfigError(f"model.revision={config.model.revision}: {config.model.path} is a folder, which has none")
    for key, folder in folders.items():
        check_model(key, folder, config)
    tokens, rows = (
        read(folders[key]) if key in folders else None
        for key, read in (("model.path", files.tokenizer_size), ("model.reference", rows_of))
    )
    if tokens is not None and rows is not None and tokens > rows:
        raise ConfigError(
            f"model.reference={config.model.reference}: it has {rows} tokens, the tokenizer of model.path {tokens}"
        )
    return folders


def check_model(key: str, folder: Path, config: Config) -> None:
    """Refuse what a model's own files rule out before it is loaded."""
    if not files.read_json(folder / "config.json"):
        raise ConfigError(f"{key}: {folder / 'config.json'} holds no settings of a model")
    if fault := files.damage(folder):
        raise ConfigError(f"{key}: in the model folder {folder} {fault}")
    rows, tokens = rows_of(folder), files.tokenizer_size(folder)
    if rows is not None and tokens is not None and tokens > rows:
        raise ConfigError(f"{key}: model folder {folder}: the tokenizer has {tokens} tokens, the model only {rows}")
    context = files.setting(folder, "max_position_embeddings")
    if key != "model.reference" and context is not None and config.sampler.max_new_tokens >= context:
        raise ConfigError(
            f"sampler.max_new_tokens must be below {context}, the tokens of the model's context; "
            f"got {config.sampler.max_new_tokens}"
        )
    if key == "model.path" and config.model.lora is not None:
        check_targets(config.model.lora, files.linear_layers(folder))
    if key == "model.path" and config.data.chat and not files.has_chat_template(folder):
        raise ConfigError("data.chat=true: the model's tokenizer has no chat template; set data.chat=false")


def rows_of(folder: Path) -> int | None:
    """Tokens that a model has numbers for."""
    return files.setting(folder, "vocab_size")


def check_machine(configs: Iterable[Config]) -> None:
    """Refuse an output folder that can't be made, and a GPU or sampler that is not on the machine of the runs.

    Finished runs need neither.
    """
    runs = [config for config in configs if not (config.folder / "DONE").exists()]
    for folder, name in dict.fromkeys((config.folder.parent, config.output_dir) for config in runs):
        check_output_dir(folder.absolute(), name)
    for device in {config.cluster.device.name for config in runs if not isinstance(config.cluster, SlurmCluster)}:
        check_device(device)
    for python in dict.fromkeys(config.sampler.python for config in runs if isinstance(config.sampler, VLLMConfig)):
        from topr_exp.sampling.engine import check_python

        check_python(python)


def check_output_dir(folder: Path, name: str) -> None:
    """Try to make a folder like the one of the runs beside it, or within it where it is there; nothing is left."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=there, prefix=".try-") as trial:
            (trial / folder.relative_to(there)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir={name}: cannot make {folder} ({error.strerror})") from None
