"""Beyond the papers: TOPR and TIS over the effective proportion of positives and the learning rate."""

from functools import partial

import numpy as np

from reproduce.claims import Claim, Extra, above, claim_above, judge_by, open_if_collapsed
from reproduce.figure import BOTH_BASES, Figure
from reproduce.groups import EFFECTIVE, RATE, algorithms, effective, name_of, rates
from reproduce.panels import Panel, cells, grid
from reproduce.selection import Runs, join, pick
from topr_exp.report import contrast


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    panels_of_algorithms = []
    for name, members in algorithms(runs).items():
        draw_cells = partial(cells, runs=members, key=EFFECTIVE, form="{:g} %", scale=100)
        title = f"{model}, {name_of(name)}: pass@1 (%)"
        panels_of_algorithms.append(Panel(draw_cells, title, labels={"xlabel": "p̃"}))
    return panels_of_algorithms


def topr_over_tis(runs: Runs, extra: Extra) -> list[Claim]:
    """Which of the two holds its level where the learning rate or p̃ is not the best one."""
    topr_cells, tis_cells = [], []
    for rate in runs.split(RATE):
        for proportion in runs.split(EFFECTIVE):
            cell = runs.where({RATE: rate, EFFECTIVE: proportion})
            topr, tis = pick(cell, "topr"), pick(cell, "tis")
            if topr and tis:
                topr_cells.append(topr)
                tis_cells.append(tis)
    count = len(topr_cells)
    if not count:
        return []

    def mean_lead(*scores: np.ndarray) -> np.ndarray:
        """[seeds, problems] TOPR's scores minus those of TIS, averaged over the cells."""
        total = sum(topr - tis for topr, tis in zip(scores[:count], scores[count:], strict=True))
        return np.asarray(total) / count

    interval = contrast(mean_lead, *topr_cells, *tis_cells)
    lead = 0.0
    if interval is not None:
        lead = interval.value
    averaged = above("averaged over the map TOPR is above TIS", interval)
    averaged = open_if_collapsed(averaged, join(topr_cells), join(tis_cells), lead=lead)
    worst_topr = min(topr_cells, key=Runs.mean)
    worst_tis = min(tis_cells, key=Runs.mean)
    return [averaged, claim_above("the worst cell of TOPR is above the worst of TIS", worst_topr, worst_tis)]


FIGURE = Figure(
    name="map",
    title="Beyond the papers: p̃ and the learning rate",
    claim="Does TOPR, or TIS, need a well-chosen learning rate and effective proportion?",
    experiments=("map",),
    draw=grid(panels),
    judge=judge_by(topr_over_tis),
    levels=(algorithms, rates, effective),
    full_words=(BOTH_BASES,),
    only_full=True,
)
