"""Relatives of TOPR, losses that compare the completions of a problem, on the completions that TOPR is trained on."""

from functools import partial

from reproduce.claims import Extra, ends_above_others, judge_by
from reproduce.figure import Figure
from reproduce.groups import algorithms
from reproduce.panels import Panel, bars, curves, grid
from reproduce.selection import Runs


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    groups = algorithms(runs)
    return [
        Panel(partial(curves, groups=groups), model, legend={}),
        Panel(partial(bars, groups=groups)),
    ]


FIGURE = Figure(
    name="related",
    title="Relatives of TOPR",
    claim="No claim of the paper's: OPMD, AsymRE, REC and GRPO on the completions that TOPR is trained on.",
    experiments=("related",),
    draw=grid(panels),
    judge=judge_by(ends_above_others(lambda relative: f"TOPR ends above {relative}", algorithms, "topr")),
    only_full=True,
)
