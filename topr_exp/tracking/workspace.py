"""`python -m topr_exp.tracking.workspace`: a W&B workspace that compares the runs of a project.

With --save FILE its specification is written as JSON, without an account or a network; without it the workspace is
created in W&B and its address printed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from topr_exp.runtime.exit_status import exit_status
from topr_exp.types import TOPRError

STEPS, SAMPLES = "optimizer_step", "samples"
ALGORITHM = "algo.name"
RATIOS = {
    "Mean log-ratio of positives": "train/log_ratio_pos",
    "Mean log-ratio of negatives": "train/log_ratio_neg",
    "KL(mu || pi), estimated": "train/kl_mu",
    "Effective sample size of negatives": "train/ess_neg",
    "Share of negatives above the upper limit": "train/clipped_high_neg",
    "Share of negatives below the lower limit": "train/clipped_low_neg",
}
COLUMNS = (
    "algo",
    "positive_share",
    "effective_positive",
    "baseline",
    "final/pass_at_1",
    "final/invalid",
    "n_train",
    "seed",
)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit status."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m topr_exp.tracking.workspace", description=summary.split(": ", 1)[-1], epilog=details
    )
    parser.add_argument("--project", default="topr_exp", help="as in tracking.project (default: topr_exp)")
    parser.add_argument("--entity", default="", help="the account or team (default: the one that is logged in)")
    parser.add_argument("--group", help="only the runs of this sweep (the `name` of its runs)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the specification, create nothing")
    return exit_status(partial(run_command, parser.parse_args(arguments)))


def run_command(options: argparse.Namespace) -> int:
    if options.save is not None:
        save(build(options.entity, options.project, options.group), options.save)
        print(f"specification: {options.save}")
    else:
        print(f"workspace: {create(options.entity, options.project, options.group)}")
    return 0


def save(workspace: Any, path: Path) -> None:
    """The specification that W&B would be sent, as JSON."""
    from topr_exp.runtime.files import write_text

    # The package offers no public way to it but saving online; the constraints pin its version.
    write_text(path, workspace._to_model().model_dump_json(indent=2, by_alias=True, exclude_none=True) + "\n")


def create(entity: str, project: str, group: str | None) -> str:
    """Create the workspace in W&B; returns its address. TOPRError when W&B refuses or can't be reached."""
    import wandb

    try:
        if wandb.login(prompt=False):
            workspace = build(entity or str(wandb.Api().default_entity), project, group)
            workspace.save()
            return str(workspace.url)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise TOPRError(f"W&B did not take the workspace ({type(error).__name__}: {reason})") from error
    raise TOPRError("nobody is logged in to W&B: `wandb login`, or --save FILE for the specification alone")


def build(entity: str, project: str, group: str | None) -> Any:
    """The workspace: learning curves, the effective proportion, ratio statistics, invalid answers, the runs."""
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"topr_exp: {group or 'comparison'}",
        sections=[
            ws.Section(name=name, panels=made, is_open=True)
            for name, made in (
                ("Learning curves by algorithm", learning_curve_panels(panels)),
                ("Effective proportion of positives", proportion_panels(panels)),
                ("Ratios", [by_algorithm(panels, title, key) for title, key in RATIOS.items()]),
                ("Invalid answers", invalid_panels(panels)),
                ("Runs", [panels.RunComparer(diff_only=True), panels.WeavePanelSummaryTable(table_name="completions")]),
            )
        ],
        settings=ws.WorkspaceSettings(x_axis=STEPS, max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=[ws.Metric("group") == group] if group else [],
            order=[ws.Ordering(ws.Summary("final/pass_at_1"), ascending=False)],
            pinned_columns=[f"summary:{name}" for name in COLUMNS],
        ),
    )


def by_algorithm(panels: Any, title: str, key: str, x: str = STEPS) -> Any:
    """Curves of a metric, the runs of each algorithm as their mean with its standard error."""
    return panels.LinePlot(
        title=title, x=x, y=[key], groupby=panels.Config(ALGORITHM), groupby_aggfunc="mean", groupby_rangefunc="stderr",
        aggregate=True, max_runs_to_show=100,
    )  # fmt: skip


def learning_curve_panels(panels: Any) -> list[Any]:
    return [
        by_algorithm(panels, "pass@1 while training (part of the test set)", "curve/pass_at_1"),
        by_algorithm(panels, "pass@1 against samples seen", "curve/pass_at_1", SAMPLES),
        by_algorithm(panels, "pass@1 before and after", "eval/pass_at_1"),
        by_algorithm(panels, "maj@8 before and after", "eval/maj_at_8"),
        by_algorithm(panels, "Loss", "train/loss"),
    ]


def proportion_panels(panels: Any) -> list[Any]:
    """Final pass@1 against p~, coloured by the share p of positives in the data; and with the algorithm beside."""
    gradient = [panels.GradientPoint(color=color, offset=at) for at, color in ((0, "#0072B2"), (100, "#E69F00"))]
    columns = [
        (panels.Config(ALGORITHM), "algorithm"),
        (panels.SummaryMetric("positive_share"), "p"),
        (panels.SummaryMetric("effective_positive"), "p~"),
        (panels.SummaryMetric("final/pass_at_1"), "pass@1"),
    ]
    return [
        panels.ScatterPlot(
            title="Final pass@1 against p~ (colour: p)",
            x=panels.SummaryMetric("effective_positive"),
            y=panels.SummaryMetric("final/pass_at_1"),
            z=panels.SummaryMetric("positive_share"),
            gradient=gradient,
            legend_template="${config:algo.name} ${run:displayName}",
        ),
        panels.ParallelCoordinatesPlot(
            title="Algorithm, p, p~ and pass@1",
            columns=[
                panels.ParallelCoordinatesPlotColumn(metric=metric, display_name=name) for metric, name in columns
            ],
        ),
    ]


def invalid_panels(panels: Any) -> list[Any]:
    final = panels.SummaryMetric("final/invalid")
    return [
        by_algorithm(panels, "Invalid share while training", "curve/invalid"),
        panels.BarPlot(
            title="Invalid share after training", metrics=[final], groupby=panels.Config(ALGORITHM),
            groupby_aggfunc="mean", groupby_rangefunc="stderr",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
