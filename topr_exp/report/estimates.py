"""Scores of groups of runs: estimates with intervals; who ended best, by how much, and how sure that is."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from topr_exp.evaluation.intervals import FEWEST_SEEDS, Interval, below_another, clopper_pearson, t_interval
from topr_exp.report.results import Runs, difference, gain, gold_answers, records
from topr_exp.report.runs import DAMAGE, Run
from topr_exp.runs.records import Record
from topr_exp.runtime.json_files import as_number
from topr_exp.runtime.terminal import plural
from topr_exp.types import TOPRError

REWARD = "mean_reward"  # of an evaluation, where rewards are graded: no share
Groups = Mapping[str, Sequence[Run]]  # label -> repetitions
MOST = 5  # groups that a sentence names
TOGETHER = "at 95 % for all comparisons together"


def estimate(runs: Sequence[Run], name: str, part: str = "final") -> Interval | None:
    """The mean of a share, or of REWARD, over repetitions with its interval; final figures are of finished runs.

    Over seeds and problems; over seeds where verdicts are missing; over problems for one run or equal completions.
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
    if (
        value in (0, 1)
        and name != REWARD
        and (cases := as_number(evaluation.get("sources", evaluation.get("problems"))))
    ):
        return replace(clopper_pearson(int(value * cases), int(cases)), seeds=1, problems=True)
    low = high = None
    with contextlib.suppress(*DAMAGE):
        low, high = (as_number(evaluation[f"{curve}@k"][k][end]) for end in ("low", "high"))
    if low is None or high is None:
        if (error := as_number(evaluation.get(f"{name}_se"))) is None:
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


def best_first(groups: Groups, name: str = "pass@1") -> Groups:
    """Order groups by a final share, those without one last."""
    found = {label: estimate(runs, name) for label, runs in groups.items()}
    values = {label: -1.0 if each is None else each.value for label, each in found.items()}
    return {label: groups[label] for label in sorted(groups, key=lambda label: -values[label])}


# ---- groups beside one another


def minus(runs: Sequence[Run], reference: Sequence[Run], name: str) -> Interval | str:
    """The final figure of some runs minus that of others, paired by seed and problem; else why there is none."""
    try:
        if any(run.figure("final", name) is None for run in (*reference, *runs)):
            return f"no {name} of both"
        if len({gold_answers(run) for run in (*reference, *runs)}) > 1:
            return "other test problems"
        found = difference(records(reference, "final"), records(runs, "final"), name)
    except TOPRError as error:
        return str(error)
    return found if found is not None else "no seed in common"


def differences(groups: Groups, references: Mapping[str, str | None], name: str) -> dict[str, Interval | str]:
    """Map each group to its difference to its reference (None: it has none), else to why there is none."""
    found: dict[str, Interval | str] = {}
    for label, runs in groups.items():
        reference = references[label]
        if reference != label:
            found[label] = "nothing to compare with" if reference is None else minus(runs, groups[reference], name)
    return found


def versus(groups: Groups, found: Mapping[str, Interval | str], head: str, name: str) -> list[dict[str, str]]:
    """A row for each group of finished runs: its figure, and the difference to its reference."""
    rows = []
    for label, runs in groups.items():
        score, less = estimate(runs, name), found.get(label, "")
        row = {f"{name}, %": label, "runs": str(len(runs)), "mean": printed(runs, name)}
        row |= {"over": score.over if score is not None else ""}
        told = (less, "") if isinstance(less, str) else (less.percent(sign=True), less.over)
        rows.append(row | dict(zip((f"minus {head}", "paired over"), told, strict=True)))
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
    beside = differences(done, dict.fromkeys(done, best), "pass@1")
    return standing(done, "pass@1"), versus(done, beside, best, "pass@1")


def standing(groups: Groups, name: str) -> str:
    """Say which of several groups of finished runs is above the others, as `against_best` does."""
    means = {}
    for label, runs in groups.items():
        mean = estimate(runs, name)
        means[label] = mean.value if mean is not None else -1.0
    best, *tied = leaders(means)
    known: dict[str, Runs] = {}
    tests: dict[str, str] = {}
    for label, runs in groups.items():
        if any(run.figure("final", name) is None for run in runs):
            continue
        with contextlib.suppress(TOPRError, ValueError):  # the verdicts are gone; several tests in a group
            (tests[label],) = {gold_answers(run) for run in runs}
            known[label] = records(runs, "final")
    same = {label: runs for label, runs in known.items() if tests[label] == tests.get(best)}
    collapsed = {label: [fell(run) for run in runs] for label, runs in groups.items()}
    told = f"{highest_mean([best, *tied], len(groups))}, {printed(groups[best], name)} % {name}"
    sure = against_best(same, best, collapsed, name, tied=tied)
    return f"{told} ({plural(len(groups[best]), 'run')}). {sure}".rstrip()


def leaders(means: Mapping[str, float]) -> list[str]:
    """The groups with the highest mean: several where they tie."""
    highest = max(means.values())
    return [label for label, mean in means.items() if math.isclose(mean, highest, abs_tol=1e-9)]


def highest_mean(labels: Sequence[str], count: int) -> str:
    """Say which of `count` groups have the highest mean."""
    return f"{'; '.join(labels)} {'has' if len(labels) == 1 else 'share'} the highest mean of {count}"


def fell(run: Run) -> bool:
    """Check whether a run collapsed: its final pass@1 is below half of its base's."""
    final, base = (run.figure(part, "pass@1") for part in ("final", "base"))
    return final is not None and base is not None and final < base / 2


def gained(runs: Sequence[Run]) -> str:
    with contextlib.suppress(TOPRError):  # the verdicts are gone
        if (found := gain(records(runs, "base", "final"))) is not None:
            return f", by {found.percent(sign=True)} points"
    return ""


# ---- the best of several groups, as far as all comparisons together allow


def against_best(
    groups: Mapping[str, Runs],
    best: str,
    collapsed: Mapping[str, Sequence[bool]],
    name: str = "pass@1",
    *,
    tied: Sequence[str] = (),
) -> str:
    """Say whether the group with the highest mean is above all others, else which ones are below another.

    Over the seeds that all groups with three or more have in common; groups with collapsed seeds, whose spread says
    little, are counted and not compared.
    groups: repetitions on the same test problems; collapsed: the seeds of each group, also of those not in `groups`;
    tied: the others with the same mean as the best.
    """
    fallen = {label: sum(seeds) for label, seeds in collapsed.items() if any(seeds)}
    known = {
        label: runs
        for label, runs in groups.items()
        if label not in fallen and len({*runs.seeds}) == len(runs) >= FEWEST_SEEDS
    }
    shared = sorted(set.intersection(*({*runs.seeds} for runs in known.values()))) if best in known else []
    kinds: dict[str, list[str]] = {}
    if best in fallen:
        said = ["No winner: some of its seeds collapsed."]
    elif len(known) < 2 or len(shared) < FEWEST_SEEDS:
        said = [f"No winner: fewer than {FEWEST_SEEDS} seeds in common."]
    else:
        paired = (Runs([runs[runs.seeds.index(seed)] for seed in shared]) for runs in known.values())
        labels, below = [*known], below_another(np.stack([runs.values(name) for runs in paired]))
        under = [label for label, row in zip(labels, below, strict=True) if row.any()]
        first = [label for label in (best, *tied) if label in known and label not in under]
        others = [label for label in labels if label not in first]
        above = below[np.ix_([labels.index(label) for label in others], [labels.index(label) for label in first])]
        said = []
        if first and others and above.all():
            said.append(f"{'They are' if tied else 'It is'} above all others, {TOGETHER}.")
        else:
            kinds[f"Below another, {TOGETHER}"] = under
            apart = () if best in under else others  # by its other seeds alone the best
            kinds[f"Not told apart from {'them' if tied else 'it'}"] = [label for label in apart if label not in under]
        kinds["Not compared"] = [label for label in collapsed if label not in known and label not in fallen]
    kinds["Collapsed"] = [f"{label} ({count} of {len(collapsed[label])} seeds)" for label, count in fallen.items()]
    for words, named in kinds.items():
        if named:
            rest = [f"{len(named) - MOST} more"] * (len(named) > MOST)
            said.append(f"{words}: {'; '.join([*named[:MOST], *rest])}.")
    return " ".join(said)
