"""A figure: whose runs it is made of, how it is drawn, and its claims, which intervals and a stated rule decide."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce.groups import Split, name_of
from reproduce.selection import Runs, fell, over_seeds, pick
from topr_exp.evaluation.intervals import FEWEST_SEEDS, LEVEL, Interval
from topr_exp.report.repetitions import contrast, difference, gain
from topr_exp.runs.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Extra = dict[str, Any]  # numbers of a figure that no run's record holds


@dataclass(frozen=True)
class Claim:
    """A part of a paper's claim, as it came out here."""

    text: str  # with the rule
    holds: bool | None  # None: not decided, for lack of runs or since the interval holds 0
    evidence: str
    p: float | None = None  # two-sided, of the test that decides it; None: no interval does
    alone: bool = False  # by its own interval, but not among all claims of its figure
    equal: bool = False  # an identity: the difference is 0 for each seed and problem

    @property
    def word(self) -> str:
        if self.equal:
            return "equal"
        failed = "not shown" if self.p is None else "reversed"
        return {True: "shown", False: failed, None: "undecided"}[self.holds] + " alone" * self.alone


PARTS = ("text", "evidence")  # of a claim, for people
Judge = Callable[[Runs, Extra], list[Claim]]
Decides = Callable[[Runs, Extra], Claim | Iterable[Claim]]  # a row, or rows


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, or a question beyond them."""

    name: str  # of its files, and the command's word for it
    title: str
    claim: str  # the paper's, in our sentence; for a question beyond the papers: the question
    experiments: tuple[str, ...]  # whose runs it is made of
    draw: Callable[[Runs, Extra], Drawing]
    judge: Judge  # for one model
    levels: tuple[Split, ...]  # the table's rows are these groups
    wider: tuple[str, ...]  # added to them in the full version
    metrics: tuple[str, ...]  # of the updates that it needs; length: of the answers too
    names: tuple[str, ...]  # columns of the table
    note: str = ""  # what a reader must know of how it was made
    only_full: bool = False
    own_model: bool = False  # its experiments name their models: model=NAME is not for it
    extra: Callable[[Sequence[tuple[Record, Path]]], Extra] | None = None  # computed from finished runs
    own_table: Callable[[Runs, Extra], list[str]] | None = None  # in Markdown, for one model, beside that of numbers

    def decide(self, runs: Runs, extra: Extra) -> dict[str, list[Claim]]:
        """The claims by model, with Holm's correction over all of them."""
        judged = {model: self.judge(group, extra) for model, group in runs.split("model.name").items()}
        corrected = iter(holm([claim for claims in judged.values() for claim in claims]))
        return {model: [next(corrected) for _ in claims] for model, claims in judged.items()}


# ---- rules


def holm(claims: Sequence[Claim]) -> list[Claim]:
    """Mark the decided claims that Holm's step-down procedure (1979) leaves open: `alone`.

    With all m p-values in order, the i-th counts while p_i ≤ (1 − LEVEL) / (m − i), i from 0: the error of all
    together is at most 5 %. Claims without a p are no part of it.
    """
    order = sorted((i for i, claim in enumerate(claims) if claim.p is not None), key=lambda i: claims[i].p or 0.0)
    passed = [(claims[i].p or 0.0) <= (1 - LEVEL) / (len(order) - rank) for rank, i in enumerate(order)]
    open_ = {i for rank, i in enumerate(order) if not all(passed[: rank + 1])}
    return [replace(claim, alone=i in open_ and claim.holds is not None) for i, claim in enumerate(claims)]


def sound(claim: Claim, first: Runs, second: Runs, lead: float) -> Claim:
    """Leave open whether a group is above another where some of its seeds collapsed; count those of both.

    lead: above 0 where `first` is the one that would be above; 0: neither may have collapsed.
    """
    fallen = [sum(fell(group)) for group in (first, second)]
    if not any(fallen):
        return claim
    told = " against ".join(
        f"{count} of {len(group)}" for count, group in zip(fallen, (first, second), strict=True) if len(group)
    )
    above_fell = fallen[lead < 0] if lead else any(fallen)
    found = replace(claim, evidence=f"{claim.evidence}; collapsed: {told} seeds")
    return replace(found, holds=None, p=1.0) if above_fell and claim.holds is not None else found


def counted(found: Interval) -> str:
    """A share of seeds as it is printed: 2 of 5 seeds, 40.0 [5.3, 85.3] %."""
    return f"{round(found.value * found.seeds)} of {found.seeds} seeds, {found.percent()} %"


def p_value(found: Interval, limit: float = 0.0) -> float:
    """Two-sided p of Student's t test that the mean is `limit`: 0.05 or more at an interval's end (`cautious`)."""
    from scipy.special import stdtr

    assert not math.isnan(found.error), "of t intervals"
    if found.error == 0:
        return float(found.value == limit)
    return float(2 * stdtr(found.freedom, -abs(found.value - limit) / found.error))


def above(text: str, found: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies above the limit, reversed where it lies below, else undecided.

    Fewer than three seeds decide nothing; a difference of exactly 0 is equal.
    """
    if found is None:
        return Claim(text, None, "no runs")
    evidence = found.percent(sign=True)
    if found.seeds < FEWEST_SEEDS:
        return Claim(text, None, f"{evidence}; fewer than {FEWEST_SEEDS} seeds", 1.0)
    if limit == found.value == found.error == 0:
        return Claim(text, None, evidence, equal=True)
    holds = True if found.low > limit else False if found.high < limit else None
    return Claim(text, holds, evidence, p_value(found, limit))


def below(text: str, found: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies below the limit."""
    return contrary(text, above(text, found, limit))


def contrary(text: str, claim: Claim) -> Claim:
    return replace(claim, text=text, holds=None if claim.holds is None else not claim.holds)


def between(text: str, found: Iterable[tuple[str, Interval | None]], most: float) -> Claim:
    """Shown where every interval lies within ± `most`, reversed where one lies wholly outside, else undecided."""
    known = [(label, one) for label, one in found if one is not None]
    if not known:
        return Claim(text, None, "no runs")
    evidence = "; ".join(f"{label}: {one.percent(sign=True)}" for label, one in known)
    if min(one.seeds for _, one in known) < FEWEST_SEEDS:
        return Claim(text, None, f"{evidence}; fewer than {FEWEST_SEEDS} seeds", 1.0)
    ends = [max(p_value(one, -most), p_value(one, most)) for _, one in known]  # two one-sided tests each
    beyond = [min(p_value(one, -most), p_value(one, most)) for _, one in known if abs(one.value) > most]
    outside = any(one.low > most or one.high < -most for _, one in known)
    holds = False if outside else True if all(-most < one.low and one.high < most for _, one in known) else None
    return Claim(text, holds, evidence, min(1.0, len(known) * min(beyond)) if outside else max(ends) if holds else 1.0)


def within(text: str, found: Interval | None, most: float) -> Claim:
    return between(text, [("difference", found)], most)


def by_seeds(
    text: str, values: Sequence[float], shown: str, rule: Callable[..., Claim] = above, limit: float = 0.0
) -> Claim:
    """Decide by the interval over seeds of a number of each; shown: the evidence."""
    return replace(rule(text, over_seeds(values), limit), evidence=shown if len(values) else "no runs")


def verdict(claims: Sequence[Claim]) -> str:
    """shown: all claims are; partly: some are, or alone; else undecided where any is, and reversed where none is."""
    if not claims:
        return "nothing to decide"
    if any(claim.holds for claim in claims):
        return "shown" if all(claim.word == "shown" for claim in claims) else "partly"
    return "undecided" if any(claim.holds is None for claim in claims) else "reversed"


# ---- rows


def combined(runs: Runs, combine: Callable[..., Any], *choices: str) -> Interval | None:
    """An interval of several groups' pass@1, [seeds, problems] each, and the base's, [problems], problem by problem."""
    groups = [pick(runs, choice) for choice in choices]
    if not all(map(len, groups)):
        return None
    base = groups[0].values(stage="base")[0]
    return contrast(lambda *each: combine(*each, base), *groups)


def row(
    runs: Runs,
    extra: Extra,
    *,
    text: str,
    group: str,
    reference: str | None = None,
    metric: str = "pass@1",
    limit: float = 0.0,
    rule: Callable[[str, Interval | None, float], Claim] = above,
) -> Claim:
    """Decide that a group of runs ends above a reference (None: the base) in a metric, by more than a limit."""
    ours, others = pick(runs, group), Runs([]) if reference is None else pick(runs, reference)
    found = gain(ours, metric) if reference is None else difference(others, ours, metric)
    claim = rule(text, found, limit)
    if found is None or metric == "invalid":
        return claim
    return sound(claim, ours, others, 0.0 if rule is within else found.value - limit)


def judged(*rows: Decides) -> Judge:
    """Decide rows in order."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        found = (row(runs, extra) for row in rows)
        return [claim for each in found for claim in ([each] if isinstance(each, Claim) else each)]

    return judge


def versus(text: str, first: Runs, second: Runs) -> Claim:
    """That the second group ends above the first."""
    found = difference(first, second)
    return above(text, found) if found is None else sound(above(text, found), second, first, found.value)


def each(name: str, split: Split, *rows: Decides) -> Judge:
    """Decide rows for every group; {name} in a sentence is what the group is called."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        return [
            replace(claim, **{part: getattr(claim, part).replace(f"{{{name}}}", name_of(key)) for part in PARTS})
            for key, group in split(runs).items()
            for claim in judged(*rows)(group, extra)
        ]

    return judge


def others(text: str, split: Split, ours: str, *, ahead: bool = False) -> Judge:
    """That each other group ends above ours, or ours ahead of it; {} in the sentence is what it is called."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        groups = split(runs)
        own = groups.get(ours, Runs([]))
        pairs = {key: (group, own) if ahead else (own, group) for key, group in groups.items() if key != ours}
        return [versus(text.replace("{}", name_of(key)), *pair) for key, pair in pairs.items()]

    return judge


# ---- numbers of each seed


def compared(
    runs: Runs,
    extra: Extra,
    *,
    compare: str,
    groups: Mapping[str, str],
    number: Callable[[Record, Extra], float],
    written: str = "{:.2f}",
    least: float = 1.0,
) -> Claim:
    """Decide that a number of each run is above `least` times that of the other group's run with the same seed.

    groups: two, by what the evidence calls them; written: each number, what follows a space once after all.
    """
    first, second = (pick(runs, choice) for choice in groups.values())
    pairs = [[number(record, extra) for record in pair] for pair in in_pairs(first, second)]
    form, space, unit = written.partition(" ")
    told = (
        f"{label} {' '.join(form.format(pair[i]) for pair in pairs)}{space}{unit}" for i, label in enumerate(groups)
    )
    return by_seeds(compare, [one - least * two for one, two in pairs], "; ".join(told))


def in_pairs(first: Runs, second: Runs) -> list[tuple[Record, Record]]:
    """The runs of the seeds that both have, by seed."""
    shared = sorted({*first.seeds} & {*second.seeds})
    return [(first[first.seeds.index(seed)], second[second.seeds.index(seed)]) for seed in shared]


# ---- numbers beside records


def key_of(record: Record) -> str:
    """A run's key in its figure's extra numbers."""
    return json.dumps(record["settings"], sort_keys=True)


def model_and_seed(record: Record) -> str:
    return f"{record['settings']['model.name']} {record['settings']['seed']}"


def of_model(runs: Runs, extra: Extra, place: str = "") -> list[Any]:
    """Return what extra numbers by model and seed, and at which place, say of each model and seed of these runs."""
    keys = (key + place for key in dict.fromkeys(map(model_and_seed, runs)))
    return [extra[key] for key in keys if key in extra]
