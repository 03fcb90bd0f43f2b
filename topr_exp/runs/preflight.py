"""Checks before anything starts: each file, model and device that the settings name exists and can be used.

Problems and completions are read line by line, once for all runs of a sweep that name them.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from topr_exp.config.data import Columns
from topr_exp.config.model import VLLMConfig
from topr_exp.config.model_choice import is_shipped
from topr_exp.data.prompts import build_prompter, refuse_missing_fields
from topr_exp.grading.grader import check_grader
from topr_exp.imported.reader import RolloutReader, describe_columns, without_logprobs, without_rewards
from topr_exp.imported.rows import kind_of_prompt
from topr_exp.imported.sources import HUB, NO_LOG, is_stored_log, source_files
from topr_exp.models import model_folder
from topr_exp.models.folder_damage import model_damage
from topr_exp.models.weight_headers import check_targets, linear_layers
from topr_exp.runs.finished import DONE_FILE
from topr_exp.runs.inputs import model_folders
from topr_exp.runs.problem_checks import problems_at_hand
from topr_exp.runs.workload import check_supply
from topr_exp.runtime.json_files import read_object
from topr_exp.runtime.machine import c_compiler, check_device, cxx_compiler, driver_version, python_header
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.vllm_requirements import check_gpu_machine, check_python
from topr_exp.store.source import FileState, file_state
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

LARGE_LOG_BYTES = 1_000_000_000  # a minute of reading
SCORING_MODELS = ("model.reference", "mu")  # they sample nothing


def check_files(config: Config, trains: bool = True) -> None:
    """Raise ConfigError for what settings name and this machine lacks or can't use; trains: False to sample alone."""
    data = config.data
    check_tracker(config.tracking.name)
    if trains and config.model.lora is not None:
        check_package("peft", "model.lora", extra="lora")
    if data.completions is not None and not completions_exist(data.completions, config.store):
        raise ConfigError(f"data.completions={data.completions}: {NO_LOG.format(config.store)}")
    if trains and config.optim.compile:
        check_compiler(config.cluster.device)
    check_models(config)
    build_prompter(data)  # refuses missing worked examples
    grading = data.grading()
    check_grader(grading.grader, json.loads(grading.settings))
    try:
        check_problems(config)
    except TOPRError as error:
        raise ConfigError(str(error)) from None


def check_tracker(name: str) -> None:
    if name == "tensorboard":
        check_package("tensorboard", "tracking=tensorboard", extra="tensorboard")


def check_package(name: str, setting: str, *, extra: str) -> None:
    if importlib.util.find_spec(name) is None:
        command = f"pip install -e '.[{extra}]' -c constraints.txt"
        raise ConfigError(f"{setting}: the package {name} is not installed (in the checkout: {command})")


def completions_exist(source: str, store: Path) -> bool:
    """True for a file or folder, an imported table of the store, and a name on the hub, which is not asked."""
    return Path(source).exists() or is_stored_log(source, store) or source.startswith(HUB)


def check_compiler(device: str) -> None:
    """Raise ConfigError if torch.compile would find no compiler or no Python.h at the first update."""
    on_cpu = device == "cpu" or (device == "auto" and driver_version() is None)
    if on_cpu and cxx_compiler() is None:
        raise ConfigError("optim.compile=true: no C++ compiler on PATH, with which torch builds kernels; install g++")
    if not on_cpu and c_compiler() is None:
        raise ConfigError("optim.compile=true: no C compiler on PATH, with which Triton builds kernels; install gcc")
    header = python_header()
    if not header.is_file():
        raise ConfigError(
            f"optim.compile=true: {header} is missing, with which torch builds kernels; install python3-dev, or let uv "
            "install Python"
        )


# ---- models


def check_models(config: Config) -> None:
    """Raise ConfigError for model folders that can't be used, alone or together."""
    folders = model_folders(config)
    if "model.path" in folders and config.model.revision is not None:
        raise ConfigError(f"model.revision={config.model.revision}: {config.model.path} is a folder, which has none")
    for key, folder in folders.items():
        check_model(key, folder, config)
    vocabulary_sizes = {key: model_folder.config_entry(folder, "vocab_size", int) for key, folder in folders.items()}
    trained_size = vocabulary_sizes.get("model.path")
    for key in SCORING_MODELS:
        size = vocabulary_sizes.get(key)
        if trained_size is not None and size is not None and size < trained_size:
            path = attrgetter(key)(config)
            raise ConfigError(f"{key}={path}: it has {size} tokens, the model of model.path {trained_size}")


def check_model(key: str, folder: Path, config: Config) -> None:
    """Raise ConfigError for a model folder that is damaged or does not fit the settings."""
    if not read_object(folder / "config.json")[0]:
        raise ConfigError(f"{key}: {folder / 'config.json'} holds no settings of a model")
    fault = model_damage(folder)
    if fault:
        raise ConfigError(f"{key}: in the model folder {folder} {fault}")
    context = model_folder.config_entry(folder, "max_position_embeddings", int)
    new_tokens = config.sampler.max_new_tokens
    if key not in SCORING_MODELS and context is not None and new_tokens >= context:
        raise ConfigError(
            f"sampler.max_new_tokens must be below {context}, the model's context in tokens; got {new_tokens}"
        )
    if key == "model.path" and config.model.lora is not None:
        check_targets(config.model.lora, linear_layers(folder))
    owner = "the solver" if key == "task.solver" else "the model"
    chat_key = chat_key_of(key, config)
    if chat_key is not None and attrgetter(chat_key)(config) and not model_folder.has_chat_template(folder):
        raise ConfigError(f"{chat_key}=true: {owner}'s tokenizer has no chat template; set {chat_key}=false")


def chat_key_of(model_key: str, config: Config) -> str | None:
    """Return the setting by which a model is asked in chat form; None for one that is only scored."""
    if model_key in SCORING_MODELS:
        return None
    if model_key == "model.path" and config.task.verifies:
        return "task.chat"
    return "data.chat"


def describe_unsolvable_problems(config: Config) -> str | None:
    """Return the warning for real problems to a shipped model; None for others."""
    source = getattr(config.data, "source", "embedded")
    if source == "embedded" or not is_shipped(config.model.path):
        return None
    return f"model={config.model.name} knows generated problems alone (data.source=embedded), not data.source={source}"


# ---- problems and completions


def check_problems(config: Config) -> None:
    """Raise TOPRError for too few problems, for fields that some lack, and for a log that can't be trained on."""
    data = config.data
    sets = problems_at_hand(data)
    problem_count = data.train_problems
    if sets is not None:
        problem_count = len(sets.train)
        if not sets.train:
            origin = sets.train_report.origin
            raise TOPRError(f"{origin}: no problem is left; every training question is also a test question")
        refuse_missing_fields(config.task.template or "", [*sets.train, *sets.test], "task.template")
    question_count = None
    if problem_count is not None:
        question_count = problem_count * config.task.questions_per_problem
    check_supply(config, questions=question_count)
    if data.completions is not None and Path(data.completions).exists():
        problem_ids = None
        if sets is not None:
            problem_ids = frozenset(problem.id for problem in sets.train)
        check_log(data.completions, config, problem_ids)


def check_log(source: str, config: Config, problem_ids: frozenset[str] | None) -> None:
    """Raise TOPRError for a file of completions that is malformed, answers no problem or lacks what the run reads.

    problem_ids: of the training problems; None if unknown.
    """
    data = config.data
    versions = tuple(map(file_state, source_files(source)))
    reader = check_completions(
        source,
        versions,
        data.columns,
        problem_ids,
        skip_malformed=data.skip_malformed,
        is_graded=data.reward != "given",
    )
    if data.reward == "given" and "reward" not in reader.names.by_role:
        raise without_rewards(data, describe_columns(reader))
    if config.mu == "sampler" and "logprobs" not in reader.names.by_role:
        raise without_logprobs(data)


@functools.lru_cache(maxsize=4)
def check_completions(
    source: str,
    versions: tuple[FileState, ...],
    columns: Columns | None,
    problem_ids: frozenset[str] | None,
    *,
    skip_malformed: bool,
    is_graded: bool,
) -> RolloutReader:
    """Read every completion of a file, to refuse malformed ones; the cache does so once for each of its versions.

    Returns the reader, which knows the columns. is_graded: by the grader, and not by the file's rewards.
    """
    size = sum(version.size for version in versions)
    if size > LARGE_LOG_BYTES:
        warn(
            f"data.completions={source}: each start of a run reads all of its {size / 1e9:.1f} GB; "
            f"`python -m topr_exp.store import {source}` reads them once"
        )
    reader = RolloutReader(source, columns, skip_malformed)
    for number, row in enumerate(reader, start=1):
        where = f"data.completions={source}: completion {number}"
        kind_of_prompt(where, row, problem_ids=problem_ids, is_graded=is_graded)
    return reader


# ---- machine


def check_machine(configs: Iterable[Config]) -> None:
    """Raise ConfigError for an output folder, GPU or sampler that unfinished runs need and this machine lacks."""
    unfinished = [config for config in configs if config.overwrite or not (config.folder / DONE_FILE).exists()]
    output_dirs = {config.folder.parent: config.output_dir for config in unfinished}
    for folder, name in output_dirs.items():
        check_output_dir(folder.absolute(), name)
    for device in {config.cluster.device for config in unfinished if not config.cluster.submits_jobs}:
        warning = check_device(device)
        if warning is not None:
            warn(warning)
    engines = []
    for config in unfinished:
        if isinstance(config.sampler, VLLMConfig):
            engines.append((config.sampler.python, samples_on_gpu_here(config)))
    for python, on_gpu in dict.fromkeys(engines):
        check_engine(python, on_gpu=on_gpu)


def check_engine(python: str | None, *, on_gpu: bool) -> None:
    """Raise ConfigError for a Python that can't run vLLM, or a GPU machine that lacks what vLLM needs."""
    interpreter = check_python(python)
    if on_gpu:
        warning = check_gpu_machine(interpreter)
        if warning is not None:
            warn(warning)


def check_output_dir(folder: Path, name: str) -> None:
    """Raise ConfigError unless a folder can be made: its nearest existing parent gets one for a moment."""
    try:
        parent = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=parent, prefix=".try-") as trial:
            (Path(trial) / folder.relative_to(parent)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir={name}: cannot make {folder} ({error.strerror})") from None


def samples_on_gpu_here(config: Config) -> bool:
    """True for a run that samples on a GPU of this machine."""
    cluster = config.cluster
    return not cluster.submits_jobs and cluster.device != "cpu" and driver_version() is not None
