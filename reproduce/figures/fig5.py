"""TOPR, Figure 5: pass@1 by the effective proportion of positives, reached by sampling and by a baseline."""

from dataclasses import replace
from functools import partial

from reproduce.claims import Claim, Extra, decide, ends_above, is_above
from reproduce.figure import Figure
from reproduce.groups import EFFECTIVE, by_setting, effective
from reproduce.panels import Panel, against, grid
from reproduce.selection import Runs, pick

shares_of_positives = by_setting("compose.positive_share", "p = {:.0%}")
PAPERS_BEST = (0.1, 0.2)  # effective proportions


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    by_proportion = partial(against, groups=shares_of_positives(runs), key=EFFECTIVE)
    return [Panel(by_proportion, model, base=runs, legend={}, labels={"xlabel": "effective proportion of positives p̃"})]


def best_proportions(runs: Runs, extra: Extra) -> list[Claim]:
    """The paper's proportions against the others, for each share of positives; and how far the best ones lie apart."""
    claims, peaks = [], []
    for label, group in shares_of_positives(runs).items():
        papers = Runs(record for record in group if record["settings"][EFFECTIVE] in PAPERS_BEST)
        rivals = Runs(record for record in group if record["settings"][EFFECTIVE] not in PAPERS_BEST)
        if not (papers and rivals):
            continue
        best_of_papers, best_rival, peak = (pick(part, f"best {EFFECTIVE}") for part in (papers, rivals, group))
        text = f"{label}: the better of 10 and 20 % ends above the best other effective proportion"
        claim = is_above(text, best_of_papers, best_rival)
        compared = f"{proportion(best_of_papers)} against {proportion(best_rival)}"
        claims.append(replace(claim, evidence=f"{compared}: {claim.evidence}"))
        peaks.append(peak)
    if len(peaks) == 2:
        text = "the best effective proportion hardly depends on p (highest means the same, or neighbours on the grid)"
        tried = list(runs.split(EFFECTIVE))
        first, second = (tried.index(peak[0]["settings"][EFFECTIVE]) for peak in peaks)
        claims.append(Claim(text, abs(first - second) <= 1, " and ".join(map(proportion, peaks))))
    return claims


def proportion(runs: Runs) -> str:
    return f"{100 * float(runs[0]['settings'][EFFECTIVE]):g} %"


FIGURE = Figure(
    name="fig5",
    title="Figure 5",
    claim="An effective proportion of positives of 10 to 20 % is best whether the training set holds 10 % or 50 % of "
    "them, and it is slightly better reached by sampling than by a baseline.",
    experiments=("fig5",),
    draw=grid(panels, columns=0),
    judge=decide(
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
