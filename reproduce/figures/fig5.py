"""TOPR, Figure 5: pass@1 by the effective proportion of positives, reached by sampling and by a baseline."""

from dataclasses import replace
from functools import partial
from typing import Any

from reproduce.claims import Claim, Extra, claim_above, ends_above, judge_by
from reproduce.figure import Figure
from reproduce.groups import EFFECTIVE, by_setting, effective
from reproduce.panels import Panel, against, grid
from reproduce.selection import Record, Runs, pick

shares_of_positives = by_setting("compose.positive_share", "p = {:.0%}")
PAPERS_BEST = (0.1, 0.2)  # effective proportions
BEST = f"best {EFFECTIVE}"


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    by_proportion = partial(against, groups=shares_of_positives(runs), key=EFFECTIVE)
    labels = {"xlabel": "effective proportion of positives p̃"}
    return [Panel(by_proportion, model, base=runs, legend={}, labels=labels)]


def best_proportions(runs: Runs, extra: Extra) -> list[Claim]:
    """The paper's proportions against the others, for each share of positives; and how far the best ones lie apart."""
    claims, peaks = [], []
    for label, group in shares_of_positives(runs).items():
        papers = Runs(record for record in group if proportion_of(record) in PAPERS_BEST)
        rivals = Runs(record for record in group if proportion_of(record) not in PAPERS_BEST)
        if not (papers and rivals):
            continue
        best_of_papers = pick(papers, BEST)
        best_rival = pick(rivals, BEST)
        text = f"{label}: the better of 10 and 20 % ends above the best other effective proportion"
        claim = claim_above(text, best_of_papers, best_rival)
        compared = f"{percent_of(best_of_papers)} against {percent_of(best_rival)}"
        claims.append(replace(claim, evidence=f"{compared}: {claim.evidence}"))
        peaks.append(pick(group, BEST))
    if len(peaks) == 2:
        first, second = peaks
        grid_of_proportions = list(runs.split(EFFECTIVE))
        first_index = grid_of_proportions.index(proportion_of(first[0]))
        second_index = grid_of_proportions.index(proportion_of(second[0]))
        text = "the best effective proportion hardly depends on p (highest means the same, or neighbours on the grid)"
        evidence = f"{percent_of(first)} and {percent_of(second)}"
        claims.append(Claim(text, abs(first_index - second_index) <= 1, evidence))
    return claims


def proportion_of(record: Record) -> Any:
    return record["settings"][EFFECTIVE]


def percent_of(runs: Runs) -> str:
    """The effective proportion of runs that have one."""
    return f"{100 * float(proportion_of(runs[0])):g} %"


FIGURE = Figure(
    name="fig5",
    title="Figure 5",
    claim="An effective proportion of positives of 10 to 20 % is best whether the training set holds 10 % or 50 % of "
    "them, and it is slightly better reached by sampling than by a baseline.",
    experiments=("fig5",),
    draw=grid(panels, columns=0),
    judge=judge_by(
        best_proportions,
        ends_above(
            "10 % by sampling beats 10 % by a baseline",
            f"compose.positive_share=0.1 {EFFECTIVE}=0.1",
            f"compose.positive_share=0.5 {EFFECTIVE}=0.1",
        ),
        ends_above(
            "50 % by sampling beats 50 % by a baseline",
            f"compose.positive_share=0.5 {EFFECTIVE}=0.5",
            f"compose.positive_share=0.1 {EFFECTIVE}=0.5",
        ),
    ),
    levels=(shares_of_positives, effective),
)
