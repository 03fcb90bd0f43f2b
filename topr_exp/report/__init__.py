"""Reports of finished and unfinished runs; for notebooks `read_runs` and `read_curves`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame


def read_runs(*folders: str | Path) -> DataFrame:
    """Tabulate the runs in and below some folders, one a row by its name.

    Columns: folder, status, notes, group (runs of one group are repetitions); every setting by its dotted key; what was
    trained on (baseline, effective_positive, positive_share, n_train; settings of these names end in " (setting)");
    updates, seconds; base_NAME and final_NAME of pass@1 and the other figures, with _low and _high of the run's 95 %
    interval. Shares lie between 0 and 1; what a run lacks is missing. TOPRError where there are no runs.
    """
    from topr_exp.report.groups import group_runs
    from topr_exp.report.runs import find_runs
    from topr_exp.report.tables import runs_frame

    return runs_frame(group_runs(find_runs(map(Path, folders))).runs)


def read_curves(*folders: str | Path, kind: str = "training") -> DataFrame:
    """Tabulate every number that the runs logged, a row for each run and optimizer step.

    kind: "training" for metrics of the updates, "test" for evaluations on the same problems while training.
    """
    import pandas as pd

    from topr_exp.report.runs import find_runs

    return pd.concat({run.name: run.curves[kind] for run in find_runs(map(Path, folders))}, names=["run", "step"])
