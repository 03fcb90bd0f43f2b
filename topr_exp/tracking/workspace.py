"""`python -m topr_exp.tracking.workspace`: a W&B workspace that compares the runs of a project.

Creates it in W&B and prints its address; with --save FILE writes its specification as JSON, without account or network.
"""

import argparse
import sys
from functools import partial
from typing import Any

from topr_exp.runtime.exit_status import CommandParser, exit_status, user_path
from topr_exp.runtime.terminal import one_line
from topr_exp.tracking.wandb_writer import wandb_project
from topr_exp.types import TOPRError

STEPS = "optimizer_step"
ALGORITHM = "algo.name"
CURVES = {  # metrics, by section and title of a panel
    "Learning curves by algorithm": {
        "pass@1": "eval/pass_at_1",
        "maj@8": "eval/maj_at_8",
        "Tokens of an answer": "eval/length",
        "Loss": "train/loss",
    },
    "Ratios": {
        "Mean log-ratio of positives": "train/log_ratio_pos",
        "Mean log-ratio of negatives": "train/log_ratio_neg",
        "KL(mu || pi), estimated": "rest/train_kl_mu",
        "Effective sample size": "train/ess",
        "Share of negatives above the upper limit": "rest/train_clipped_high_neg",
        "Share of negatives below the lower limit": "rest/train_clipped_low_neg",
    },
    "Invalid completions": {
        "Invalid share": "rest/eval_invalid",
        "Share cut off by the token limit": "rest/eval_truncated_share",
    },
}
COLUMNS = (
    "algo", "positive_share", "effective_positive", "baseline", "final/pass_at_1", "final/invalid", "n_train", "seed",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = CommandParser(prog="python -m topr_exp.tracking.workspace", description=__doc__)
    parser.add_argument("--project", default=wandb_project(), help="(default: WANDB_PROJECT, else topr_exp)")
    parser.add_argument("--entity", default="", help="the account or team (default: the one that is logged in)")
    parser.add_argument("--group", help="only the runs of this sweep (the `name` of its runs)")
    parser.add_argument("--save", type=user_path, metavar="FILE", help="write the specification, create nothing")
    return exit_status(partial(run_command, parser.parse_args(arguments)))


def run_command(options: argparse.Namespace) -> int:
    """Write the specification, or create the workspace; TOPRError when W&B refuses or can't be reached."""
    import wandb

    from topr_exp.runtime.files import write_text

    if options.save is not None:
        # The package offers no public way to what it would send; the constraints pin its version.
        model = build_workspace(options.entity, options.project, options.group)._to_model()
        write_text(options.save, model.model_dump_json(indent=2, by_alias=True, exclude_none=True) + "\n")
        print(f"specification: {options.save}")
        return 0
    try:
        if wandb.login(prompt=False):
            entity = options.entity or str(wandb.Api().default_entity)
            workspace = build_workspace(entity, options.project, options.group)
            workspace.save()
            print(f"workspace: {workspace.url}")
            return 0
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error, 300)}"
        raise TOPRError(f"W&B did not take the workspace ({reason})") from error
    raise TOPRError("nobody is logged in to W&B: `wandb login`, or --save FILE for the specification alone")


def build_workspace(entity: str, project: str, group: str | None) -> Any:
    """Return the workspace: learning curves, effective proportion, ratio statistics, invalid completions, the runs."""
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as workspaces

    def curve(title: str, metric: str) -> Any:
        """Return a panel of a metric's curves, the runs of each algorithm as their mean with its standard error."""
        return panels.LinePlot(
            title=title, x=STEPS, y=[metric], groupby=panels.Config(ALGORITHM), aggregate=True, max_runs_to_show=100,
            groupby_aggfunc="mean", groupby_rangefunc="stderr",
        )  # fmt: skip

    sections = []
    for name, metric_by_title in CURVES.items():
        curves = [curve(title, metric) for title, metric in metric_by_title.items()]
        sections.append(workspaces.Section(name=name, panels=curves, is_open=True))
    scatter_plot = panels.ScatterPlot(
        title="Final pass@1 against p̃ (colour: p)",
        x=panels.SummaryMetric("effective_positive"),
        y=panels.SummaryMetric("final/pass_at_1"),
        z=panels.SummaryMetric("positive_share"),
    )
    sections.append(workspaces.Section(name="Effective proportion of positives", panels=[scatter_plot], is_open=True))
    run_panels = [panels.RunComparer(diff_only=True), panels.WeavePanelSummaryTable(table_name="completions")]
    sections.append(workspaces.Section(name="Runs", panels=run_panels, is_open=True))
    filters = [workspaces.Metric("group") == group] if group else []
    return workspaces.Workspace(
        entity=entity,
        project=project,
        name=f"topr_exp: {group or 'comparison'}",
        sections=sections,
        settings=workspaces.WorkspaceSettings(x_axis=STEPS, max_runs=100),
        runset_settings=workspaces.RunsetSettings(
            filters=filters,
            order=[workspaces.Ordering(workspaces.Summary("final/pass_at_1"), ascending=False)],
            pinned_columns=[f"summary:{name}" for name in COLUMNS],
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
