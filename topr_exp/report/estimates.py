"""Scores of groups of runs: estimates with intervals; who ended best, by how much, and how sure that is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from topr_exp.evaluation.intervals import Interval, t_interval
from topr_exp.report.results import difference, gain, gold_answers, records
from topr_exp.report.runs import DAMAGE, Run
from topr_exp.runs.records import Record
from topr_exp.runtime.exit_status import plural
from topr_exp.runtime.files import number
from topr_exp.types import TOPRError

REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share
MOST = 5  # groups that the sentence names
Groups = Mapping[str, Sequence[Run]]  # label -> repetitions


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with its interval; final figures are of finished runs.

    Over seeds and problems where the verdicts are there, else over seeds; of one run, or where all have the same
    completions, over problems.
    """
    known = [run for run in runs if run.figure(part, name) is not None and (part == "base" or run.status == "done")]
    if not known:
        return None
    own = measured(known[0].summary[part], name)
    if len({Path(str(run.summary[part].get("verdicts", run.path))).name for run in known}) == 1:
        if not math.isnan(own.low):
            return own
        known = known[:1]
    if name != REWARD:
        with contextlib.suppress(TOPRError):  # the verdicts are gone
            return records(known, part).interval(name, part)
    values = [run.summary[part][name] for run in known]
    return t_interval(values, share=name != REWARD) if len(set(values)) > 1 else own


def measured(evaluation: Record, name: str) -> Interval:
    """A figure as its run measured it, with its interval over problems, else 1.96 standard errors."""
    name = "pass@1" if name == "correct" else name
    value, (curve, _, k) = float(evaluation[name]), name.partition("@")
    low = high = None
    with contextlib.suppress(*DAMAGE):
        low, high = (number(evaluation[f"{curve}@k"][k][end]) for end in ("low", "high"))
    if low is None or high is None:
        if (error := number(evaluation.get(f"{name}_se"))) is None:
            return Interval(value)
        low, high = value - 1.96 * error, value + 1.96 * error
    return Interval(value, low, high)


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


# ---- groups beside one another


def minus(runs: Sequence[Run], reference: Sequence[Run], name: str) -> Interval | str:
    """The final figure of some runs minus that of others, paired by seed and problem; else why there is none."""
    try:
        if len({gold_answers(run) for run in (*reference, *runs)}) > 1:
            return "other test problems"
        found = difference(records(reference, "final"), records(runs, "final"), name)
    except TOPRError as error:
        return str(error)
    return found if found is not None else "no seed in common"


def versus(groups: Groups, references: Mapping[str, str | None], head: str, name: str) -> list[dict[str, str]]:
    """A row for each group of finished runs: its figure, and the difference to its reference (None: it has none)."""
    rows = []
    for label, runs in groups.items():
        score, reference = estimate(runs, name), references[label]
        row = {f"{name}, %": label, "runs": str(len(runs)), "mean": printed(runs, name)}
        row |= {"over": score.over if score is not None else "", f"minus {head}": "", " ": ""}
        if reference != label:
            found = "nothing to compare with" if reference is None else minus(runs, groups[reference], name)
            told = (found, "") if isinstance(found, str) else (found.percent(sign=True), found.over)
            row |= zip((f"minus {head}", " "), told, strict=True)
        rows.append(row)
    return rows


def ranking(groups: Groups) -> tuple[str, list[dict[str, str]]]:
    """Say who ended best, and of which others that is not sure; rows of `versus`. groups: best first."""
    done = {label: found for label, runs in groups.items() if (found := [run for run in runs if run.status == "done"])}
    if not done:
        return "No run has finished yet.", []
    best, runs = next(iter(done.items()))
    ended = f"{printed(runs, 'pass@1')} % pass@1 ({plural(len(runs), 'run')})"
    if len(done) == 1:
        return f"{best} went from {printed(runs, 'pass@1', 'base')} to {ended}{gained(runs)}.", []
    compared = {label: minus(done[label], runs, "pass@1") for label in done if label != best}
    known = {label: each for label, each in compared.items() if isinstance(each, Interval)}
    below = [label for label, each in known.items() if each.high < 0]
    kinds = {
        "Below it, each beyond its own 95 % interval": below,
        "Not told apart from it": [label for label in known if label not in below],
        "Not compared": [label for label in compared if label not in known],
    }
    said = [f"{best} has the highest mean, {ended}."]
    for words, labels in kinds.items():
        if labels:
            rest = [f"{len(labels) - MOST} more"] * (len(labels) > MOST)
            said.append(f"{words}: {'; '.join([*labels[:MOST], *rest])}.")
    return " ".join(said), versus(done, dict.fromkeys(done, best), best, "pass@1")


def gained(runs: Sequence[Run]) -> str:
    with contextlib.suppress(TOPRError):  # the verdicts are gone
        if (found := gain(records(runs, "base", "final"))) is not None:
            return f", by {found.percent(sign=True)} points"
    return ""
