"""Which of several groups of runs is the best, as far as all comparisons together allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from topr_exp.evaluation.intervals import FEWEST_SEEDS, below_another
from topr_exp.report.results import Runs

MOST = 5  # groups that a sentence names
TOGETHER = "at 95 % for all comparisons together"


def against_best(
    groups: Mapping[str, Runs], best: str, collapsed: Mapping[str, Sequence[bool]], name: str = "pass@1"
) -> str:
    """Say whether the group with the highest mean is above all others, else which ones are below another.

    Over the seeds that all groups with three or more have in common; groups with collapsed seeds, whose spread says
    little, are counted and not compared.
    groups: repetitions on the same test problems; collapsed: the seeds of each group, also of those not in `groups`.
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
        said = [f"It is above all others, {TOGETHER}."] * int(below[:, labels.index(best)].sum() == len(labels) - 1)
        if not said:
            kinds[f"Below another, {TOGETHER}"] = under
            kinds["Not told apart from it"] = [label for label in labels if label not in (*under, best)]
        kinds["Not compared"] = [label for label in collapsed if label not in known and label not in fallen]
    kinds["Collapsed"] = [f"{label} ({count} of {len(collapsed[label])} seeds)" for label, count in fallen.items()]
    for words, named in kinds.items():
        if named:
            rest = [f"{len(named) - MOST} more"] * (len(named) > MOST)
            said.append(f"{words}: {'; '.join([*named[:MOST], *rest])}.")
    return " ".join(said)
