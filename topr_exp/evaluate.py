"""`python -m topr_exp.evaluate model=FOLDER_OR_NAME data=...`: pass@K and maj@K of a model on the test problems.

Overrides as for the main command, of the groups that an evaluation reads. A folder that a run wrote (its `model/`, or
the run folder itself) is asked what that run asked; another folder with the settings of the paper's model. Code and
interpreters are taken from the command line alone. What is sampled lies in the store: the same command again computes
the figures without sampling.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.arguments import parse
from topr_exp.config.data import GRADERS, SOURCES, Reward
from topr_exp.config.groups import TaskName
from topr_exp.config.identity import NOT_IDENTITY
from topr_exp.runtime.exit_status import exit_status
from topr_exp.types import VERDICTS, ConfigError

if TYPE_CHECKING:
    from topr_exp.config.settings import Config
    from topr_exp.models.policy import Policy
    from topr_exp.store import Store

ENGINE = {key.removeprefix("sampler.") for key in NOT_IDENTITY if key.startswith("sampler.")}
DECIDE = ("model", "task", "data", "sampler", "evaluation")  # the groups that decide what an evaluation finds
READ = (*DECIDE, "name", "output_dir", "cluster.device", "cluster.threads", "experiment")
# All that is taken from the settings beside a model: what decides the question, and where an engine computes. Whoever
# packed the folder wrote them, so no key here names code or an interpreter.
TAKEN = {
    "model": {"dtype", "attention", "float32_head", "lora"},
    "data": {
        "seed", "train_problems", "test_problems", "test_split", "n", "eval_n", "grader", "reward", "threshold",
        "shots", "fewshot_file", "template", "chat", "stop", "format", "source", "answer_format", "path", "test_share",
        "question", "answer", "id", "level", "subject", "correct", "turns", "task", "options", "size", "test_size",
    },
    "task": {"solver", "solutions", "test_solutions", "template", "chat"},
    "sampler": {
        "seed", "temperature", "top_p", "top_k", "max_new_tokens", "prompts_per_shard", *ENGINE - {"python"},
    },
    "evaluation": {"seed"},
}  # fmt: skip
NEVER_TAKEN = ("model.trust_remote_code", "sampler.python")
OTHER_FOLDERS = "llama3_8b"  # whose settings a folder takes that no run wrote


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if {"-h", "--help"} & set(words):
        print(__doc__)
        return 0
    return exit_status(partial(work, parse(words, "python -m topr_exp.evaluate")), resumes=True)


def work(args: Namespace) -> int:
    from topr_exp.runs.preflight import check_machine

    config = settings(args)
    check_machine([config])
    evaluate_model(config)
    return 0


# ---- settings


def settings(args: Namespace) -> Config:
    """The checked settings; ConfigError for what an evaluation does not read."""
    from topr_exp.runs.plan import plan

    if args.multirun:
        raise ConfigError("-m: one evaluation at a time; start the command once for each model")
    if refused := [f"--{option}" for option in ("cfg", "info", "shell_completion") if getattr(args, option)]:
        raise ConfigError(f"{refused[0].replace('_', '-')} goes with python -m topr_exp, not with an evaluation")
    for text in args.overrides:
        key = text.lstrip("+~").split("=", 1)[0]
        if key not in READ and key.split(".", 1)[0] not in READ and text != "cluster=local":
            raise ConfigError(f"{text}: an evaluation does not read {key}; it reads {', '.join(READ)}")
    if not any(text.startswith("model=") for text in args.overrides):
        raise ConfigError("model=FOLDER_OR_NAME is missing: which model is evaluated?")
    given = list(args.overrides)
    args.overrides = [word for text in given for word in expand(text, args)]
    of_folder = args.overrides != given
    if not any(text.startswith("name=") for text in args.overrides):
        args.overrides.append("name=evaluations")
    args.multirun = True  # so that several values are found here
    jobs = plan(args, trains=False).jobs
    if len(jobs) > 1:
        raise ConfigError(f"these settings are {len(jobs)} evaluations; start the command once for each")
    if of_folder:
        refuse_other_question(jobs[0].config, given)
    return jobs[0].config


def refuse_other_question(config: Config, given: list[str]) -> None:
    """Refuse to ask a run's model something else because the run's own code is not on the command line."""
    from topr_exp.config.schema import plain

    found = written_by(Path(config.model.path))
    if found is None or any(text.startswith("data=") for text in given if text != f"data={found[1]['data']['name']}"):
        return
    asked, keys = plain(config.data), {text.lstrip("+").split("=", 1)[0] for text in given}
    for key, value in found[1]["data"].items():
        if key in ("name", "completions", "reward") or taken("data", key, value) or f"data.{key}" in keys:
            continue
        if asked.get(key) != value:
            raise untrusted(key, value)


def untrusted(key: str, value: Any) -> ConfigError:
    return ConfigError(
        f"data.{key}={value} of the run that wrote the model decides what is asked, but is not taken from its folder: "
        f"give data.{key}=... on the command line, the same if you trust it"
    )


def known(group: str, choice: str, args: Namespace) -> bool:
    """Check that a group has a YAML of this name."""
    from topr_exp.config.load import CONF

    folders = [CONF, *([Path(args.config_dir)] if args.config_dir else [])]
    return any((folder / group / f"{choice}.yaml").is_file() for folder in folders)


def expand(text: str, args: Namespace) -> Iterator[str]:
    """An override, with model=FOLDER replaced by what stands for the folder."""
    from topr_exp.config.load import CONF
    from topr_exp.runs.console import say

    choice = text.removeprefix("model=")
    if choice == text or "," in choice or known("model", choice, args):
        yield text
        return
    folder = Path(choice).expanduser()
    if not folder.is_dir():
        names = ", ".join(sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
        raise ConfigError(f"model={choice}: neither a folder nor one of {names}")
    if not (folder / "config.json").exists() or (folder / "model").is_dir():
        folder = folder / "model"  # of a run folder
    if not (folder / "config.json").exists():
        raise ConfigError(f"model={choice}: there is no model in it, nor in its model/ (no config.json)")
    if (found := written_by(folder)) is None:
        say(f"settings of model={OTHER_FOLDERS}: no run wrote {folder}")
        yield f"model={OTHER_FOLDERS}"
        yield f"model.name={quoted(folder.resolve().name)}"
    else:
        try:
            yield from settings_of(found[1], args)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{found[0] / 'config.json'}: no settings of a run ({error!r})") from None
        say(f"settings of the run in {found[0]}{left_out(found[1])}")
    yield f"model.path={quoted(str(folder.resolve()))}"


def written_by(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The folder of the run that wrote a model folder, and its settings; None for another folder."""
    for above in list(folder.resolve().parents)[:2]:  # <run>/model, <run>/iteration-1/model
        try:
            stored = json.loads((above / "config.json").read_text(encoding="utf-8"))
            return above, dict(stored["resolved"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def taken(group: str, key: str, value: Any) -> bool:
    """Decide if a setting beside a model is used."""
    if (group, key) == ("data", "reward"):
        return bool(value == Reward.graded.name)
    return key in TAKEN[group] and ((group, key) != ("data", "grader") or value is None or value in GRADERS)


def left_out(run: dict[str, Any]) -> str:
    """The settings that a run may do without when it is only asked, in words."""
    keys = (key.split(".") for key in NEVER_TAKEN)
    found = [f"{group}.{key}={quoted(run[group][key])}" for group, key in keys if run[group].get(key)]
    return f", but not {', '.join(found)}: only the command line gives it" if found else ""


def settings_of(run: dict[str, Any], args: Namespace) -> Iterator[str]:
    """The overrides that ask what the run asked; another data set (data=...) comes with its own settings."""
    overrides: list[str] = args.overrides
    own = [text.removeprefix("data=") for text in overrides if text.startswith("data=")]
    same = not own or own[-1] == run["data"]["name"]
    sampler = str(run["sampler"]["name"])
    dropped = set[str]()
    if not any(text.startswith("sampler=") for text in overrides):
        yield from named("sampler", sampler, sampler, args)
    elif f"sampler={sampler}" not in overrides:
        dropped = set(ENGINE)
    # A name that no YAML has was given on the command line, beside the settings of a YAML; those follow below.
    yield from named("model", run["model"]["name"], OTHER_FOLDERS, args)
    groups = ["sampler", "evaluation", "model"]
    if (task := run.get("task", {})).get("name") == TaskName.verifier.name:
        yield f"task={task['name']}"
        groups.append("task")
    if not own:
        yield from named("data", run["data"]["name"], choice_of(run["data"]), args)
    # A user's YAML may have the run's grader, too; that is known when all is composed.
    own_yaml = args.config_dir or run["data"]["_target_"] not in SOURCES.values()
    has_grader = own_yaml or any(text.startswith("data.grader=") for text in overrides)
    for group in (*groups, "data") if same else groups:
        for key, value in run[group].items():
            if taken(group, key, value) and key not in dropped:
                yield f"{group}.{key}={quoted(value)}"
            elif (group, key) == ("data", "grader") and not has_grader:
                raise untrusted(key, value)


def choice_of(data: dict[str, Any]) -> str:
    """The choice of `data=` that has a run's problems under another name; the name itself where no choice does."""
    choices = {target: choice for choice, target in SOURCES.items()}
    return str(data["format"] if "format" in data else choices.get(data["_target_"], data["name"]))


def named(group: str, name: str, other: str, args: Namespace) -> Iterator[str]:
    """The overrides that choose a YAML by its name, or another one under this name."""
    choice = name if known(group, name, args) else other
    if not re.fullmatch(r"[\w.-]+", choice):  # a path leads to a YAML outside of the folders of YAMLs
        raise ConfigError(f"{group}={choice!r} of the run beside the model is no name of a choice")
    yield f"{group}={choice}"
    if choice != name:
        yield f"{group}.name={quoted(name)}"


def quoted(value: Any) -> str:
    """A value as Hydra's grammar reads it back, with nothing in it computed: `${oc.env:SECRET}` stays these words."""
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, dict):
        if odd := [key for key in value if not re.fullmatch(r"\w+", str(key))]:
            raise ConfigError(f"{odd[0]!r}: a key must be letters, digits and _")
        return "{" + ",".join(f"{key}:{quoted(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(quoted(item) for item in value) + "]"
    # A backslash escapes before a quote and before ${ only.
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", str(value))
    return "'" + re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), text) + "'"


# ---- the evaluation


def evaluate_model(config: Config) -> None:
    """Evaluate, print the table, write `eval.json` with everything that it rests on."""
    import torch

    from topr_exp.evaluation.showcase import Showcase
    from topr_exp.models.loading import model_folder, weights_fingerprint
    from topr_exp.models.policy import load_policy
    from topr_exp.runs.console import say
    from topr_exp.runs.provenance import environment
    from topr_exp.runs.task_set import TaskSet
    from topr_exp.runtime.files import disk_errors, write_json
    from topr_exp.runtime.stop import StopFlag
    from topr_exp.sampling.sampler import open_sampler
    from topr_exp.store import Store
    from topr_exp.store.table import BorrowingStore
    from topr_exp.verifier.table import evaluation_table

    if config.cluster.threads is not None:
        torch.set_num_threads(config.cluster.threads)
    stop = StopFlag()
    with stop.listening(), stop.immediate():
        tasks = TaskSet(config, Store(config.store, stop), test_only=True)
        weights = weights_fingerprint(model_folder(config.model.path, config.model.revision))
        asked = {name: value for name, value in config.identity.items() if name in DECIDE}
        folder = folder_of(config, asked, weights)
        with disk_errors(f"write in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
        store = BorrowingStore(config.store, lender(config), stop)
        with open_sampler(config.sampler, folder / "sampler", config.model.trust_remote_code) as sampler:
            if config.task.verifies:  # before the verifier is loaded: a GPU may have no room for both
                tasks.generate_solutions(sampler, store)
                sampler.close()
            policy = load_policy(config.model, config.cluster.device.name)
            test = tasks.tokenize(tasks.sets.test, policy)
            say(heading(config, policy, len(test.problems)))
            evaluation = tasks.evaluate(sampler, policy, test, store)
        figures = {**tasks.figures(evaluation, folder, 0), "too_long": test.too_long}
        Showcase(folder).tested(0, policy, evaluation)
        write_json(folder / "environment.json", environment(config))
        write_json(folder / "eval.json", {**asked, "weights": weights, "figures": figures})
    shown = evaluation_table(figures["verifier"]) if config.task.verifies else table(figures)
    say(f"\n{shown}\nfiles: {folder}/ (eval.json, completions.jsonl); completions: {figures['rollouts']}")


def heading(config: Config, policy: Policy, count: int) -> str:
    """Format the model, its size and the data of an evaluation."""
    asked = f"{count} {'solutions to verify' if config.task.verifies else 'problems'}"
    return (
        f"model   {config.model.path} ({policy.parameters / 1e6:,.2f} M parameters, {policy.place})\n"
        f"data    {config.data.name} from {config.data.place}, {asked}, {config.data.eval_n} completions each"
    )


def lender(config: Config) -> Store | None:
    """The store of the run whose model is evaluated: it may have sampled and graded just this.

    None for a folder from elsewhere, whose verdicts anybody may have written.
    """
    from topr_exp.store import Store

    found = written_by(Path(config.model.path))
    own = found is not None and found[0].resolve().is_relative_to(Path(config.output_dir).resolve())
    return Store(found[0] / "store") if found is not None and own else None


def folder_of(config: Config, asked: dict[str, Any], weights: str) -> Path:
    """Name the folder of the results: the same for the same question to the same weights."""
    from topr_exp.config.identity import hashed, safe

    decides = {**asked, "weights": weights, "model": {**asked["model"], "path": None}}
    name = "_".join(["eval", safe(config.model.name)[:24], safe(config.data.name)[:24]])
    return Path(config.output_dir) / config.name / hashed(name, decides)


def table(figures: dict[str, Any]) -> str:
    """The figures for a terminal, in percent."""

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}"

    lines = [f"{'%':<8}{'value':>8}{'95 % interval over problems':>30}{'sampling only (paper) ±':>26}"]
    for curve in ("pass@k", "maj@k"):
        for k, point in figures[curve].items():
            interval = f"{cell(point['low'])} to {cell(point['high'])}"
            error = point["sampling_only_se"]
            lines.append(f"{curve[:-1] + k:<8}{cell(point['value']):>8}{interval:>30}{cell(error):>26}")
    lines.append(", ".join(f"{name} {cell(figures[name])} %" for name in VERDICTS))
    if "mean_reward" in figures:
        error = figures["mean_reward_se"]
        lines.append(f"mean reward {figures['mean_reward']:.4g}" + (f" ± {2 * error:.2g}" if error is not None else ""))
    histogram = " ".join(str(count) for count in figures["correct_histogram"])
    lines.append(f"problems with 0 to {figures['samples']} correct completions: {histogram}")
    for title, key in (("level", "levels"), ("subject", "subjects")):
        for name, part in figures[key].items():
            error = part["pass@1_se"]
            spread = f" ± {200 * error:.1f}" if error is not None else ""
            lines.append(f"{title} {name}: pass@1 {cell(part['pass@1'])}{spread} of {part['problems']} problems")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
