"""Table 2: a generative verifier before and after training, and the answers that its approval selects.

What each problem adds to the figures is averaged over the runs of an algorithm; intervals are those of the bootstrap
over problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduce.draw import names_below, series_style
from reproduce.figure import Claim, Extra, above, below, key_of
from reproduce.records import rounded
from reproduce.selection import Runs, over_seeds
from topr_exp.evaluation.intervals import crossed_interval
from topr_exp.report.repetitions import Scores
from topr_exp.runs.records import Record
from topr_exp.verifier.figures import Tally, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Counts of each problem and what they are shares of; selections are scores already.
SHARES = {"right": "verified", "unparsable": "verified", "weighted_sc": None, "maj": None}
Noted = Mapping[str, Any]  # columns of the tallies before and after training, beside their sizes


def read_noted(folder: Path) -> Noted:
    """What a run noted of each test problem before and after training."""
    stored = json.loads((folder / "verification.json").read_text(encoding="utf-8"))
    steps = {int(iteration): values for iteration, values in stored["iterations"].items()}
    kept: dict[str, Any] = {
        when: {name: [rounded(float(value)) for value in column] for name, column in steps[step].items()}
        for when, step in (("before", 0), ("after", max(steps)))
    }
    return kept | {name: stored[name] for name in ("problems", "solutions", "verifications")}


def tallies(finished: Sequence[tuple[Record, Path]]) -> Extra:
    """What each run noted, by its settings."""
    return {key_of(record): read_noted(folder) for record, folder in finished}


def averaged(runs: Sequence[Noted], when: str) -> Tally:
    """The mean tally of some runs, problem by problem."""
    assert all(each["problems"] == runs[0]["problems"] for each in runs)
    values = {name: np.mean([each[when][name] for each in runs], axis=0) for name in runs[0][when]}
    return Tally(values, runs[0]["solutions"], runs[0]["verifications"])


def rows_of(runs: Runs, extra: Extra) -> dict[str, Tally]:
    """The rows of the table: none and oracle (which read the base's tally), the base, and each algorithm, TOPR last."""
    base = averaged(of_runs(runs, extra), "before")
    groups = runs.split("algo.name")
    names = sorted(groups, key=lambda name: (name == "topr", name))
    trained = {name: averaged(of_runs(groups[name], extra), "after") for name in names}
    return {"none": base, "base": base, **trained, "oracle": base}


def selection(kind: str) -> str:
    return {"none": "maj", "oracle": "oracle"}.get(kind, "weighted_sc")


def of_runs(runs: Runs, extra: Extra) -> list[Noted]:
    return [extra[key_of(record)] for record in runs]


def column(ax: Axes, runs: Runs, name: str, extra: Extra) -> None:
    """A bar for each row of the table; without a verifier there is nothing but the vote."""
    rows = rows_of(runs, extra)
    shown = [kind for kind in rows if name == "weighted_sc" or selection(kind) == "weighted_sc"]
    for i, kind in enumerate(shown):
        found = summarise(rows[kind])[selection(kind) if name == "weighted_sc" else name]
        value, low, high = (found[key] for key in ("value", "low", "high"))
        ax.bar(i, 100 * value, color="0.6" if selection(kind) != "weighted_sc" else series_style(0)["color"])
        if low is not None:
            ends = np.maximum([[100 * (value - low)], [100 * (high - value)]], 0)
            ax.errorbar(i, 100 * value, ends, color="black", capsize=2)
    names_below(ax, shown)


def judge_table_2(runs: Runs, extra: Extra) -> list[Claim]:
    if not len(runs):
        return []
    noted = of_runs(runs, extra)
    before, after = ({name: of_problems(noted, when, name) for name in SHARES} for when in ("before", "after"))
    gained = {name: crossed_interval(after[name] - before[name]) for name in SHARES}
    halved = crossed_interval(after["unparsable"] - before["unparsable"] / 2)
    return [
        above("training makes the verifier more accurate", gained["right"]),
        balanced_claim(noted),
        below("and leaves less than half of its invalid verdicts (after − half of before)", halved),
        above("weighted self-consistency gains by the training", gained["weighted_sc"]),
        above("and beats the vote without a verifier", crossed_interval(after["weighted_sc"] - before["maj"])),
    ]


def balanced_claim(noted: Sequence[Noted]) -> Claim:
    """It also gains where each verdict counts half: most solutions are wrong, and 'wrong' is easily said."""
    before, after = ([balanced(each[when]) for each in noted] for when in ("before", "after"))
    found = over_seeds([b - a for a, b in zip(before, after, strict=True)])
    claim = above("and in balanced accuracy (the mean over correct and over incorrect solutions)", found)
    shown = " to ".join(" ".join(f"{100 * value:.1f}" for value in values) for values in (before, after))
    return replace(claim, evidence=f"{claim.evidence}; {shown}")


def balanced(tally: Mapping[str, Sequence[float]]) -> float:
    """The mean of the accuracies on correct and on incorrect solutions."""
    shares = [sum(tally[f"right_on_{kind}"]) / sum(tally[f"verified_{kind}"]) for kind in ("correct", "incorrect")]
    return float(np.mean(shares))


def of_problems(noted: Sequence[Noted], when: str, name: str) -> Scores:
    """[seeds, problems] of the original problems: a share of their verifications, or the score of a selection."""
    values = np.array([each[when][name] for each in noted], dtype=np.float64)
    whole = SHARES[name]
    return values if whole is None else values / np.array([each[when][whole] for each in noted])
