"""The study's outcome: its hypothesis, decided by the records that there are, tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reproduce import records
from reproduce.claims import Claim, Decision, Extra, below, ends_above, judge_by
from reproduce.figure import Figure
from reproduce.files import plural, write_file
from reproduce.groups import EFFECTIVE, algorithms, by_choice, group_by
from reproduce.page import list_origins, number_table
from reproduce.panels import PERCENT, Panel, bars, grid, project_style, save_picture
from reproduce.real.plan import MODEL, SHARES
from reproduce.selection import Record, Runs

RUINED = 0.1  # more of the completions are invalid than before
OWN_SHARE = f"topr {EFFECTIVE}=null"
CHOICES = {f"p̃ = {share:g}": [f"{EFFECTIVE}={share:g}"] for share in SHARES if share is not None}
shares = by_choice({"c = 0": [f"{EFFECTIVE}=null"], **CHOICES})


def decisions_at(share: float) -> list[Decision]:
    """Decide whether TOPR at an effective proportion stays valid and ends above c = 0."""
    group = f"topr {EFFECTIVE}={share:g}"
    text = f"p̃ = {share:g}: at most {PERCENT * RUINED:.0f} points more of its completions are invalid than before"
    return [
        ends_above(text, group, metric="invalid", limit=RUINED, rule=below),
        ends_above(f"p̃ = {share:g}: TOPR's pass@1 ends above that of c = 0", group, OWN_SHARE),
    ]


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    groups = group_by(runs, algorithms, shares)
    return [Panel(partial(bars, groups=groups, name=name), f"{model}: {name}") for name in ("pass@1", "invalid")]


FIGURE = Figure(
    name="real",
    title="A real model",
    claim="Where few completions are correct, c = 0 ruins TOPR, too: invalid completions take over. An effective "
    "proportion of positives of 0.1 to 0.2 prevents it.",
    experiments=("real",),
    draw=grid(panels, width=5.5),
    judge=judge_by(
        ends_above("c = 0: more of TOPR's completions are invalid than before", OWN_SHARE, metric="invalid"),
        *decisions_at(0.1),
        *decisions_at(0.2),
    ),
    levels=(algorithms, shares),
)
TITLE = "# A real model"
HEAD = """{model} imitates GSM8K's solutions, samples, and trains for one epoch on these completions, by
`python -m reproduce real`. Every run begins from the same model and trains on the same completions; seeds differ in
their order. All losses have one learning rate, which was taken, not chosen.
"""


def write_outcome(imitation: Record | None, cell_records: Sequence[Record], planned_count: int, folder: Path) -> Path:
    """Write the page and the picture of what is recorded; returns the page's path."""
    runs = Runs(record for record in cell_records if "of_problems" in record["final"])
    lines = [TITLE, ""]
    if imitation is not None:
        lines += [*head_lines(imitation), *imitation_table(imitation), ""]
    lines += [f"{len(cell_records)} of {plural(planned_count, 'run')} ended.", ""]
    lines += [f"**Stated before any run**: {FIGURE.claim}", ""]
    if runs:
        lines += [*list_claims(runs), "", *number_table(FIGURE, runs), "", *lengths_table(runs), ""]
        lines += ["![pass@1 and invalid completions of each loss](real.png)", ""]
        with project_style():
            save_picture(FIGURE.draw(runs, {}), folder / "real.png")
    lines += not_finite_note(cell_records)
    lines += ["Computed by:", "", *list_origins(environments_of(imitation, cell_records))]
    path = folder / "real.md"
    write_file(path, "\n".join(lines) + "\n")
    return path


def head_lines(imitation: Record) -> list[str]:
    """What was done; of a stand-in, that its numbers mean nothing."""
    model = imitation["settings"]["model.name"]
    lines = [HEAD.format(model=model)]
    if model != MODEL:
        lines += [f"**This is a try of the steps: numbers of {model} mean nothing here.**", ""]
    return lines


def not_finite_note(cell_records: Sequence[Record]) -> list[str]:
    names = [f"`{record['run']}`" for record in cell_records if "of_problems" not in record["final"]]
    if not names:
        return []
    return [f"Ended by a loss or gradient that was not finite, and in no table: {', '.join(names)}.", ""]


def environments_of(imitation: Record | None, cell_records: Sequence[Record]) -> list[dict[str, Any]]:
    """Where the records were computed, each once."""
    environments: list[dict[str, Any]] = []
    for record in (imitation, *cell_records):
        if record is not None and record["environment"]:
            records.find_or_append(environments, record["environment"])
    return environments


def list_claims(runs: Runs) -> list[str]:
    claims: list[Claim] = []
    for claims_of_model in FIGURE.decide(runs, {}).values():
        claims += claims_of_model
    return [f"- {claim.text}: *{claim.word}* ({claim.evidence})" for claim in claims]


def imitation_table(imitation: Record) -> list[str]:
    """The model as it came and after the imitation."""
    runs = Runs([imitation])
    lines = ["| | pass@1 | invalid | tokens | cut off, % |", "|---|---|---|---|---|"]
    for name, stage in (("as it came", "base"), ("after the imitation", "final")):
        shares_of_stage = [runs.interval(column, stage).percent() for column in ("pass@1", "invalid")]
        lines.append(f"| {name} | {' | '.join(shares_of_stage)} | {length_cells(runs, stage)} |")
    return lines


def lengths_table(runs: Runs) -> list[str]:
    """Lengths of the completions after training and how many were cut off, as means over seeds."""
    lines = [
        "| completions | tokens | cut off, % |",
        "|---|---|---|",
        f"| base | {length_cells(Runs(runs[:1]), 'base')} |",
    ]
    for name, group in group_by(runs, *FIGURE.levels).items():
        if group:
            lines.append(f"| {name} | {length_cells(group, 'final')} |")
    return lines


def length_cells(runs: Runs, stage: str) -> str:
    figures = [record["answers"][stage] for record in runs]
    length = np.mean([run_figures["length"] for run_figures in figures])
    truncated = PERCENT * np.mean([run_figures["truncated_share"] for run_figures in figures])
    return f"{length:.0f} | {truncated:.1f}"
