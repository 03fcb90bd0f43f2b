"""What the settings name and a machine must have: where it is not there, one line before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.data.prompts import build_prompter
from topr_exp.models.loading import find_folder
from topr_exp.sampling.config import VLLMConfig
from topr_exp.types import ConfigError

if TYPE_CHECKING:
    from topr_exp.config import Config


def check_files(config: Config) -> None:
    """Refuse files, folders and functions that are named and not there; what is on the hub shows when it is loaded."""
    data = config.data
    if data.source not in ("embedded", "hub"):
        if not Path(data.source).expanduser().is_dir():
            raise ConfigError(f"data.source={data.source}: no such folder; allowed: embedded, hub or a folder")
        from topr_exp.data.problems import check_source

        check_source(data)
    if data.completions is not None:
        places = (Path(data.completions), config.store / data.completions / "key.json")
        if not any(place.is_file() for place in places):
            raise ConfigError(
                f"data.completions={data.completions}: neither a file nor a table of {config.store} (kind/hash)"
            )
    for key, path in (
        ("model.path", config.model.path),
        ("model.reference", config.model.reference),
        ("task.solver", config.task.solver),
    ):
        folder = find_folder(path, key) if path is not None else None
        if folder is not None and key == "model.path":
            if config.model.revision is not None:
                raise ConfigError(f"model.revision={config.model.revision}: {path} is a folder, which has none")
            check_model(folder, config)
    build_prompter(data)  # refuses worked examples that are not there
    if data.grader is not None:
        from topr_exp.grading.grader import check_name

        check_name(data.grader)


def check_model(folder: Path, config: Config) -> None:
    """Refuse what a model's own files rule out before it is loaded: a context that is too short, a missing template."""
    try:
        context = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
        template = "chat_template" in (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError):
        return  # loading it will tell
    if isinstance(context, int) and config.sampler.max_new_tokens >= context:
        raise ConfigError(
            f"sampler.max_new_tokens must be below {context}, the tokens of the model's context; "
            f"got {config.sampler.max_new_tokens}"
        )
    if config.data.chat and not template and not any(folder.glob("chat_template*")):
        raise ConfigError("data.chat=true: the model's tokenizer has no chat template; set data.chat=false")


def check_machine(configs: Iterable[Config]) -> None:
    """Refuse what this machine could not start: a folder that can't be written in, a sampler that is not installed."""
    runs = list(configs)
    for folder in dict.fromkeys(config.output_dir for config in runs):
        check_output_dir(folder)
    for python in dict.fromkeys(config.sampler.python for config in runs if isinstance(config.sampler, VLLMConfig)):
        from topr_exp.sampling.engine import check_python

        check_python(python)


def check_output_dir(name: str) -> None:
    path = Path(name).absolute()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"output_dir={name}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"output_dir={name}: nothing can be written in {there}")
