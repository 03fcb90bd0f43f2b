"""`python -m topr_exp.evaluate model=FOLDER_OR_NAME data=...`: pass@K and maj@K of a model on the test problems.

Takes the main command's overrides for the groups that an evaluation reads. A run's folder (or its `model/`) is
evaluated with that run's settings, any other folder with those that a run of it has. Code and interpreters come only
from the command line. Samples stay in the store: the same command again only computes the figures.
"""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Set
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from topr_exp.config.compose_overrides import Composer, refuse_dashes
from topr_exp.config.data import GRADERS, SOURCES
from topr_exp.config.load import load, schemas_by_choice
from topr_exp.config.retired import migrate
from topr_exp.config.run_folders import name_with_hash, safe_name
from topr_exp.config.settings import Config
from topr_exp.data.prompts import read_shots
from topr_exp.runs.preflight import check_files, check_machine
from topr_exp.runs.provenance import COMMAND_LINE_KEYS, describe_environment
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.exit_status import CommandParser, exit_status
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.machine import describe_slow_precision
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say
from topr_exp.schema import NOT_IDENTITY, literal, show
from topr_exp.types import VERDICTS, ConfigError

if TYPE_CHECKING:
    from topr_exp.models.policy import Policy
    from topr_exp.runs.tasks import Task
    from topr_exp.sampling.completions import Completions
    from topr_exp.store import Store

ENGINE_KEYS = {key.removeprefix("sampler.") for key in NOT_IDENTITY if key.startswith("sampler.")}
DECIDING_GROUPS = ("model", "task", "data", "sampler", "evaluation")  # the groups that decide what an evaluation finds
READ_KEYS = (*DECIDING_GROUPS, "name", "output_dir", "cluster.device", "cluster.threads", "experiment")
# By group, taken from the settings beside a model, with those of `data` that the package's sources have: what decides
# the question, and where an engine computes. Whoever packed the folder wrote them; none names code or an interpreter.
TAKEN_KEYS = {
    "model": {"name", "dtype", "lora"},
    "task": {"name", "solver", "solutions", "test_solutions", "template", "chat"},
    "sampler": {
        "name", "seed", "temperature", "top_p", "top_k", "max_new_tokens", "prompts_per_shard",
        *ENGINE_KEYS - {"python"},
    },
}  # fmt: skip
LOGGED_REWARD = ("reward", "given")  # of data: rewards from a log, which an evaluation does not read
LOG_KEYS = ("completions", "columns", "skip_malformed", "completion_limit")  # of data: nothing in a question
# The values that name the package's own code; any other names a user's.
PACKAGE_VALUES = {"data.grader": (None, *GRADERS), "data._target_": tuple(SOURCES.values()), "sampler._target_": ()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = CommandParser("python -m topr_exp.evaluate", None, __doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="your folder of YAMLs")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.set_defaults(multirun=False)
    words = sys.argv[1:] if arguments is None else arguments
    return exit_status(partial(run_command, parser, words), resumes=True)


def run_command(parser: ArgumentParser, words: list[str]) -> int:
    """Parse the command line and evaluate; returns the exit status."""
    args, unknown = parser.parse_known_intermixed_args(words)
    refuse_dashes(unknown, words)
    if unknown:
        parser.parse_intermixed_args(words)  # exits with the parser's own words
    config = compose_settings(args)
    check_machine([config])
    evaluate_model(config)
    return 0


def compose_settings(args: Namespace) -> Config:
    """The checked settings; ConfigError for what an evaluation does not read."""
    command_line = parse_overrides(args)
    if "name" not in command_line:
        args.overrides.append("name=evaluations")
    composer = Composer(args)
    run_settings: dict[str, Any] = {}
    model = composer.other_model(composer.fixed_overrides())
    folder = None
    if model is not None and model.folder is not None:
        folder = model.folder.resolve()
        run_settings = migrated_run_settings(folder, command_line)
        data = run_settings.get("data", {}).get("name")
        if "data" not in command_line and data in composer.loader.get_group_options("data"):
            composer.overrides.append(composer.parse(f"data={data}"))
    jobs = list(composer.jobs())
    if len(jobs) > 1:
        raise ConfigError(f"these settings are {len(jobs)} evaluations; start the command once for each")
    _, composed = jobs[0]
    if run_settings:
        copy_question(run_settings, composed, command_line)
    elif model is not None:
        say(f"settings of {model.described}")
    if folder is not None:
        composed.model.path = literal(str(folder))
    config = load(composed)
    check_files(config, trains=False)
    return config


def parse_overrides(args: Namespace) -> dict[str, str]:
    """The overrides of the command line as text by key; ConfigError for one that is not read, or is missing."""
    command_line: dict[str, str] = {}
    for text in args.overrides:
        key, _, value = text.lstrip("+~").partition("=")
        group = key.split(".", 1)[0]
        is_read = (key in READ_KEYS or group in READ_KEYS) and not key.startswith("sampler.mismatch")
        if not is_read and text != "cluster=local":
            raise ConfigError(f"{text}: an evaluation does not read {key}; it reads {', '.join(READ_KEYS)}")
        command_line[key] = value
    if not {"model", "model.path"} & command_line.keys():
        raise ConfigError("model=FOLDER_OR_NAME is missing: which model is evaluated?")
    return command_line


def migrated_run_settings(weights: Path, command_line: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the run that wrote a folder of weights, by the keys of this release; {} for another folder."""
    run_settings = read_run_settings(weights)
    if not run_settings:
        return {}
    data = run_settings["data"]
    is_same_data = command_line.get("data", data.get("name")) == data.get("name")
    if is_same_data and "data.shots" not in command_line:
        refuse_part_of_shots(data)
    return migrate(run_settings)


def read_run_settings(weights: Path) -> dict[str, Any]:
    """Read the settings of the run that wrote a folder of weights, and print whose they are; {} for another folder."""
    for folder in list(weights.parents)[:2]:  # <run>/model, <run>/iteration-1/model
        stored, fault = read_run_file(folder / "config.json")
        if (folder / "state.json").exists() or "resolved" in stored:
            break
    else:  # neither is a run's
        return {}
    run_settings = stored.get("resolved")
    if not isinstance(run_settings, dict) or not all(
        isinstance(run_settings.get(group), dict) for group in DECIDING_GROUPS
    ):
        raise ConfigError(f"{folder / 'config.json'} {fault or 'holds no settings of a run'}")
    refused_settings = []
    for name in COMMAND_LINE_KEYS:
        group, key = name.split(".")
        value = run_settings[group].get(key)
        if value:
            refused_settings.append(f"{name}={show(value)}")
    note = f", but not {', '.join(refused_settings)}: only the command line gives it" if refused_settings else ""
    say(f"settings of the run in {folder}{note}")
    return run_settings


def refuse_part_of_shots(data: Mapping[str, Any]) -> None:
    """Raise ConfigError where a run took a part of a file's worked examples, as earlier releases did."""
    path = data.get("fewshot_file")
    shots = data.get("shots")
    if not isinstance(path, str) or not shots or not Path(path).is_file():
        return
    available = len(read_shots(Path(path)))
    if shots != available:
        raise ConfigError(
            f"data.fewshot_file={path}: the run took {show(shots)} of its {available} examples, and data.shots=FILE "
            "takes all; give data.shots=FILE, a file with those that it took"
        )


def copy_question(run_settings: dict[str, Any], composed: DictConfig, command_line: dict[str, str]) -> None:
    """Put the question of a run into composed settings, except where the command line says otherwise.

    Another choice of a group comes with its own settings; another sampler draws from the same distribution. ConfigError
    where the question rests on code of the user's, which is taken from the command line alone.
    """
    data_keys = {"_target_"}
    for source in schemas_by_choice("data").values():
        data_keys |= {field.name for field in fields(source)}
    taken_keys_by_group = {**TAKEN_KEYS, "data": data_keys.difference(LOG_KEYS)}
    for group, taken_keys in taken_keys_by_group.items():
        composed[group] = merge_group(group, taken_keys, run_settings[group], composed[group], command_line)


def merge_group(
    group: str, taken_keys: Set[str], stored: dict[str, Any], composed: DictConfig, command_line: Mapping[str, str]
) -> dict[str, Any]:
    """Merge a run's settings of a group, `stored`, into the composed ones: the keys that are taken and not given.

    taken_keys: where the command line makes no other choice for the group.
    """
    stored = {key: value for key, value in stored.items() if (key, value) != LOGGED_REWARD}
    settings: Any = OmegaConf.to_container(composed)
    stored_choice = stored.get("name")
    is_same_choice = group == "model" or command_line.get(group, stored_choice) == stored_choice
    if is_same_choice:
        # What the run lacks is at its default, whatever a YAML has.
        settings = {key: settings[key] for key in settings if key in stored or f"{group}.{key}" in command_line}
        is_users_sampler = group == "sampler" and "_target_" in settings
        if is_users_sampler and settings["_target_"] == stored.get("_target_"):
            taken_keys = stored.keys() - {"_target_"}
    else:
        taken_keys = keys_beside_choice(group, taken_keys)
    for key, value in stored.items():
        name = f"{group}.{key}"
        if is_given(name, command_line):
            continue
        if key in taken_keys and not is_users_code(name, value):
            settings[key] = literal(value)
        elif is_same_choice and decides_question(group, key) and composed.get(key) != value:
            raise foreign_code_error(name, value, f"{group}={stored_choice}")
    return settings


def keys_beside_choice(group: str, taken_keys: Set[str]) -> Set[str]:
    """The keys that are taken though the command line chooses otherwise: what another sampler draws from, too."""
    if group == "sampler":
        return taken_keys - ENGINE_KEYS - {"name"}
    return set()


def is_users_code(name: str, value: Any) -> bool:
    return name in PACKAGE_VALUES and value not in PACKAGE_VALUES[name]


def decides_question(group: str, key: str) -> bool:
    """True for a key that decides what is asked of the model."""
    is_of_problems = group == "data" and key not in LOG_KEYS
    return is_of_problems or f"{group}.{key}" in PACKAGE_VALUES


def is_given(name: str, command_line: Mapping[str, str]) -> bool:
    """True for a key that the command line sets, itself or keys below it."""
    return name in command_line or any(word.startswith(f"{name}.") for word in command_line)


def foreign_code_error(name: str, value: Any, choice: str) -> ConfigError:
    """The error of a run's setting that names code of the user's; choice: of its group, as the run made it."""
    if isinstance(value, dict) and "_target_" in value:
        name = f"{name}._target_"
        value = value["_target_"]
        remedy = f"give {name}=... on the command line"
    else:
        remedy = f"give {choice} with --config-dir FOLDER, or {name}=..., on the command line"
    return ConfigError(
        f"{name}={value} of the run that wrote the model decides what is asked, but is not taken from "
        f"its folder: {remedy}, the same if you trust it"
    )


def evaluate_model(config: Config) -> None:
    """Evaluate, print the table, write `eval.json` with everything that it rests on."""
    import torch

    from topr_exp.evaluation.showcase import show_completions
    from topr_exp.models.model_folder import fetch_model_folder, weights_fingerprint
    from topr_exp.runs.tasks import load_task
    from topr_exp.sampling.cut_off import warn_of_tested
    from topr_exp.store import Store
    from topr_exp.verifier.figures import evaluation_table

    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    stop = StopFlag()
    with stop.listening(), stop.immediate():
        task = load_task(config, test_only=True)
        model_folder = fetch_model_folder(config.model.path, config.model.revision)
        weights = weights_fingerprint(model_folder)
        question = {name: value for name, value in config.identity.items() if name in DECIDING_GROUPS}
        folder = result_folder(config, question, weights)
        with disk_errors(f"write in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        store = Store(config.store, stop)
        completions, too_long = complete_tests(config, task, store, folder / "sampler")
        figures = {**task.figures(completions, store, folder, 0), "too_long": too_long}
        show_completions(folder, "test", 0, completions)
        store.check_unchanged()
        warn_of_tested(completions.is_truncated, config.sampler.max_new_tokens)
        write_json(folder / "environment.json", describe_environment(config.seed, config.sampler.seed))
        write_json(folder / "eval.json", {**question, "weights": weights, "figures": figures})
    text = evaluation_table(figures["verifier"]) if "verifier" in figures else format_figures(figures)
    say(f"\n{text}\nfiles: {folder}/ (eval.json, completions.jsonl); completions: {figures['rollouts']}")


def complete_tests(config: Config, task: "Task", store: "Store", scratch: Path) -> tuple["Completions", int]:
    """Sample and grade completions of the test problems; also returns how many have a prompt that is too long."""
    from topr_exp.data.prompts import warn_of_hidden_stops, warn_of_open_answers
    from topr_exp.grading.grader import open_grader
    from topr_exp.models.loading import refuse_other_logits
    from topr_exp.models.policy import load_policy
    from topr_exp.runs.tasks import VerificationTask
    from topr_exp.sampling.generation import open_sampler

    opening = open_sampler(config.sampler, scratch, config.model.trust_remote_code)
    with opening as sampler, open_grader(config.grading) as grader:
        if isinstance(task, VerificationTask):
            task.sample_solutions(sampler, store)
            sampler.close()
        policy = load_policy(config.model, config.cluster.device)
        if config.sampler.name == "hf":
            refuse_other_logits(policy.model)
        test = task.tokenize(task.sets.test, policy)
        warn_of_open_answers(task.prompter, policy)
        warn_of_hidden_stops(task.prompter, policy)
        say(header(config, policy, len(test.problems)))
        return task.evaluate(sampler, grader, policy=policy, questions=test, store=store), test.too_long


def header(config: Config, policy: "Policy", problems: int) -> str:
    """Describe the model and the data; problems: how many of the test set are asked."""
    kind = "solutions to verify" if config.task.verifies else "problems"
    size = f"{policy.model.num_parameters() / 1e6:,.2f} M parameters"
    lines = [
        f"model   {config.model.path} ({size}, {policy.device_description})",
        f"data    {config.data.name} from {config.data.source_name}, {problems} {kind}, {config.data.eval_n} "
        "completions each",
    ]
    if slow := describe_slow_precision(policy.device.type, policy.precision):
        lines.append(f"note    {slow}")
    return "\n".join(lines)


def result_folder(config: Config, question: dict[str, Any], weights: str) -> Path:
    """Name the folder of the results: the same for the same question to weights of the same fingerprint."""
    model = {**question["model"], "path": None}  # wherever its folder is: the fingerprint of its weights stands for it
    inputs = {**question, "weights": weights, "model": model}
    model_name = safe_name(config.model.name)[:24]
    data_name = safe_name(config.data.name)[:24]
    name = name_with_hash(f"eval_{model_name}_{data_name}", inputs)
    return Path(config.output_dir) / config.name / name


def format_figures(figures: dict[str, Any]) -> str:
    """The figures for a terminal, in percent."""
    from topr_exp.report.estimates import REWARD, interval_of_evaluation
    from topr_exp.verifier.figures import cell

    lines = ["%       value [95 % interval over problems]"]
    for curve in ("pass", "maj"):
        for k, point in figures[f"{curve}@k"].items():
            name = f"{curve}@{k}"
            if name != "maj@1":  # which is pass@1
                lines.append(f"{name:<8}{cell(point)}")
    lines.append(", ".join(f"{name} {100 * figures[name]:.1f} %" for name in VERDICTS))
    if figures["truncated_share"]:
        lines.append(f"cut off by the token limit {100 * figures['truncated_share']:.1f} %")
    if "mean_reward" in figures:
        interval = interval_of_evaluation(figures, REWARD)
        lines.append(f"mean reward {interval.to_text('.3g')}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
