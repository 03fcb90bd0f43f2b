"""The public functions of `topr_exp`; `import topr_exp` loads each when it is first asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from topr_exp.compare import compare
from topr_exp.config.compose_overrides import Composer, parse_arguments
from topr_exp.config.load import build_section
from topr_exp.config.settings import Config
from topr_exp.config.yamls import OwnFolder, loss_files
from topr_exp.grading import Grader
from topr_exp.report.grouping import group_runs
from topr_exp.report.reader import find_runs
from topr_exp.report.tables import runs_frame
from topr_exp.runs.overwrite import move_overwritten_folder
from topr_exp.runs.plan import plan
from topr_exp.runs.preflight import check_machine
from topr_exp.runs.run_files import read_run_file
from topr_exp.runs.training_data import EXAMPLES, IMPORTED, read_row_numbers
from topr_exp.store import Store
from topr_exp.training.own_loop import ConfiguredLoss, MuSource, Reduction
from topr_exp.types import ConfigError, TOPRError


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked settings of one run, from words as on the command line.

        config = topr_exp.compose(["algo=tis", "data=math", "effective_positive=0.2"])

    Raises ConfigError with one line: the key, what was given, what is allowed.
    """
    if options := [word for word in overrides if word.startswith("-")]:
        raise ConfigError(f"{options[0]}: compose takes KEY=VALUE alone")
    jobs = plan(parse_arguments(list(overrides))).jobs
    if len(jobs) > 1:
        raise ConfigError(f"{len(jobs)} runs: compose makes one; call it for each")
    return jobs[0].config


def run(config: Config) -> dict[str, Any]:
    """Run an experiment in this process, or go on with it; returns what its summary.json holds.

        summary = topr_exp.run(topr_exp.compose(["experiment=smoke"]))

    Raises TOPRError for what the user can mend. Signal handlers, logging and torch's threads are afterwards as before.
    """
    import torch

    from topr_exp import pipeline

    if config.cluster.world_size > 1:
        raise ConfigError(f"{config.cluster.processes_are}={config.cluster.world_size}: run takes 1 process")
    if config.dry_run:
        raise ConfigError("dry_run=true: run starts what it is given; compose alone checks the settings")
    check_machine([config])
    threads = torch.get_num_threads()
    try:
        return pipeline.run(move_overwritten_folder(config))
    finally:
        torch.set_num_threads(threads)


def loss(name: str, *, mu: MuSource | None = None, reduction: Reduction | None = None, **hyper: Any) -> ConfiguredLoss:
    """A loss by its name, as `algo=NAME` has it: ours, or a plugin's.

        loss = topr_exp.loss("topr", b_neg=0.5)
        loss.reduce(loss(batch).loss, batch).backward()  # of a topr_exp.Batch

    hyper: hyper-parameters in place of those of its YAML. mu, reduction: in place of `mu` and `optim.reduction`, which
    some YAMLs set. Raises ConfigError for an unknown name or hyper-parameter, or a value that is not allowed.
    """
    if name not in loss_files():
        raise ConfigError(f"no loss is called {name}; allowed: {', '.join(loss_files())}")
    arguments = parse_arguments([f"algo={name}"])
    arguments.config_dir = str(OwnFolder.path) if OwnFolder.path is not None else None
    composer = Composer(arguments)
    settings = composer.compose(composer.fixed())
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
    return runs_frame(group_runs(find_runs(map(Path, folders))).runs)


def read_curves(*folders: str | Path, kind: str = "training") -> pd.DataFrame:
    """Tabulate every number that the runs logged, a row for each run and optimizer step.

    kind: "training" for metrics of the updates, "test" for evaluations on the same problems while training.
    """
    return pd.concat({run.name: run.curves[kind] for run in find_runs(map(Path, folders))}, names=["run", "step"])


def compare_runs(*folders: str | Path, against: str | None = None, figure: str = "pass@1") -> pd.DataFrame:
    """Compare groups of finished runs, one a row, as `python -m topr_exp.compare` does; the numbers are its numbers.

        found = topr_exp.compare_runs("outputs/three", against="topr")
        print(found[["final_pass@1", "difference"]], *found.attrs["remarks"], sep="\\n")

    against: a group's name or a setting's value (default: the first group); figure: pass@1, maj (largest K), invalid.

    Columns: runs, final_FIGURE; unless a group is its own reference, against and difference. Shares lie between 0 and
    1, with _low, _high and _interval_over of their 95 % intervals; not_compared says why there is no difference.
    attrs["remarks"] says who is above the others at 95 % for all comparisons together, and what else differs.

    TOPRError where no finished run has the figure; ConfigError for a group that there is not.
    """
    return compare([*map(Path, folders)], against, figure).frame()


def read_completions(run: str | Path, iteration: int = 1) -> pd.DataFrame:
    """Tabulate the completions that an offline iteration of a run drew, one a row.

    Columns: problem (an index into the training problems) and sample, or what an imported file has; text, tokens,
    finish, verdict, answer, reward where graded, and how often the row is in the training set (chosen). Imported
    completions follow sampled ones. TOPRError where the run, or what it refers to in the store, can't be read.
    """
    folder = Path(run) / f"iteration-{iteration}"
    sources, fault = read_run_file(folder / "sources.json")
    if not sources:
        raise TOPRError(f"{folder / 'sources.json'}: {fault or 'no completions were sampled before training'}")
    kinds, parts = [kind for kind in ("", "imported_") if {f"{kind}rollouts", f"{kind}verdicts"} <= sources.keys()], []
    home, table = Path(run).resolve(), sources[f"{kinds[0]}rollouts"].split(" ")[0]
    places = home / "store", home.parent.parent / "store", Path(sources["store"])  # wherever these are now
    store = Store(next((place for place in places if (place / table).is_dir()), places[-1]))
    for kind in kinds:
        names = (sources[f"{kind}{what}"].split(" ")[0] for what in ("verdicts", "rollouts"))  # then how it was read
        verdicts, drawn = (store.open(store.root / name).read() for name in names)
        if kind == kinds[-1] and (folder / IMPORTED).exists():  # a log, of which rows may have been left out
            drawn = drawn.take(read_row_numbers(folder / IMPORTED))
        drawn = drawn.drop_columns(sorted({*drawn.column_names} & {*verdicts.column_names}))
        parts.append(pd.concat([drawn.to_pandas(), verdicts.to_pandas()], axis=1))
    frame = pd.concat(parts, ignore_index=True)
    rows, counts = np.unique(read_row_numbers(folder / EXAMPLES), return_counts=True)
    frame["chosen"] = pd.Series(counts, index=rows).reindex(frame.index, fill_value=0)
    return frame


def grade_answers(completions: Sequence[str], golds: Sequence[str], grader: str = "math") -> list[str]:
    """The verdict on each completion: correct, incorrect or invalid, by sealed workers as in a run.

        topr_exp.grade_answers([r"so \\boxed{1/2}"], ["0.5"])  # ["correct"]

    grader: gsm8k, lenient, math, final, or package.module:function.
    """
    with Grader(grader) as open_grader:
        return [outcome.verdict for outcome in open_grader.grade(zip(completions, golds, strict=True))]
