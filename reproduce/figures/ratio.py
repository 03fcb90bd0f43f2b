"""Beyond the papers: the ratio of the whole completion, of each token, and its geometric mean."""

from functools import partial

from reproduce.claims import Decision, Extra, ends_above, for_each, judge_by
from reproduce.figure import BOTH_BASES, Figure
from reproduce.groups import RATE, algorithms, name_of, rates, ratios
from reproduce.panels import Panel, against, grid
from reproduce.selection import Runs

SEQUENCE, TOKEN, GEOMETRIC = "algo.ratio=sequence", "algo.ratio=token", "algo.ratio=geometric"
BEST = f"best {RATE}"


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    labels = {"xlabel": "learning rate"}
    panels_of_algorithms = []
    for name, members in algorithms(runs).items():
        by_rate = partial(against, groups=ratios(members), key=RATE)
        title = f"{model}, {name_of(name)}"
        panels_of_algorithms.append(Panel(by_rate, title, base=members, legend={}, labels=labels))
    return panels_of_algorithms


def completion_is_best(algorithm: str) -> list[Decision]:
    return [
        ends_above(
            f"{algorithm}, each at its best rate of the grid: the completion's ratio ends above each token's",
            f"{BEST} {SEQUENCE}",
            f"{BEST} {TOKEN}",
        ),
        ends_above(
            f"{algorithm}, each at its best rate of the grid: the completion's ratio ends above the geometric mean",
            f"{BEST} {SEQUENCE}",
            f"{BEST} {GEOMETRIC}",
        ),
    ]


FIGURE = Figure(
    name="ratio",
    title="Beyond the papers: which ratio",
    claim="Other frameworks clip the ratio of each token, or the geometric mean over tokens: does it matter?",
    experiments=("ratio",),
    draw=grid(panels, width=3.2),
    judge=judge_by(for_each(algorithms, completion_is_best)),
    levels=(algorithms, ratios, rates),
    full_words=(BOTH_BASES,),
    only_full=True,
    note="The best rate of each ratio is chosen by the test problems that it is judged by: it flatters all.",
)
