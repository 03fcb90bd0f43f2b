"""Before anything starts: what the settings name is there and can be used (files, models, programs), a prompt is shown.

Problems and completions are read line by line, once for all runs of a sweep that name them.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.cluster import SlurmCluster
from topr_exp.config.data import DataConfig, Reward
from topr_exp.config.model import VLLMConfig
from topr_exp.config.schema import plain
from topr_exp.data.problems import ProblemSets, load_problems
from topr_exp.data.prompts import Prompter, TokenizedProblems, build_prompter
from topr_exp.models import files
from topr_exp.runs.console import warn
from topr_exp.runs.inputs import model_folders, own_files
from topr_exp.runtime.distributed import check_device, main_process_only
from topr_exp.runtime.files import write_text
from topr_exp.runtime.jsonfiles import read_object
from topr_exp.store.completions import read_lines, unknown_problem
from topr_exp.types import ConfigError, TOPRError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config

LARGEST_REFUSED_SHARE = 0.05
PROMPT = "prompt.txt"
END = "◀"  # where the completion begins: a space before it would be the prompt's
Stamp = tuple[str, int, int]  # of a file: where, bytes, time of change


def check_files(config: Config, trains: bool = True) -> None:
    """Refuse (ConfigError) what is named and not there, or can't be used, as far as files on this machine tell.

    What is on the hub shows when it is loaded. trains: False where a model is sampled from alone.
    """
    data = config.data
    if config.tracking.name == "tensorboard":
        check_package("tensorboard", "tracking=tensorboard", "tensorboard")
    if trains and config.model.lora is not None:
        check_package("peft", "model.lora", "lora")
    if data.completions is not None:
        places = (Path(data.completions), config.store / data.completions / "key.json")
        if not any(place.is_file() for place in places):
            raise ConfigError(
                f"data.completions={data.completions}: neither a file nor a table of {config.store} (kind/hash)"
            )
    check_models(config)
    build_prompter(data)  # refuses worked examples that are not there
    if data.grader is not None:
        from topr_exp.grading.grader import check_name

        check_name(data.grader)
    try:
        check_problems(config)
        if data.completions is not None:
            check_completions(config, data.completions)
    except TOPRError as error:
        raise ConfigError(str(error)) from None


def check_package(name: str, setting: str, extra: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise ConfigError(f"{setting}: the package {name} is not installed (pip install 'topr-exp[{extra}]')")


# ---- models


def check_models(config: Config) -> None:
    """Refuse models on this machine that are missing, damaged or unfit."""
    folders = model_folders(config)
    if "model.path" in folders and config.model.revision is not None:
        raise ConfigError(f"model.revision={config.model.revision}: {config.model.path} is a folder, which has none")
    for key, folder in folders.items():
        check_model(key, folder, config)
    ours, theirs = (rows_of(folders[key]) if key in folders else None for key in ("model.path", "model.reference"))
    if ours is not None and theirs is not None and theirs < ours:
        raise ConfigError(
            f"model.reference={config.model.reference}: it has {theirs} tokens, the model of model.path {ours}"
        )


def check_model(key: str, folder: Path, config: Config) -> None:
    """Refuse what a model's own files rule out before it is loaded."""
    if not read_object(folder / "config.json")[0]:
        raise ConfigError(f"{key}: {folder / 'config.json'} holds no settings of a model")
    if fault := files.damage(folder):
        raise ConfigError(f"{key}: in the model folder {folder} {fault}")
    context, most = files.setting(folder, "max_position_embeddings"), config.sampler.max_new_tokens
    if key != "model.reference" and context is not None and most >= context:
        raise ConfigError(
            f"sampler.max_new_tokens must be below {context}, the tokens of the model's context; got {most}"
        )
    if key == "model.path" and config.model.lora is not None:
        files.check_targets(config.model.lora, files.linear_layers(folder))
    if key == "model.path" and config.data.chat and not files.has_chat_template(folder):
        raise ConfigError("data.chat=true: the model's tokenizer has no chat template; set data.chat=false")


def rows_of(folder: Path) -> int | None:
    """Tokens that a model has numbers for."""
    return files.setting(folder, "vocab_size")


# ---- problems


@dataclass(frozen=True)
class Key:
    """Settings of problems and stamps of their files: what is read once for all runs that share it."""

    data: DataConfig = field(compare=False)
    settings: str
    stamps: tuple[Stamp, ...]


def key_of(data: DataConfig) -> Key:
    stamps = tuple(stamp(path) for _, path in (*data.files(), *own_files(data)))
    return Key(data, json.dumps(plain(data)), stamps)


def stamp(path: Path) -> Stamp:
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns


def problems(data: DataConfig) -> ProblemSets | None:
    """The problems that a run would have; None where they would come from the hub or the like."""
    return read_problems(key_of(data)) if data.at_hand else None


@functools.lru_cache(maxsize=4)
def read_problems(key: Key) -> ProblemSets:
    return load_problems(key.data)


def check_problems(config: Config) -> None:
    """Refuse (TOPRError) problems that can't be read or are too few, and golds that their own grader refuses."""
    sets = problems(config.data)
    if sets is None:
        return
    if not sets.train:
        origin = sets.train_report.origin
        raise TOPRError(f"{origin}: no problem is left; every training question is also a test question")
    wanted = config.schedule.prompts
    if wanted is not None and wanted > len(sets.train):
        raise TOPRError(f"schedule.prompts={wanted}: there are {len(sets.train)} problems to sample")
    if refused := refused_golds(key_of(config.data)):
        warn(refused)


@functools.lru_cache(maxsize=4)
def refused_golds(key: Key) -> str | None:
    """A warning where the grader refuses some golds; TOPRError where over 5 %: it is not the one for them."""
    from topr_exp.grading import Grader

    sets, name = read_problems(key), key.data.grader_name
    tried = [(one, right) for one in (*sets.train, *sets.test) if (right := key.data.solution(one)) is not None]
    with Grader(name, graded=key.data.reward is Reward.graded, threshold=key.data.threshold) as grader:
        outcomes = list(grader.grade((right, one.answer) for one, right in tried))
    found = [each for each, outcome in zip(tried, outcomes, strict=True) if outcome.verdict != "correct"]
    if not found:
        return None
    one, right = found[0]
    text = (
        f"data={key.data.name}: the grader {name} refuses the gold of {len(found)} of {len(tried)} problems; the "
        f"first is {one.id}, gold {one.answer!r:.80}, tried as {right!r:.120}"
    )
    if len(found) > LARGEST_REFUSED_SHARE * len(tried):
        raise TOPRError(f"{text} (at most 5 % may be refused)")
    return text


# ---- completions made elsewhere


def check_completions(config: Config, source: str) -> None:
    """Refuse (TOPRError) a file of completions with a malformed line, or one that answers no training problem.

    What needs the model, and a table of the store, is checked once the model is loaded, before anything is sampled.
    """
    sets = problems(config.data)
    known = None if sets is None else frozenset(problem.id for problem in sets.train)
    if Path(source).is_file():
        read_completions(source, stamp(Path(source)), known)


@functools.lru_cache(maxsize=4)
def read_completions(source: str, at: Stamp, known: frozenset[str] | None) -> None:
    for number, row in enumerate(read_lines(Path(source)), start=1):
        name = row.get("problem_id")
        if known is not None and name not in known and not {"question", "gold"} <= row.keys():
            raise unknown_problem(source, number, name)


# ---- the machine


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


# ---- a prompt for people to read


def preview_prompt(config: Config) -> str:
    """The prompt of the first training problem as the model gets it, with the tokenizer alone loaded."""
    from transformers import AutoTokenizer

    sets, model = problems(config.data), config.model
    # Problems that are elsewhere, as on the hub, are not fetched for this.
    question = sets.train[0].question if sets is not None else "{question}"
    fields = sets.train[0].fields if sets is not None else {}
    prompter = build_prompter(config.data)
    if config.task.verifies:  # the solution is sampled
        assert config.task.template is not None
        question = config.task.template.replace("{question}", question)
        prompter = Prompter("{question}", (), bool(config.task.chat), ())
    folder = model_folders(config).get("model.path")
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if folder is None:
        options |= {"revision": model.revision or "main", "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder or model.path, **options)
    except Exception as error:  # transformers raises many types for tokenizers that it can't read
        if folder is not None:
            reason = " ".join(str(error).split())
            raise TOPRError(f"model folder {folder}: its tokenizer can't be loaded: {reason}") from error
        if prompter.chat:
            return f"prompt: goes through the chat template of {model.path}, which is not on this machine yet"
        why = f"{model.path} is not on this machine yet, which would show its tokens"
        return shown_prompt(prompter.render(question, fields=fields), why, prompter.stop)
    ids = tokenizer(prompter.render(question, tokenizer, fields), add_special_tokens=False)["input_ids"]
    return shown_tokens(files.with_bos(ids, tokenizer.bos_token_id), tokenizer, prompter.stop)


@main_process_only
def write_prompt(folder: Path, questions: TokenizedProblems, tokenizer: Any) -> None:
    """Write the first prompt of a run into its folder."""
    write_text(folder / PROMPT, shown_tokens(questions.prompts[0].tolist(), tokenizer, questions.stop) + "\n")


def shown_tokens(ids: Sequence[int], tokenizer: Any, stop: Sequence[str]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return shown_prompt(text, f"{len(ids)} tokens", stop)


def shown_prompt(text: str, what: str, stop: Sequence[str]) -> str:
    """A prompt with a line above it that says how to read it."""
    ends = f" and ends before {' or '.join(json.dumps(each, ensure_ascii=False) for each in stop)}" if stop else ""
    return f"prompt of the first training problem ({what}; the completion begins at {END}{ends}):\n{text}{END}"
