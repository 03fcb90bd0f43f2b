"""Claims about groups of runs, decided by whole intervals and a stated rule, and by Holm's correction over a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reproduce.groups import Split, name_of
from reproduce.selection import Record, Runs, collapsed_seeds, over_seeds, pick
from reproduce.tried_rates import best_stands_beside_cliff
from topr_exp.report import Interval, contrast, difference, gain

Extra = dict[str, Any]  # numbers of a figure that no run's record holds
LEVEL = 0.95  # of an interval
FEWEST_SEEDS = 3  # that decide anything: of two, an interval covers 88 %
NO_RUNS = "no runs"
BESIDE_CLIFF = "the lower one's rate stands beside a cliff"


@dataclass(frozen=True)
class Claim:
    """A part of a paper's claim, as it came out here."""

    text: str  # with the rule
    holds: bool | None  # None: not decided, for lack of runs or since the interval holds 0
    evidence: str
    p: float | None = None  # two-sided, of the test that decides it; None: no interval does
    left_open: bool = False  # by Holm: decided by its own interval, but not among all claims of its figure
    equal: bool = False  # an identity: the difference is 0 for each seed and problem
    interval: Interval | None = None  # of a difference of shares
    beside_cliff: bool = False  # decided, but the lower group's rate stands beside a cliff: a finer grid may change it

    @property
    def word(self) -> str:
        """shown, reversed, not shown, equal or undecided; with "alone" where Holm's correction leaves it open."""
        if self.equal:
            return "equal"
        if self.holds is None:
            word = "undecided"
        elif self.holds:
            word = "shown"
        elif self.p is None:
            word = "not shown"
        else:
            word = "reversed"
        if self.left_open:
            word += " alone"
        return word


Rule = Callable[[str, Interval | None, float], Claim]  # of a text, an interval and a limit
Decision = Callable[[Runs, Extra], Claim | Iterable[Claim]]
Judge = Callable[[Runs, Extra], list[Claim]]  # of one model's runs


def judge_by(*decisions: Decision) -> Judge:
    """Make a judge of decisions, in order."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        claims: list[Claim] = []
        for decision in decisions:
            outcome = decision(runs, extra)
            if isinstance(outcome, Claim):
                claims.append(outcome)
            else:
                claims += outcome
        return claims

    return judge


def for_each(split: Split, decisions_of: Callable[[str], Sequence[Decision]]) -> Judge:
    """Make a judge of the decisions on every group of a split; decisions_of: maps the group's name to them."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        claims: list[Claim] = []
        for key, group in split(runs).items():
            claims += judge_by(*decisions_of(name_of(key)))(group, extra)
        return claims

    return judge


# ---- rules: from an interval to a claim


def above(text: str, interval: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies above the limit, reversed where it lies below, else undecided.

    Fewer than three seeds decide nothing; a difference of exactly 0 is equal.
    """
    if interval is None:
        return Claim(text, None, NO_RUNS)
    evidence = interval.percent(sign=True)
    if interval.seeds < FEWEST_SEEDS:
        evidence += f"; fewer than {FEWEST_SEEDS} seeds"
        return Claim(text, None, evidence, 1.0, interval=interval)
    if limit == interval.value == interval.error == 0:
        return Claim(text, None, evidence, equal=True, interval=interval)
    return Claim(
        text,
        holds=side_of(interval, limit),
        evidence=evidence,
        p=p_value(interval, limit),
        interval=interval,
    )


def side_of(interval: Interval, limit: float) -> bool | None:
    """True where an interval lies above a limit, False where it lies below; None where it holds the limit."""
    if interval.low > limit:
        return True
    if interval.high < limit:
        return False
    return None


def below(text: str, interval: Interval | None, limit: float = 0.0) -> Claim:
    """Shown where the whole interval lies below the limit."""
    return contrary(text, above(text, interval, limit))


def contrary(text: str, claim: Claim) -> Claim:
    """The claim of the opposite."""
    holds = claim.holds
    if holds is not None:
        holds = not holds
    return replace(claim, text=text, holds=holds)


def within(text: str, interval: Interval | None, limit: float) -> Claim:
    """Shown where the interval lies within ± the limit."""
    return all_within(text, {"difference": interval}, limit)


def all_within(text: str, intervals: Mapping[str, Interval | None], limit: float) -> Claim:
    """Shown where every interval lies within ± the limit, reversed where one lies wholly outside, else undecided."""
    measured = {label: interval for label, interval in intervals.items() if interval is not None}
    if not measured:
        return Claim(text, None, NO_RUNS)
    differences = [f"{label}: {interval.percent(sign=True)}" for label, interval in measured.items()]
    evidence = "; ".join(differences)
    if min(interval.seeds for interval in measured.values()) < FEWEST_SEEDS:
        return Claim(text, None, f"{evidence}; fewer than {FEWEST_SEEDS} seeds", 1.0)
    are_all_inside, is_one_outside = True, False
    p_all_inside, p_one_outside = 0.0, 1.0
    for interval in measured.values():
        are_all_inside &= -limit < interval.low and interval.high < limit
        is_one_outside |= interval.low > limit or interval.high < -limit
        p_of_nearer_limit = max(p_value(interval, -limit), p_value(interval, limit))
        p_all_inside = max(p_all_inside, p_of_nearer_limit)  # two one-sided tests
        if abs(interval.value) > limit:
            p_one_outside = min(p_one_outside, p_of_nearer_limit)
    if is_one_outside:
        p_of_any = min(1.0, len(measured) * p_one_outside)  # Bonferroni
        return Claim(text, False, evidence, p_of_any)
    if are_all_inside:
        return Claim(text, True, evidence, p_all_inside)
    return Claim(text, None, evidence, 1.0)


def p_value(interval: Interval, limit: float = 0.0) -> float:
    """Two-sided p of Student's t test that the mean is `limit`: 0.05 or more at an interval's end."""
    from scipy.special import stdtr

    assert not math.isnan(interval.error), "of t intervals"
    distance = abs(interval.value - limit)
    if interval.error == 0:
        return float(distance == 0)
    return float(2 * stdtr(interval.freedom, -distance / interval.error))


def holm(claims: Sequence[Claim]) -> list[Claim]:
    """Mark the decided claims that Holm's step-down procedure (1979) leaves open.

    With all m p-values in order, the i-th counts while p_i ≤ (1 − LEVEL) / (m − i), i from 0: the error of all
    together is at most 5 %. Claims without a p take no part.
    """
    p_values: dict[int, float] = {}
    for index, claim in enumerate(claims):
        if claim.p is not None:
            p_values[index] = claim.p
    open_indices: set[int] = set()
    for rank, index in enumerate(sorted(p_values, key=p_values.__getitem__)):
        limit = (1 - LEVEL) / (len(p_values) - rank)
        if open_indices or p_values[index] > limit:
            open_indices.add(index)
    corrected = []
    for index, claim in enumerate(claims):
        is_open = index in open_indices and claim.holds is not None
        corrected.append(replace(claim, left_open=is_open))
    return corrected


def verdict(claims: Sequence[Claim]) -> str:
    """shown: all claims are; partly: some are, or alone; else undecided where any is, and reversed where none is."""
    if not claims:
        return "nothing to decide"
    if all(claim.word == "shown" for claim in claims):
        return "shown"
    if any(claim.holds for claim in claims):
        return "partly"
    if any(claim.holds is None for claim in claims):
        return "undecided"
    return "reversed"


# ---- groups that end above others


def ends_above(
    text: str,
    group: str,
    reference: str | None = None,
    *,
    metric: str = "pass@1",
    limit: float = 0.0,
    rule: Rule = above,
) -> Decision:
    """That a group ends above a reference (None: its base) in a metric, by more than a limit; both are choices."""

    def judge(runs: Runs, extra: Extra) -> Claim:
        picked = pick(runs, group)
        reference_runs = Runs([])
        if reference is None:
            interval = gain(picked, metric)
        else:
            reference_runs = pick(runs, reference)
            interval = difference(reference_runs, picked, metric)
        claim = rule(text, interval, limit)
        if interval is None or metric == "invalid":
            return claim
        lead = 0.0
        if rule is not within:
            lead = interval.value - limit
        claim = open_if_collapsed(claim, picked, reference_runs, lead=lead)
        if limit:
            return claim
        return note_cliff(claim, picked, reference_runs, runs=runs, lead=lead)

    return judge


def ends_below(text: str, group: str, reference: str | None = None) -> Decision:
    """That a group ends below a reference (None: its base) in pass@1."""
    return ends_above(text, group, reference, rule=below)


def claim_above(text: str, group: Runs, reference: Runs, *, runs: Runs | None = None) -> Claim:
    """The claim that a group ends above another in pass@1. runs: all, which may hold them at other rates."""
    interval = difference(reference, group)
    claim = above(text, interval)
    if interval is None:
        return claim
    claim = open_if_collapsed(claim, group, reference, lead=interval.value)
    return note_cliff(claim, group, reference, runs=runs or Runs([]), lead=interval.value)


def others_end_above(text_of: Callable[[str], str], split: Split, reference: str) -> Judge:
    """That each other group of a split ends above the reference; text_of: maps the other's name to the sentence."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        groups = split(runs)
        reference_runs = groups.pop(reference, Runs([]))
        claims = []
        for key, group in groups.items():
            claims.append(claim_above(text_of(name_of(key)), group, reference_runs, runs=runs))
        return claims

    return judge


def ends_above_others(text_of: Callable[[str], str], split: Split, best: str) -> Judge:
    """That one group of a split ends above each other one; text_of: maps the other's name to the sentence."""

    def judge(runs: Runs, extra: Extra) -> list[Claim]:
        groups = split(runs)
        best_runs = groups.pop(best, Runs([]))
        claims = []
        for key, group in groups.items():
            claims.append(claim_above(text_of(name_of(key)), best_runs, group, runs=runs))
        return claims

    return judge


def open_if_collapsed(claim: Claim, first: Runs, second: Runs, *, lead: float) -> Claim:
    """Leave a claim open where the group that would be above has collapsed seeds; count those of both groups.

    lead: above 0 where `first` is the one that would be above; 0: neither may have collapsed.
    """
    first_count = sum(collapsed_seeds(first))
    second_count = sum(collapsed_seeds(second))
    if first_count == second_count == 0:
        return claim
    counts = []
    if len(first):
        counts.append(f"{first_count} of {len(first)}")
    if len(second):
        counts.append(f"{second_count} of {len(second)}")
    claim = replace(claim, evidence=f"{claim.evidence}; collapsed: {' against '.join(counts)} seeds")
    if lead == 0:
        is_open = True
    elif lead > 0:
        is_open = first_count > 0
    else:
        is_open = second_count > 0
    if is_open and claim.holds is not None:
        return replace(claim, holds=None, p=1.0)
    return claim


def note_cliff(claim: Claim, first: Runs, second: Runs, *, runs: Runs, lead: float) -> Claim:
    """Note of a decided claim that the lower group's rate stands beside a cliff.

    runs: all, which may hold the groups at other rates. lead: of the first group over the second.
    """
    lower = first
    if lead > 0:
        lower = second
    if claim.holds is None or not len(lower) or not best_stands_beside_cliff(lower, runs):
        return claim
    return replace(claim, evidence=f"{claim.evidence}; {BESIDE_CLIFF}", beside_cliff=True)


def combined_interval(runs: Runs, combine: Callable[..., Any], *choices: str) -> Interval | None:
    """Estimate a combination of groups' pass@1, [seeds, problems] each, and of the base's, [problems].

    combine: maps the groups' scores, in the order of the choices, and then the base's to one array. None where a
    group has no runs.
    """
    groups = [pick(runs, choice) for choice in choices]
    if not all(map(len, groups)):
        return None
    base = groups[0].values(stage="base")[0]
    return contrast(lambda *scores: combine(*scores, base), *groups)


# ---- numbers of each seed


def claim_by_seeds(text: str, values: Sequence[float], evidence: str, rule: Rule = above, limit: float = 0.0) -> Claim:
    """Decide by the interval over seeds of one number a seed."""
    claim = rule(text, over_seeds(values), limit)
    if not len(values):
        evidence = NO_RUNS
    return replace(claim, evidence=evidence, interval=None)


def number_above(
    text: str,
    first: tuple[str, str],
    second: tuple[str, str],
    number: Callable[[Record, Extra], float],
    *,
    form: str = "{:.2f}",
    factor: float = 1.0,
) -> Decision:
    """That a number of each run is above `factor` times that of the other group's run with the same seed.

    first, second: a label for the evidence and a choice. form: of each number; text after its first space stands once.
    """
    first_label, first_choice = first
    second_label, second_choice = second
    number_form, space, unit = form.partition(" ")

    def listed(numbers: Sequence[float]) -> str:
        return " ".join(map(number_form.format, numbers)) + space + unit

    def judge(runs: Runs, extra: Extra) -> Claim:
        first_numbers, second_numbers, leads = [], [], []
        for record, other_record in paired_records(pick(runs, first_choice), pick(runs, second_choice)):
            first_number = number(record, extra)
            second_number = number(other_record, extra)
            first_numbers.append(first_number)
            second_numbers.append(second_number)
            leads.append(first_number - factor * second_number)
        evidence = f"{first_label} {listed(first_numbers)}; {second_label} {listed(second_numbers)}"
        return claim_by_seeds(text, leads, evidence)

    return judge


def paired_records(first: Runs, second: Runs) -> list[tuple[Record, Record]]:
    """The runs of the seeds that both groups have, by seed."""
    seeds = sorted(set(first.seeds) & set(second.seeds))
    return list(zip(first.with_seeds(seeds), second.with_seeds(seeds), strict=True))


def describe_share(share: Interval) -> str:
    """A share of seeds as it is printed: 2 of 5 seeds, 40.0 [5.3, 85.3] %."""
    count = round(share.value * share.seeds)
    return f"{count} of {share.seeds} seeds, {share.percent()} %"
