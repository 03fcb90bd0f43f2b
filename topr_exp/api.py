"""The public functions of `topr_exp`; `import topr_exp` loads each when it is first asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from omegaconf import OmegaConf

from topr_exp.compare import compare
from topr_exp.config.compose_overrides import METHODS, Composer, parse_arguments
from topr_exp.config.groups import MuSource, Reduction
from topr_exp.config.load import build_section, load_stored
from topr_exp.config.settings import Config
from topr_exp.config.yamls import OwnFolder, loss_files
from topr_exp.grading import Grader
from topr_exp.report.grouping import group_runs
from topr_exp.report.reader import find_runs
from topr_exp.report.repetitions import find_store
from topr_exp.report.tables import runs_frame
from topr_exp.runs.overwrite import move_overwritten_folder
from topr_exp.runs.plan import Job, check_sweep, plan
from topr_exp.runs.preflight import check_machine
from topr_exp.runs.provenance import CONFIG_DIR_OPTIONS
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.training_data import EXAMPLES, IMPORTED, read_row_numbers
from topr_exp.runtime.stop import Interrupted
from topr_exp.schema import flatten, plain
from topr_exp.store import Store
from topr_exp.sweeps.launch import launch
from topr_exp.training.own_loop import ConfiguredLoss
from topr_exp.types import ConfigError, Problem, TOPRError

if TYPE_CHECKING:
    from topr_exp.models.policy import Policy


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked settings of one run, from words as on the command line.

        config = topr_exp.compose(["algo=tis", "data=math", "effective_positive=0.2"])

    `--config-dir FOLDER` may be among them. Raises ConfigError with one line: the key, what was given, what is allowed.
    """
    words = list_texts("overrides", overrides)
    for word in words:
        if word.startswith("-") and word.partition("=")[0] not in CONFIG_DIR_OPTIONS:
            raise ConfigError(f"{word}: compose takes KEY=VALUE and --config-dir FOLDER alone")
    jobs = plan(parse_arguments(words)).jobs
    if len(jobs) > 1:
        raise ConfigError(f"{len(jobs)} runs: compose makes one; call it for each")
    return jobs[0].config


def list_texts(name: str, texts: Sequence[str]) -> list[str]:
    """List texts; ConfigError for a single text, which would be read letter by letter, and for what is no text."""
    if isinstance(texts, str):
        raise ConfigError(f"{name}={texts:.60}: expected a list of texts, as in [{texts!r:.60}]")
    items = list(texts)
    for item in items:
        if not isinstance(item, str):
            raise ConfigError(f"{name}: expected texts; got {item!r:.60}")
    return items


def run(config: Config) -> dict[str, Any]:
    """Run an experiment in this process, or go on with it; returns what its summary.json holds.

        summary = topr_exp.run(topr_exp.compose(["experiment=smoke"]))

    Raises TOPRError for what the user can mend. Signal handlers, logging and torch's threads are afterwards as before.
    """
    import torch

    from topr_exp import pipeline

    if not isinstance(config, Config):
        raise ConfigError(f"run takes what compose returns; got a {type(config).__name__}")
    if config.cluster.world_size > 1:
        raise ConfigError(f"{config.cluster.processes_are}={config.cluster.world_size}: run takes 1 process")
    if config.dry_run:
        raise ConfigError("dry_run=true: run starts what it is given; compose alone checks the settings")
    check_machine([config])
    threads = torch.get_num_threads()
    callers_error = sys.exception()
    try:
        return pipeline.run(move_overwritten_folder(config))
    except (TOPRError, Interrupted) as error:
        clear_variables(error, callers_error)
        raise
    finally:
        torch.set_num_threads(threads)


def clear_variables(error: BaseException, callers_error: BaseException | None) -> None:
    """Clear the variables in an error's frames: a notebook keeps its last error, which would keep the models.

    callers_error: the one that the caller handles, whose frames stay; a generator among them would be closed.
    """
    past_errors = [callers_error]
    cause: BaseException | None = error
    while cause is not None and cause not in past_errors:
        past_errors.append(cause)
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def loss(name: str, *, mu: MuSource | None = None, reduction: Reduction | None = None, **hyper: Any) -> ConfiguredLoss:
    """A loss by its name, as `algo=NAME` has it: ours, a plugin's, or one of the `--config-dir` last composed with.

        loss = topr_exp.loss("topr", b_neg=0.5)
        loss.reduce(loss(batch).loss, batch).backward()  # of a topr_exp.Batch

    hyper: hyper-parameters in place of those of its YAML. mu, reduction: in place of `mu` and `optim.reduction`, which
    some YAMLs set. Raises ConfigError for an unknown name or hyper-parameter, or a value that is not allowed.
    """
    if name not in loss_files():
        hint = f"allowed: {', '.join(loss_files())}"
        if name in METHODS:
            hint = f"it is {METHODS[name]} (docs/losses.md)"
        raise ConfigError(f"no loss is called {name}; {hint}")
    arguments = parse_arguments([f"algo={name}"])
    arguments.config_dir = str(OwnFolder.path) if OwnFolder.path is not None else None
    composer = Composer(arguments)
    settings = composer.compose(composer.fixed_overrides())
    values = OmegaConf.to_container(settings["algo"], resolve=True)
    assert isinstance(values, dict)
    function = build_section("algo", {**values, **hyper})
    return ConfiguredLoss(function, reduction or settings.optim.reduction, mu or settings.mu)


def read_runs(*folders: str | Path) -> pd.DataFrame:
    """Tabulate the runs in and below some folders, one a row by its name.

    Columns: folder, status, notes, group (runs of one group are repetitions); every setting by its dotted key; what was
    trained on (baseline, effective_positive, positive_share, n_train; settings of these names end in " (setting)");
    updates, seconds; base_NAME and final_NAME of pass@1 and the other figures, with _low and _high of the run's 95 %
    interval. Shares lie between 0 and 1; what a run lacks is missing. TOPRError where there are no runs.
    """
    runs = find_runs(map(Path, folders))
    return runs_frame(group_runs(runs).runs)


def check_choice(name: str, value: str, *choices: str) -> None:
    """Raise ConfigError for an argument that is none of its choices."""
    if value not in choices:
        raise ConfigError(f"{name}={value}: expected {' or '.join(choices)}")


def read_curves(*folders: str | Path, split: Literal["train", "test"] = "train") -> pd.DataFrame:
    """Tabulate every number that the runs logged, a row for each run and optimizer step.

    split: "train" for metrics of the updates, "test" for evaluations on the same problems while training; their number
    is in the column problems: with `evaluation.every` the first `evaluation.problems`, else all.
    """
    check_choice("split", split, "train", "test")
    kind = "training" if split == "train" else "test"
    runs = find_runs(map(Path, folders))
    curves = {run.name: run.curves[kind] for run in runs}
    return pd.concat(curves, names=["run", "step"])


def compare_runs(*folders: str | Path, against: str | None = None, figure: str = "pass@1") -> pd.DataFrame:
    """Compare groups of finished runs, one a row, as `python -m topr_exp.compare` does; the numbers are its numbers.

        comparison = topr_exp.compare_runs("outputs/three", against="topr")
        print(comparison[["final_pass@1", "difference"]])
        print(*comparison.attrs["remarks"], sep="\\n")

    against: a group's name or a setting's value (default: the first group); figure: pass@1, maj (largest K), invalid.

    Columns: runs, final_FIGURE; unless a group is its own reference, against and difference. Shares lie between 0 and
    1, with _low, _high and _interval_over of their 95 % intervals; not_compared says why there is no difference.
    attrs["remarks"] says who is above the others at 95 % for all comparisons together, and what else differs.

    TOPRError where no finished run has the figure; ConfigError for a group that there is not.
    """
    paths = list(map(Path, folders))
    return compare(paths, against, figure).frame()


def read_completions(run: str | Path, iteration: int = 1, *, split: Literal["train", "test"] = "train") -> pd.DataFrame:
    """Tabulate completions of a run, one a row: those that an offline iteration drew, or those of its last test.

    Columns: problem_id, problem (an index into the problems of the split whose prompts fit) and sample, or what an
    imported file has; text, tokens, finish, verdict, answer, reward where graded, and of training how often the row is
    in the training set (chosen).
    Imported completions follow sampled ones. TOPRError where the run, or what it refers to in the store, can't be read.
    """
    check_choice("split", split, "train", "test")
    if split == "test":
        return read_tested_completions(Path(run))
    folder = Path(run) / f"iteration-{iteration}"
    sources, fault = read_run_file(folder / "sources.json")
    if not sources:
        raise TOPRError(f"{folder / 'sources.json'}: {fault or 'no completions were sampled before training'}")
    tables = graded_tables(sources)
    has_log = (folder / IMPORTED).exists()  # its table is the last; rows of it may have been left out
    frames = []
    for names in tables:
        row_numbers = None
        if has_log and names is tables[-1]:
            row_numbers = read_row_numbers(folder / IMPORTED)
        store = find_store(Path(run), names.rollouts, sources["store"])
        frames.append(read_graded(store, names, row_numbers))
    frame = pd.concat(frames, ignore_index=True)
    examples = read_row_numbers(folder / EXAMPLES).ravel()  # a row's number once for each time that it is trained on
    counts = pd.Series(examples).value_counts()
    frame["chosen"] = counts.reindex(frame.index, fill_value=0)
    return frame


def read_tested_completions(run: Path) -> pd.DataFrame:
    """Tabulate the completions of a run's last evaluation."""
    summary, fault = read_run_file(run / "summary.json")
    final = summary.get("final") or {}
    if not {"rollouts", "verdicts"} <= final.keys():
        raise TOPRError(f"{run / 'summary.json'}: {fault or 'names no completions of a test'}")
    recorded_path = Path(final["rollouts"])  # STORE/rollouts/NAME
    names = GradedTable(f"rollouts/{recorded_path.name}", f"verdicts/{Path(final['verdicts']).name}")
    store = find_store(run, names.rollouts, recorded_path.parent.parent)
    return read_graded(store, names)


class GradedTable(NamedTuple):
    """Completions and their verdicts, by the names of their tables in a store."""

    rollouts: str
    verdicts: str


def graded_tables(sources: Mapping[str, str]) -> list[GradedTable]:
    """The tables that an iteration's sources.json names: of sampled completions, then of imported ones."""
    tables = []
    for prefix in ("", "imported_"):
        rollouts = sources.get(f"{prefix}rollouts")
        verdicts = sources.get(f"{prefix}verdicts")
        if rollouts is not None and verdicts is not None:
            # Each is a table's name, then for imported completions how the file was read.
            tables.append(GradedTable(rollouts.split(" ")[0], verdicts.split(" ")[0]))
    return tables


def read_graded(store: Store, names: GradedTable, row_numbers: NDArray[np.integer] | None = None) -> pd.DataFrame:
    """Completions of a store's table beside their verdicts; of a column of both, that of the verdicts.

    row_numbers: of the completions that the verdicts are on; None: all.
    """
    rollouts = store.open(store.root / names.rollouts).read()
    verdicts = store.open(store.root / names.verdicts).read()
    if row_numbers is not None:
        rollouts = rollouts.take(row_numbers)
    shared_names = [name for name in verdicts.column_names if name in rollouts.column_names]
    rollout_frame = rollouts.drop_columns(shared_names).to_pandas()
    return pd.concat([rollout_frame, verdicts.to_pandas()], axis=1)


def grade_answers(completions: Sequence[str], golds: Sequence[str], grader: str = "math") -> list[str]:
    """The verdict on each completion: correct, incorrect or invalid, by sealed workers as in a run.

        topr_exp.grade_answers([r"so \\boxed{1/2}"], ["0.5"])  # ["correct"]

    grader: gsm8k, lenient, math, final, or package.module.name.
    """
    completion_texts = list_texts("completions", completions)
    gold_texts = list_texts("golds", golds)
    if len(gold_texts) != len(completion_texts):
        raise ConfigError(f"golds must be {len(completion_texts)}, one for each completion; got {len(gold_texts)}")
    pairs = zip(completion_texts, gold_texts, strict=True)
    with Grader(grader) as open_grader:
        return [outcome.verdict for outcome in open_grader.grade(pairs)]


# ---- sweeps


def plan_runs(words: Sequence[str]) -> list[Job]:
    """The runs of a command line in their order, composed and checked: `job.config`, and `job.overrides` that make it.

        jobs = topr_exp.plan_runs(["experiment=fig1", "seed=0"])

    words: as after `python -m topr_exp`, `--config-dir` included. ConfigError with one line.
    """
    command_line = list_texts("words", words)
    jobs = plan(parse_arguments(command_line)).jobs
    return [replace(job, words=command_line) for job in jobs]


def run_sweep(jobs: Sequence[Job], words: Sequence[str] | None = None) -> int:
    """Run planned runs as one sweep, here or on the cluster of their settings; finished runs stay as they are.

        status = topr_exp.run_sweep(topr_exp.plan_runs(["-m", "algo=topr,tis", "seed=0,1"]))

    jobs: from `plan_runs`, of one sweep's folder. words: the command line that `python -m topr_exp.sweeps resume` goes
    by, where the jobs come from several; None: that of the first job.
    Returns 0, 1 where a run failed, or 128 + N after signal N. TOPRError for what the user can mend.
    """
    if not jobs:
        raise ConfigError("jobs must be one or more; got none")
    command_line = list_texts("words", jobs[0].words if words is None else words)
    check_machine(job.config for job in jobs)
    check_sweep(list(jobs))
    return launch(jobs, command_line, reports=False)


# ---- settings, weights and prompts of a run


def read_config(run: str | Path) -> Config:
    """The settings of a run's folder, checked. TOPRError where its config.json can't be read."""
    path = Path(run) / "config.json"
    stored, fault = read_run_file(path)
    if not stored:
        raise TOPRError(f"{path} {fault}")
    return load_stored(stored["resolved"])


def settings_by_key(settings: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Settings, or the nested dictionary of a config.json, as plain values by dotted key."""
    return dict(flatten(plain(settings)))


def load_policy(config: Config, run: str | Path | None = None, *, reference: bool = False) -> Policy:
    """The model of some settings with its tokenizer: as it began, or as the training of `run` left it.

        policy = topr_exp.load_policy(config, run=config.folder)
        policy.model  # the torch module

    reference: π_ref, the model that `model.reference` names, in its place.
    """
    from topr_exp.models.loading import refuse_other_logits
    from topr_exp.models.policy import load_policy as load_weights

    if reference:
        policy = load_weights(config.reference_model, config.cluster.device)
    else:
        weights_folder = Path(run) / "model" if run is not None else None
        policy = load_weights(config.model, config.cluster.device, weights_folder)
    refuse_other_logits(policy.model)
    return policy


def read_problems(config: Config, *, split: Literal["train", "test"] = "train") -> dict[str, Problem]:
    """The problems of some settings, with question and gold answer, by `problem_id` in `read_completions`."""
    return {problem.id: problem for problem in problems_of_split(config, split)}


def problems_of_split(config: Config, split: str) -> list[Problem]:
    """The problems of a split; ConfigError for a verifier's, which are made of solutions that a model samples."""
    from topr_exp.data.problems import load_problems

    check_choice("split", split, "train", "test")
    if config.task.verifies:
        raise ConfigError(
            "task=verifier: its problems are sampled solutions, not those of data; `python -m topr_exp.store export "
            "rollouts/HASH FILE.parquet` writes the prompts with the completions"
        )
    sets = load_problems(config.data)
    return sets.train if split == "train" else sets.test


def prompt_ids(config: Config, policy: Policy, *, split: Literal["train", "test"] = "train") -> list[NDArray[np.int32]]:
    """The prompts of a run's problems as token ids, by the problem's index in `read_completions`."""
    from topr_exp.data.prompts import build_prompter, tokenize_prompts

    problems = problems_of_split(config, split)
    prompter = build_prompter(config.data)
    questions = tokenize_prompts(problems, prompter, policy, config.sampler.max_new_tokens)
    return list(questions.prompts)
