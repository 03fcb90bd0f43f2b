"""What a figure shows of what the paper claims: each claim is decided by numbers and a stated rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topr_exp.evaluation.intervals import Interval
from topr_exp.report.selection import Runs, difference, gain, over_seeds


@dataclass(frozen=True)
class Claim:
    """A part of a paper's claim, as it came out here."""

    text: str  # with the rule
    holds: bool | None  # None: not decided, for lack of runs or since the interval holds 0
    evidence: str

    @property
    def word(self) -> str:
        return {True: "shown", False: "not shown", None: "undecided"}[self.holds]


def counted(found: Interval) -> str:
    """A share of seeds as it is printed: 2 of 5 seeds, 40.0 [11.8, 76.9] %."""
    return f"{round(found.value * found.seeds)} of {found.seeds} seeds, {found.percent()} %"


def above(text: str, found: Interval | None, least: float = 0.0) -> Claim:
    """Shown where the whole interval lies above `least`, not shown where it lies below, else undecided."""
    if found is None:
        return Claim(text, None, "no runs")
    holds = True if found.low > least else False if found.high < least else None
    return Claim(text, holds, found.percent(sign=True))


def below(text: str, found: Interval | None, most: float = 0.0) -> Claim:
    """Shown where the whole interval lies below `most`."""
    if found is None:
        return Claim(text, None, "no runs")
    holds = True if found.high < most else False if found.low > most else None
    return Claim(text, holds, found.percent(sign=True))


def between(text: str, found: Sequence[tuple[str, Interval | None]], most: float) -> Claim:
    """Shown where every interval lies within ± `most`, not shown where one lies wholly outside, else undecided."""
    known = [(label, one) for label, one in found if one is not None]
    if not known:
        return Claim(text, None, "no runs")
    outside = any(one.low > most or one.high < -most for _, one in known)
    holds = False if outside else True if all(-most < one.low and one.high < most for _, one in known) else None
    return Claim(text, holds, "; ".join(f"{label}: {one.percent(sign=True)}" for label, one in known))


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


# ---- claims about groups of runs, as rows

Choice = str | Callable[[Runs], Runs]  # an algorithm, or any part of the runs
Judge = Callable[[Runs, dict[str, Any]], list[Claim]]


def pick(runs: Runs, choice: Choice) -> Runs:
    return runs.where(algo__name=choice) if isinstance(choice, str) else choice(runs)


def where(algo: str | None = None, **settings: Any) -> Callable[[Runs], Runs]:
    """The runs with these settings, of one algorithm or of all."""
    return lambda runs: runs.where(**settings, **({"algo__name": algo} if algo else {}))


@dataclass(frozen=True)
class Row:
    """A claim that a group of runs ends above a reference in a metric, by more than `least`."""

    text: str
    group: Choice
    reference: Choice | None = None  # None: the base
    metric: str = "pass@1"
    least: float = 0.0
    rule: Callable[[str, Interval | None, float], Claim] = above  # or below

    def __call__(self, runs: Runs, extra: dict[str, Any]) -> Claim:
        group = pick(runs, self.group)
        if self.reference is None:
            found = gain(group, self.metric)
        else:
            found = difference(pick(runs, self.reference), group, self.metric)
        return self.rule(self.text, found, self.least)


def judged(*items: Callable[[Runs, dict[str, Any]], Claim | list[Claim]]) -> Judge:
    """Decide rows, and what else gives claims, in order."""

    def judge(runs: Runs, extra: dict[str, Any]) -> list[Claim]:
        found = (item(runs, extra) for item in items)
        return [claim for each in found for claim in (each if isinstance(each, list) else [each])]

    return judge
