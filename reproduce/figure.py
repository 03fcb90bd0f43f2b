"""A figure: whose runs it is made of, how it is drawn, and its claims, which intervals and a stated rule decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from reproduce.groups import Split, name_of
from reproduce.selection import Level, Runs, over_seeds
from topr_exp.evaluation.intervals import Interval
from topr_exp.report.results import contrast, difference, gain
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

    def named(self, name: str, label: str) -> Claim:
        """With the label in the place of {name}."""
        text, evidence = (each.replace(f"{{{name}}}", label) for each in (self.text, self.evidence))
        return Claim(text, self.holds, evidence)

    @property
    def word(self) -> str:
        return {True: "shown", False: "not shown", None: "undecided"}[self.holds]


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
    levels: tuple[Level, ...]  # the table's rows are these groups
    wider: tuple[str, ...]  # added to them in the full version
    metrics: tuple[str, ...]  # of the updates, by records.METRICS, that it needs
    names: tuple[str, ...]  # columns of the table
    note: str = ""  # what a reader must know of how it was made
    only_full: bool = False
    own_model: bool = False  # its experiments name their models: model=NAME is not for it
    extra: Callable[[Sequence[tuple[Record, Path]]], Extra] | None = None  # computed from finished runs
    own_table: Callable[[Runs, Extra], list[str]] | None = None  # in Markdown, for one model, beside that of numbers


# ---- rules


def counted(found: Interval) -> str:
    """A share of seeds as it is printed: 2 of 5 seeds, 40.0 [11.8, 76.9] %."""
    return f"{round(found.value * found.seeds)} of {found.seeds} seeds, {found.percent()} %"


def above(text: str, found: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies above the limit, not shown where it lies below, else undecided."""
    if found is None:
        return Claim(text, None, "no runs")
    holds = True if found.low > limit else False if found.high < limit else None
    return Claim(text, holds, found.percent(sign=True))


def below(text: str, found: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies below the limit."""
    return contrary(text, above(text, found, limit))


def contrary(text: str, claim: Claim) -> Claim:
    return Claim(text, None if claim.holds is None else not claim.holds, claim.evidence)


def between(text: str, found: Iterable[tuple[str, Interval | None]], most: float) -> Claim:
    """Shown where every interval lies within ± `most`, not shown where one lies wholly outside, else undecided."""
    known = [(label, one) for label, one in found if one is not None]
    if not known:
        return Claim(text, None, "no runs")
    outside = any(one.low > most or one.high < -most for _, one in known)
    holds = False if outside else True if all(-most < one.low and one.high < most for _, one in known) else None
    return Claim(text, holds, "; ".join(f"{label}: {one.percent(sign=True)}" for label, one in known))


def within(text: str, found: Interval | None, most: float) -> Claim:
    return between(text, [("difference", found)], most)


def by_seeds(
    text: str, values: Sequence[float], shown: str, rule: Callable[..., Claim] = above, limit: float = 0.0
) -> Claim:
    """Decide by the interval over seeds of a number of each; shown: the evidence."""
    return Claim(text, rule(text, over_seeds(values), limit).holds, shown if len(values) else "no runs")


def verdict(claims: Sequence[Claim]) -> str:
    """shown: all claims are; partly: some are; else undecided where any claim is, and not shown where none is."""
    if not claims:
        return "nothing to decide"
    shown = sum(claim.holds is True for claim in claims)
    if shown:
        return "shown" if shown == len(claims) else "partly"
    return "undecided" if any(claim.holds is None for claim in claims) else "not shown"


# ---- groups that a row names


def pick(runs: Runs, choice: str) -> Runs:
    """The runs that a choice names: an algorithm and KEY=VALUE, in any number; of values with commas all must be there.

    "best KEY ...", "largest KEY ...", "smallest KEY ...": among these the ones with one value of a setting: that with
    the highest mean pass@1, or an end.
    """
    first, *words = choice.split()
    if first in ("best", "largest", "smallest"):
        groups = pick(runs, " ".join(words[1:]) or "all").split(words[0])
        key = (lambda value: mean_of(groups[value])) if first == "best" else None
        return groups[(min if first == "smallest" else max)(groups, key=key)] if groups else Runs([])
    for word in () if choice == "all" else (first, *words):
        name, _, values = word.rpartition("=")
        parts = [
            runs.where(**{(name or "algo.name").replace(".", "__"): yaml.safe_load(one)}) for one in values.split(",")
        ]
        runs = Runs([record for part in parts for record in part] if all(map(len, parts)) else [])
    return runs


def mean_of(runs: Runs) -> float:
    return float(runs.values().mean())


def combined(runs: Runs, combine: Callable[..., Any], *choices: str) -> Interval | None:
    """An interval of several groups' pass@1, [seeds, problems] each, and the base's, [problems], problem by problem."""
    groups = [pick(runs, choice) for choice in choices]
    if not all(map(len, groups)):
        return None
    base = groups[0].values(part="base")[0]
    return contrast(lambda *each: combine(*each, base), *groups)


# ---- rows


@dataclass(frozen=True)
class Row:
    """A claim that a group of runs ends above a reference in a metric, by more than a limit."""

    text: str
    group: str
    reference: str | None = None  # None: the base
    metric: str = "pass@1"
    limit: float = 0.0
    rule: Callable[[str, Interval | None, float], Claim] = above  # or below, within

    def __call__(self, runs: Runs, extra: Extra) -> Claim:
        group = pick(runs, self.group)
        if self.reference is None:
            found = gain(group, self.metric)
        else:
            found = difference(pick(runs, self.reference), group, self.metric)
        return self.rule(self.text, found, self.limit)


def judged(*rows: Decides) -> Judge:
    """Decide rows in order."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        found = (row(runs, extra) for row in rows)
        return [claim for each in found for claim in ([each] if isinstance(each, Claim) else each)]

    return judge


def each(name: str, split: Split, *rows: Decides) -> Judge:
    """Decide rows for every group; {name} in a sentence is what the group is called."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        return [
            claim.named(name, name_of(key))
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
        return [above(text.replace("{}", name_of(key)), difference(*pair)) for key, pair in pairs.items()]

    return judge


# ---- numbers of each seed


@dataclass(frozen=True)
class Compared:
    """A claim that a number of each run is above `least` times that of the other group's run with the same seed."""

    text: str
    groups: Mapping[str, str]  # two, by what the evidence calls them
    number: Callable[[Record, Extra], float]
    written: str = "{:.2f}"  # each number; what follows a space once after all
    least: float = 1.0

    def __call__(self, runs: Runs, extra: Extra) -> Claim:
        first, second = (pick(runs, choice) for choice in self.groups.values())
        pairs = [[self.number(record, extra) for record in pair] for pair in in_pairs(first, second)]
        number, space, unit = self.written.partition(" ")
        shown = "; ".join(
            f"{label} {' '.join(number.format(pair[i]) for pair in pairs)}{space}{unit}"
            for i, label in enumerate(self.groups)
        )
        return by_seeds(self.text, [one - self.least * two for one, two in pairs], shown)


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


def of_model(runs: Runs, extra: Extra) -> list[Any]:
    """Return what extra numbers by model and seed say of each model and seed of these runs."""
    return [extra[key] for key in dict.fromkeys(map(model_and_seed, runs)) if key in extra]
