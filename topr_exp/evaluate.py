"""`python -m topr_exp.evaluate model=FOLDER_OR_NAME data=...`: pass@K and maj@K of a model on the test problems.

Takes the main command's overrides for the groups that an evaluation reads. A run's folder (or its `model/`) is
evaluated with that run's settings, any other folder with those that a run of it has. Code and interpreters come only
from the command line. Samples stay in the store: the same command again only computes the figures.
"""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from topr_exp.config.compose_overrides import Composer, refuse_dashes
from topr_exp.config.data import GRADERS, SOURCES
from topr_exp.config.load import choices, load
from topr_exp.config.retired import renew
from topr_exp.config.settings import Config
from topr_exp.runs.preflight import check_files, check_machine
from topr_exp.runs.provenance import describe_environment
from topr_exp.runs.run_files import read_run_file
from topr_exp.runtime.exit_status import CommandParser, exit_status
from topr_exp.runtime.files import disk_errors
from topr_exp.runtime.json_files import write_json
from topr_exp.runtime.machine import slow_precision
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import say
from topr_exp.schema import NOT_IDENTITY, hashed, literal, safe, show
from topr_exp.types import VERDICTS, ConfigError

ENGINE = {key.removeprefix("sampler.") for key in NOT_IDENTITY if key.startswith("sampler.")}
DECIDE = ("model", "task", "data", "sampler", "evaluation")  # the groups that decide what an evaluation finds
READ = (*DECIDE, "name", "output_dir", "cluster.device", "cluster.threads", "experiment")
# Taken from the settings beside a model, with those of `data` that the package's sources have: what decides the
# question, and where an engine computes. Whoever packed the folder wrote them, so none names code or an interpreter.
TAKEN = {
    "model": {"name", "dtype", "attention", "lora"},
    "task": {"name", "solver", "solutions", "test_solutions", "template", "chat"},
    "sampler": {
        "name", "seed", "temperature", "top_p", "top_k", "max_new_tokens", "prompts_per_shard", *ENGINE - {"python"},
    },
}  # fmt: skip
GIVEN = ("reward", "given")
OF_LOG = ("completions", "columns", "skip_malformed", "completion_limit")  # of data: nothing in a question
# What the package has; others are a user's code.
PACKAGE = {"data.grader": (None, *GRADERS), "data._target_": tuple(SOURCES.values()), "sampler._target_": ()}
NEVER_TAKEN = ("model.trust_remote_code", "sampler.python")


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = CommandParser("python -m topr_exp.evaluate", None, __doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="your folder of YAMLs")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.set_defaults(multirun=False)
    words = sys.argv[1:] if arguments is None else arguments
    return exit_status(partial(work, parser, words), resumes=True)


def work(parser: ArgumentParser, words: list[str]) -> int:
    """Parse the command line and evaluate; returns the exit status."""
    args, unknown = parser.parse_known_intermixed_args(words)
    refuse_dashes(unknown, words)
    if unknown:
        parser.parse_intermixed_args(words)  # exits with the parser's own words
    config = settings(args)
    check_machine([config])
    evaluate_model(config)
    return 0


def settings(args: Namespace) -> Config:
    """The checked settings; ConfigError for what an evaluation does not read."""
    command_line = given_settings(args)
    args.overrides += [] if "name" in command_line else ["name=evaluations"]
    composer = Composer(args)
    run = dict[str, Any]()
    model = composer.other_model(composer.fixed())
    if model is not None and model.folder is not None:
        run = settings_beside(model.folder.resolve())
        data = run.get("data", {}).get("name")
        if "data" not in command_line and data in composer.loader.get_group_options("data"):
            composer.overrides.append(composer.parse(f"data={data}"))
    jobs = list(composer.jobs(composer.base()))
    if len(jobs) > 1:
        raise ConfigError(f"these settings are {len(jobs)} evaluations; start the command once for each")
    ((_, composed),) = jobs
    if run:
        ask_as(run, composed, command_line)
    elif model is not None:
        say(f"settings of {model.described}")
    if model is not None and model.folder is not None:
        composed.model.path = literal(str(model.folder.resolve()))
    config = load(composed)
    check_files(config, trains=False)
    return config


def given_settings(args: Namespace) -> dict[str, str]:
    command_line: dict[str, str] = {}
    for text in args.overrides:
        key, _, value = text.lstrip("+~").partition("=")
        read = {key, key.split(".", 1)[0]} & {*READ} and not key.startswith("sampler.mismatch")
        if not read and text != "cluster=local":
            raise ConfigError(f"{text}: an evaluation does not read {key}; it reads {', '.join(READ)}")
        if key in command_line:
            raise ConfigError(f"{key}={command_line[key]} and {text}: {key} is given twice; give it once")
        command_line[key] = value
    if not {"model", "model.path"} & command_line.keys():
        raise ConfigError("model=FOLDER_OR_NAME is missing: which model is evaluated?")
    return command_line


def settings_beside(weights: Path) -> dict[str, Any]:
    """The settings of the run that wrote a folder of weights, and a line that says whose; {} for another folder."""
    for folder in list(weights.parents)[:2]:  # <run>/model, <run>/iteration-1/model
        stored, fault = read_run_file(folder / "config.json")
        if (folder / "state.json").exists() or "resolved" in stored:
            break
    else:
        return {}
    run = stored.get("resolved")
    if not isinstance(run, dict) or not all(isinstance(run.get(group), dict) for group in DECIDE):
        raise ConfigError(f"{folder / 'config.json'} {fault or 'holds no settings of a run'}")
    keys = [key.split(".") for key in NEVER_TAKEN]
    refused = [f"{group}.{key}={show(run[group][key])}" for group, key in keys if run[group].get(key)]
    note = f", but not {', '.join(refused)}: only the command line gives it" if refused else ""
    say(f"settings of the run in {folder}{note}")
    return renew(run)


def ask_as(run: dict[str, Any], composed: DictConfig, command_line: dict[str, str]) -> None:
    """Put the question of a run into composed settings, except where the command line says otherwise.

    Another choice of a group comes with its own settings; another sampler draws from the same distribution. ConfigError
    where the question rests on code of the user's, which is taken from the command line alone.
    """
    question_keys = {field.name for source in choices("data").values() for field in fields(source)}
    question_keys = question_keys - {*OF_LOG} | {"_target_"}
    for group, keys in {**TAKEN, "data": question_keys}.items():
        stored: dict[str, Any] = {key: value for key, value in run[group].items() if (key, value) != GIVEN}
        settings: Any = OmegaConf.to_container(composed[group])
        is_other_choice = group != "model" and command_line.get(group, stored.get("name")) != stored.get("name")
        if is_other_choice:
            keys = keys - ENGINE - {"name"} if group == "sampler" else set()
        else:
            settings = {key: settings[key] for key in settings if key in stored or f"{group}.{key}" in command_line}
            is_users_sampler = group == "sampler" and "_target_" in settings
            if is_users_sampler and settings["_target_"] == stored.get("_target_"):
                keys = stored.keys() - {"_target_"}
        for key, value in stored.items():
            name = f"{group}.{key}"
            is_question = (group == "data" and key not in OF_LOG) or name in PACKAGE
            if name in command_line or any(word.startswith(f"{name}.") for word in command_line):
                continue
            if key in keys and value in PACKAGE.get(name, [value]):
                settings[key] = literal(value)
            elif not is_other_choice and is_question and composed[group].get(key) != value:
                if isinstance(value, dict) and "_target_" in value:
                    name = f"{name}._target_"
                    value = value["_target_"]
                raise ConfigError(
                    f"{name}={value} of the run that wrote the model decides what is asked, but is not taken from "
                    f"its folder: give {name}=... on the command line, the same if you trust it"
                )
        composed[group] = settings


def evaluate_model(config: Config) -> None:
    """Evaluate, print the table, write `eval.json` with everything that it rests on."""
    import torch

    from topr_exp.evaluation.showcase import show_completions
    from topr_exp.models.model_folder import fetch_model_folder, weights_fingerprint
    from topr_exp.models.policy import load_policy
    from topr_exp.runs.tasks import VerificationTask, load_task
    from topr_exp.sampling.cut_off import warn_of_tested
    from topr_exp.sampling.generation import open_sampler
    from topr_exp.store import Store
    from topr_exp.verifier.figures import evaluation_table

    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    stop = StopFlag()
    with stop.listening(), stop.immediate():
        task = load_task(config, test_only=True)
        weights = weights_fingerprint(fetch_model_folder(config.model.path, config.model.revision))
        question = {name: value for name, value in config.identity.items() if name in DECIDE}
        folder = folder_of(config, question, weights)
        with disk_errors(f"write in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        store = Store(config.store, stop)
        with open_sampler(config.sampler, folder / "sampler", config.model.trust_remote_code) as sampler:
            if isinstance(task, VerificationTask):
                task.sample_solutions(sampler, store)
                sampler.close()
            policy = load_policy(config.model, config.cluster.device)
            test = task.tokenize(task.sets.test, policy)
            kind = "solutions to verify" if config.task.verifies else "problems"
            size = f"{policy.model.num_parameters() / 1e6:,.2f} M parameters"
            say(
                f"model   {config.model.path} ({size}, {policy.device_description})\n"
                f"data    {config.data.name} from {config.data.source_name}, {len(test.problems)} {kind}, "
                f"{config.data.eval_n} completions each"
            )
            if slow := slow_precision(policy.device.type, policy.precision):
                say(f"note    {slow}")
            answers = task.evaluate(sampler, policy, test, store)
        figures = {**task.figures(answers, store, folder, 0), "too_long": test.too_long}
        show_completions(folder, "test", 0, answers)
        store.check_unchanged()
        warn_of_tested(answers.is_truncated, config.sampler.max_new_tokens)
        write_json(folder / "environment.json", describe_environment(config.seed, config.sampler.seed))
        write_json(folder / "eval.json", {**question, "weights": weights, "figures": figures})
    text = evaluation_table(figures["verifier"]) if "verifier" in figures else table(figures)
    say(f"\n{text}\nfiles: {folder}/ (eval.json, completions.jsonl); completions: {figures['rollouts']}")


def folder_of(config: Config, question: dict[str, Any], weights: str) -> Path:
    """Name the folder of the results: the same for the same question to the same weights."""
    decides = {**question, "weights": weights, "model": {**question["model"], "path": None}}
    name = "_".join(["eval", safe(config.model.name)[:24], safe(config.data.name)[:24]])
    return Path(config.output_dir) / config.name / hashed(name, decides)


def table(figures: dict[str, Any]) -> str:
    """The figures for a terminal, in percent."""
    from topr_exp.report.estimates import REWARD, measured
    from topr_exp.verifier.figures import cell

    lines = ["%       value [95 % interval over problems]"]
    points = {f"{curve[:-1]}{k}": point for curve in ("pass@k", "maj@k") for k, point in figures[curve].items()}
    lines += [f"{name:<8}{cell(point)}" for name, point in points.items() if name != "maj@1"]  # which is pass@1
    lines.append(", ".join(f"{name} {100 * figures[name]:.1f} %" for name in VERDICTS))
    if figures["truncated_share"]:
        lines.append(f"cut off by the token limit {100 * figures['truncated_share']:.1f} %")
    if "mean_reward" in figures:
        lines.append(f"mean reward {measured(figures, REWARD).written('.3g')}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
