"""TOPR's Table 2: a generative verifier before and after training, and the answers that its approval selects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce import draw
from reproduce.claims import Claim, above, below
from reproduce.figure import Extra
from reproduce.table2 import FILE, Row, Tested, rows_of
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.results import rounded
from topr_exp.report.runs import Run
from topr_exp.report.selection import Matrix, Runs, over_seeds
from topr_exp.runs.records import Record
from topr_exp.verifier.figures import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Counts of each problem and what they are shares of; selections are scores already.
SHARES = {"right": "verified", "unparsable": "verified", "weighted_sc": None, "maj": None}
COLUMNS = {"accuracy": "verifier accuracy", "invalid": "invalid", "weighted_sc": "weighted SC"}


def tallies(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """What each run noted of its test problems before and after training, by its settings."""
    found: Extra = {}
    for record, folder in finished:
        noted = json.loads((folder / FILE).read_text(encoding="utf-8"))
        steps = {int(iteration): values for iteration, values in noted["iterations"].items()}
        kept = {
            when: {name: [rounded(float(value)) for value in column] for name, column in steps[step].items()}
            for when, step in (("before", 0), ("after", max(steps)))
        }
        sizes = {name: noted[name] for name in ("problems", "solutions", "verifications")}
        found[json.dumps(record["settings"], sort_keys=True)] = kept | sizes
    return found


def rows(runs: Runs, extra: Extra) -> list[Row]:
    """The rows of the table from what these runs noted."""
    tested = []
    for record in runs:
        noted = extra[json.dumps(record["settings"], sort_keys=True)]
        before, after = (
            Tally(
                {name: np.array(column, float) for name, column in noted[when].items()},
                noted["solutions"],
                noted["verifications"],
            )
            for when in ("before", "after")
        )
        settings: dict[str, Any] = {}
        for key in ("model.name", "algo.name"):
            group, name = key.split(".")
            settings[group] = {name: record["settings"][key]}
        tested.append(Tested(Run(Path(record["run"]), record["run"], settings), noted["problems"], before, after))
    return rows_of(tested)


def column(ax: Axes, runs: Runs, name: str, extra: Extra) -> None:
    """A bar for each row of the table; without a verifier there is nothing but the vote."""
    shown = [row for row in rows(runs, extra) if name == "weighted_sc" or row.selection == "weighted_sc"]
    for i, row in enumerate(shown):
        found = row.figures[row.selection if name == "weighted_sc" else name]
        value, low, high = (found[key] for key in ("value", "low", "high"))
        color = "0.6" if row.selection != "weighted_sc" else draw.series_style(0)["color"]
        ax.bar(i, 100 * value, color=color)
        if low is not None:
            ends = np.maximum([[100 * (value - low)], [100 * (high - value)]], 0)
            ax.errorbar(i, 100 * value, ends, color="black", capsize=2)
    ax.set_xticks(range(len(shown)), [row.kind for row in shown], rotation=30, ha="right")


draw_table_2 = draw.grid(
    *(
        draw.panel(column, lambda runs: runs, name, extra=True, ylabel=f"{title} (%)")
        for name, title in COLUMNS.items()
    ),
    width=3.0,
)


def judge_table_2(runs: Runs, extra: Extra) -> list[Claim]:
    if not len(runs):
        return []
    before, after = ({name: of_problems(runs, extra, when, name) for name in SHARES} for when in ("before", "after"))
    gained = {name: crossed_interval(after[name] - before[name]) for name in SHARES}
    halved = crossed_interval(after["unparsable"] - before["unparsable"] / 2)
    return [
        above("training makes the verifier more accurate", gained["right"]),
        balanced_claim(runs, extra),
        below("and leaves less than half of its invalid verdicts (after − half of before)", halved),
        above("weighted self-consistency gains by the training", gained["weighted_sc"]),
        above("and beats the vote without a verifier", crossed_interval(after["weighted_sc"] - before["maj"])),
    ]


def balanced_claim(runs: Runs, extra: Extra) -> Claim:
    """Whether it also gains where each verdict counts half: most solutions are wrong, and 'wrong' is easily said."""
    noted = [extra[json.dumps(record["settings"], sort_keys=True)] for record in runs]
    before, after = ([balanced(each[when]) for each in noted] for when in ("before", "after"))
    found = over_seeds([b - a for a, b in zip(before, after, strict=True)])
    claim = above("and in balanced accuracy (the mean over correct and over incorrect solutions)", found)
    shown = " to ".join(" ".join(f"{100 * value:.1f}" for value in values) for values in (before, after))
    return Claim(claim.text, claim.holds, f"{claim.evidence}; {shown}")


def balanced(tally: dict[str, list[float]]) -> float:
    """The mean of the accuracies on correct and on incorrect solutions."""
    shares = [sum(tally[f"right_on_{kind}"]) / sum(tally[f"verified_{kind}"]) for kind in ("correct", "incorrect")]
    return float(np.mean(shares))


def of_problems(runs: Runs, extra: Extra, when: str, name: str) -> Matrix:
    """[seeds, problems] of the original problems: a share of their verifications, or the score of a selection."""
    noted = [extra[json.dumps(record["settings"], sort_keys=True)] for record in runs]
    values = np.array([each[when][name] for each in noted], dtype=np.float64)
    whole = SHARES[name]
    return values if whole is None else values / np.array([each[when][whole] for each in noted])
