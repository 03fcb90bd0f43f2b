"""Scores of groups of runs: estimates with intervals; who ended best, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from topr_exp.evaluation.intervals import Interval, t_interval
from topr_exp.report.results import gold_answers, measured, record
from topr_exp.report.runs import Run
from topr_exp.report.selection import Runs, difference, gain
from topr_exp.runs.console import plural
from topr_exp.types import TOPRError

REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share
MOST = 5  # groups that the sentence names
Groups = Mapping[str, Sequence[Run]]  # label -> repetitions
Row = dict[str, str | int]  # by the titles of the columns


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with its interval.

    Over seeds and problems where the verdicts are there, else over seeds; of one run, or where all have the same
    completions, over problems. Final figures are of finished runs, else of those that got furthest.
    """
    furthest = max(map(progress, runs), default=None)
    known = [
        run for run in runs if run.figure(part, name) is not None and (part == "base" or progress(run) == furthest)
    ]
    if not known:
        return None
    values = [float(run.summary[part][name]) for run in known]
    if len({Path(str(run.summary[part].get("verdicts", run.path))).name for run in known}) == 1:
        own = measured(known[0].summary[part], name)
        if own is not None and not math.isnan(own.low):
            return own
        known = known[:1]
    figure = "maj" if name.startswith("maj@") else name
    if name != REWARD:
        try:
            return Runs([record(run, part, figure) for run in known]).interval(figure, part)
        except TOPRError:  # the verdicts are gone
            pass
    if len(set(values)) > 1:
        return t_interval(values, share=name != REWARD)
    return measured(known[0].summary[part], name) or Interval(values[0])


def progress(run: Run) -> tuple[bool, int]:
    """Describe a run's progress: finished, else after how many evaluations."""
    return (True, 0) if run.status == "done" else (False, len(run.evaluations))


def headlines(runs: Sequence[Run]) -> list[str]:
    """The figures that these runs are told by: pass@1, the mean reward where there is one, maj@K of the largest K."""
    names = {name for run in runs for name in run.summary.get("final", run.summary.get("base", {}))}
    ks = [int(name[4:]) for name in names if name.startswith("maj@") and name[4:].isdigit()]
    return ["pass@1", *[REWARD] * (REWARD in names), *(f"maj@{k}" for k in sorted(ks)[-1:])]


def printed(runs: Sequence[Run], name: str, part: str = "final") -> str:
    """An estimate for people: shares in percent."""
    found = estimate(runs, name, part)
    return "–" if found is None else found.written(".3g") if name == REWARD else found.percent()


def best_first(groups: Groups) -> Groups:
    """Order groups by their final pass@1, those without one last."""
    found = {label: estimate(runs, "pass@1") for label, runs in groups.items()}
    values = {label: -1.0 if each is None else each.value for label, each in found.items()}
    return {label: groups[label] for label in sorted(groups, key=lambda label: -values[label])}


# ---- who ended best


def ranking(groups: Groups) -> tuple[str, list[Row]]:
    """Say who ended best and tabulate final pass@1 of finished runs; of a single group base and trained model."""
    done = {label: [run for run in runs if run.status == "done"] for label, runs in groups.items()}
    done = {label: runs for label, runs in done.items() if runs}
    if not done:
        return "No run has finished yet.", []
    best, *others = done
    if not others:
        return before_and_after(done[best])
    differences = {label: to_best(done[best], done[label]) for label in others}
    rows = [row("group", label, runs, "final", best, differences.get(label)) for label, runs in done.items()]
    return verdict(best, done[best], differences), rows


def row(title: str, name: str, runs: Sequence[Run], part: str, reference: str, minus: Interval | None) -> Row:
    found: Row = {title: name, "runs": len(runs), "pass@1 %": printed(runs, "pass@1", part)}
    if REWARD in headlines(runs):
        found["mean reward"] = printed(runs, REWARD, part)
    return found | ({} if minus is None else {f"minus {reference}": minus.percent(sign=True), "over": minus.over})


def to_best(best: Sequence[Run], runs: Sequence[Run]) -> Interval | None:
    """A group's final pass@1 minus the best one's, paired; None without a common seed, test or verdicts."""
    try:
        if len({gold_answers(run) for run in (*best, *runs)}) > 1:
            return None
        pair = [Runs([record(run) for run in members]) for members in (best, runs)]
    except TOPRError:
        return None
    return difference(pair[0], pair[1])


def verdict(best: str, runs: Sequence[Run], differences: Mapping[str, Interval | None]) -> str:
    """Say who ended best, and of which others that is not sure."""
    ended = f"{printed(runs, 'pass@1')} % pass@1 ({plural(len(runs), 'run')})"
    known = {label: each for label, each in differences.items() if each is not None and not math.isnan(each.high)}
    if not known:
        return f"{best} has the highest number, {ended}, but no other shares a seed, the test and its verdicts with it."
    said = [f"{best} ended best: {ended}."]
    close = [label for label, each in known.items() if each.high >= 0]
    if unknown := [label for label in differences if label not in known]:
        said.append(f"Not compared, for want of a common seed, test or verdicts: {listed(unknown)}.")
    if close:
        said.append(f"Not told apart from it: {listed(close)}.")
    if len(known) > len(close):
        said.append("The others ended below it, each beyond its own 95 % interval.")
    if any(each.seeds < 2 for each in known.values()):
        said.append("Where one seed is compared, nothing is said of other seeds.")
    return " ".join(said)


def listed(labels: Sequence[str]) -> str:
    """Some groups by name, a long list cut short."""
    return "; ".join([*labels[:MOST], *[f"{len(labels) - MOST} more"] * (len(labels) > MOST)])


def before_and_after(runs: Sequence[Run]) -> tuple[str, list[Row]]:
    """Compare base and trained model of runs that differ in seeds alone."""
    try:
        gained = gain(Runs([record(run) | record(run, "base") for run in runs]))
    except TOPRError:  # the verdicts are gone
        gained = None
    rows = [row("model", "base", runs, "base", "base", None), row("model", "trained", runs, "final", "base", gained)]
    before, after = (printed(runs, "pass@1", part) for part in ("base", "final"))
    said = f"pass@1 went from {before} % to {after} % ({plural(len(runs), 'run')})"
    said += f", by {gained.percent(sign=True)} points." if gained is not None else "."
    if len(runs) == 1:
        said += " The intervals are over test problems; one run says nothing of other seeds."
    return said, rows
