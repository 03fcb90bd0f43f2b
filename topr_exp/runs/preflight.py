"""Before anything starts: what the settings name is there, can be used, and is what the run was begun with.

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
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import DataConfig
from topr_exp.config.groups import unit_of
from topr_exp.config.model import VLLMConfig
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.data.prompts import build_prompter
from topr_exp.grading.grader import check_name
from topr_exp.imported.reader import RolloutReader
from topr_exp.imported.rows import kind_of_prompt
from topr_exp.imported.sources import HUB, NO_LOG, is_stored_log, source_files
from topr_exp.models import model_folder
from topr_exp.runs.finished import MARK
from topr_exp.runs.inputs import file_of_class, model_folders, own_files
from topr_exp.runtime.json_files import read_object
from topr_exp.runtime.machine import c_compiler, check_device, cxx_compiler, driver_version
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.vllm_requirements import check_gpu_machine
from topr_exp.schema import plain
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

LARGEST_REFUSED_SHARE = 0.05


def check_files(config: Config, trains: bool = True) -> None:
    """Raise ConfigError for what is named and not on this machine, or can't be used; trains: False to sample alone."""
    data = config.data
    if config.tracking.name == "tensorboard":
        check_package("tensorboard", "tracking=tensorboard", "tensorboard")
    if trains and config.model.lora is not None:
        check_package("peft", "model.lora", "lora")
    if data.completions is not None:
        is_stored = is_stored_log(data.completions, config.store)
        if not (Path(data.completions).exists() or is_stored or data.completions.startswith(HUB)):
            raise ConfigError(f"data.completions={data.completions}: {NO_LOG.format(config.store)}")
    if trains and config.optim.compile:
        check_compiler(config.cluster.device)
    check_models(config)
    build_prompter(data)  # refuses worked examples that are not there
    if data.grader is not None:
        check_name(data.grader)
    try:
        check_problems(config)
    except TOPRError as error:
        raise ConfigError(str(error)) from None


def check_package(name: str, setting: str, extra: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"{setting}: the package {name} is not installed (pip install 'topr-exp[{extra}]')")


def check_compiler(device: str) -> None:
    """Raise ConfigError where torch.compile would find no compiler at the first update."""
    on_cpu = device == "cpu" or (device == "auto" and driver_version() is None)
    if on_cpu and cxx_compiler() is None:
        raise ConfigError("optim.compile=true: no C++ compiler on PATH, with which torch builds kernels; install g++")
    if not on_cpu and c_compiler() is None:
        raise ConfigError("optim.compile=true: no C compiler on PATH, with which Triton builds kernels; install gcc")


def check_models(config: Config) -> None:
    folders = model_folders(config)
    if "model.path" in folders and config.model.revision is not None:
        raise ConfigError(f"model.revision={config.model.revision}: {config.model.path} is a folder, which has none")
    for key, folder in folders.items():
        check_model(key, folder, config)
    sizes = {key: model_folder.config_number(folder, "vocab_size") for key, folder in folders.items()}
    for key in ("model.reference", "mu_model"):
        ours, theirs = sizes.get("model.path"), sizes.get(key)
        if ours is not None and theirs is not None and theirs < ours:
            path = attrgetter(key)(config)
            raise ConfigError(f"{key}={path}: it has {theirs} tokens, the model of model.path {ours}")


def check_model(key: str, folder: Path, config: Config) -> None:
    if not read_object(folder / "config.json")[0]:
        raise ConfigError(f"{key}: {folder / 'config.json'} holds no settings of a model")
    if fault := model_folder.model_damage(folder):
        raise ConfigError(f"{key}: in the model folder {folder} {fault}")
    context, most = model_folder.config_number(folder, "max_position_embeddings"), config.sampler.max_new_tokens
    if key not in ("model.reference", "mu_model") and context is not None and most >= context:
        raise ConfigError(f"sampler.max_new_tokens must be below {context}, the model's context in tokens; got {most}")
    if key == "model.path" and config.model.lora is not None:
        model_folder.check_targets(config.model.lora, model_folder.linear_layers(folder))
    if key == "model.path" and config.data.chat and not model_folder.has_chat_template(folder):
        raise ConfigError("data.chat=true: the model's tokenizer has no chat template; set data.chat=false")


def asks_too_much(config: Config) -> str | None:
    """The warning that a shipped model is asked real problems; None where it is not."""
    path, source = config.model.path, getattr(config.data, "source", "embedded")
    if source == "embedded" or "/" in path or not (model_folder.SHIPPED / path).is_dir():
        return None
    return f"model={config.model.name} knows generated problems alone (data.source=embedded), not data.source={source}"


def stamp(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def problems(data: DataConfig) -> ProblemSets | None:
    """The problems that a run would have; None where they would come from the hub or the like."""
    if not data.at_hand:
        return None
    key = json.dumps([plain(data), *(stamp(path) for _, path in (*data.files(), *own_files(data)))])
    if key not in _read:
        _read[key] = read_problems(data)
    return _read[key]


_read: dict[str, ProblemSets] = {}  # once for all runs of a sweep that share their settings and files


def read_problems(data: DataConfig) -> ProblemSets:
    """Load problems; TOPRError where the grader refuses over 5 % of the golds, a warning where it refuses some."""
    from topr_exp.grading import Grader

    sets = load_problems(data)
    tried = [(one, right) for one in (*sets.train, *sets.test) if (right := data.solution(one)) is not None]
    with Grader(data.grader_name, graded=data.reward == "graded", threshold=data.threshold) as grader:
        outcomes = list(grader.grade((right, one.answer) for one, right in tried))
    found = [each for each, outcome in zip(tried, outcomes, strict=True) if outcome.verdict != "correct"]
    if found:
        one, right = found[0]
        text = (
            f"data={data.name}: the grader {data.grader_name} refuses the gold of {len(found)} of {len(tried)} "
            f"problems; the first is {one.id}, gold {one.answer!r:.80}, tried as {right!r:.120}"
        )
        if len(found) > LARGEST_REFUSED_SHARE * len(tried):
            raise TOPRError(f"{text} (at most 5 % may be refused); {cure_of_golds(data)}")
        warn(text)
    return sets


def cure_of_golds(data: DataConfig) -> str:
    """What to do where the grader refuses golds."""
    if file_of_class(data):
        return f"let solution() of {type(data).__name__} return what it calls correct, or None where that can't be said"
    if ":" in data.grader_name:
        return "set data.correct to what it calls correct, as in '<answer>{answer}</answer>'"
    return "a gold is the answer alone; files in the form of GSM8K or MATH: data=gsm8k (or math) data.source=FOLDER"


def check_problems(config: Config) -> None:
    """Refuse (TOPRError) too few problems, and a file of completions with a malformed line or that answers none."""
    sets, wanted, source = problems(config.data), config.schedule.prompts, config.data.completions
    if sets is not None:
        if not sets.train:
            origin = sets.train_report.origin
            raise TOPRError(f"{origin}: no problem is left; every training question is also a test question")
        if wanted is not None and wanted > len(sets.train):
            raise TOPRError(f"schedule.prompts={wanted}: there are {len(sets.train)} problems to sample")
    check_warm_up(config, len(sets.train) if sets is not None else config.data.train_problems)
    if source is not None and Path(source).exists():
        known = None if sets is None else frozenset(problem.id for problem in sets.train)
        asked = source, config.data.columns, config.data.skip_malformed
        graded = config.data.reward != "given"
        read_completions(asked, tuple(map(stamp, source_files(source))), known, graded)


def check_warm_up(config: Config, problems: int | None) -> None:
    """Refuse (TOPRError) a warm-up that no iteration outlasts, as far as the number of its updates is known."""
    data, compose, schedule, optim = config.data, config.compose, config.schedule, config.optim
    each = compose.pairs_per_problem if unit_of(config.algo.needs) == "pairs" else data.n
    sampled = problems * each * (config.task.solutions or 1) if problems and data.completions is None else None
    most = [optim.epochs * -(-count // optim.batch_size) for count in (compose.n_examples, sampled) if count]
    if schedule.prompts is not None:
        most = [(schedule.rounds or 0) * (schedule.updates or 0)]
    if most and optim.warmup_steps >= min(most):
        raise TOPRError(
            f"optim.warmup_steps must be below {min(most)}, the most updates of an iteration; got {optim.warmup_steps}"
        )


@functools.lru_cache(maxsize=4)
def read_completions(asked: Any, stamps: Any, known: frozenset[str] | None, graded: bool) -> None:
    for number, row in enumerate(RolloutReader(*asked), start=1):
        where = f"data.completions={asked[0]}: completion {number}"
        kind_of_prompt(where, row, problem_ids=known, is_graded=graded)


def check_machine(configs: Iterable[Config]) -> None:
    """Refuse an output folder that can't be made, and a GPU or sampler that unfinished runs need and is not here."""
    runs = [config for config in configs if config.overwrite or not (config.folder / MARK).exists()]
    for folder, name in dict.fromkeys((config.folder.parent, config.output_dir) for config in runs):
        check_output_dir(folder.absolute(), name)
    for device in {config.cluster.device for config in runs if not config.cluster.submits_jobs}:
        if slow_device := check_device(device):
            warn(slow_device)
    engines = [
        (config.sampler.python, samples_here(config)) for config in runs if isinstance(config.sampler, VLLMConfig)
    ]
    for python, on_gpu in dict.fromkeys(engines):
        from topr_exp.sampling.engine import check_python

        interpreter = check_python(python)
        if on_gpu and (untested := check_gpu_machine(interpreter)):
            warn(untested)


def check_output_dir(folder: Path, name: str) -> None:
    """Try to make a folder like the one of the runs beside it, or within it where it is there; nothing is left."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=there, prefix=".try-") as trial:
            (trial / folder.relative_to(there)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir={name}: cannot make {folder} ({error.strerror})") from None


def samples_here(config: Config) -> bool:
    """True where a run samples on a GPU of this machine."""
    elsewhere = config.cluster.submits_jobs or config.cluster.device == "cpu"
    return not elsewhere and driver_version() is not None
