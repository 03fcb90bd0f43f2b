"""TOPR, Figure 7: plain importance sampling by the share of negatives and the clipping of gradients."""

from functools import partial

import numpy as np

from reproduce.claims import Extra, decide, ends_above, ends_below, number_above
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_choice
from reproduce.panels import Panel, curves, grid, metric
from reproduce.selection import Record, Runs, pick

clipping = by_choice({
    "default": ["compose.name=uniform"],
    "60 % negatives, clip 0.1": ["compose.name=proportion optim.grad_clip=0.1"],
    "60 % negatives, clip 1": ["compose.name=proportion optim.grad_clip=1.0"],
    "60 % negatives, clip 100": ["compose.name=proportion optim.grad_clip=100.0"],
})  # fmt: skip
LITTLE_CLIPPING = "compose.name=proportion optim.grad_clip=100.0"


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    panels_of_clips = []
    for clip, members in clipping(runs).items():
        draw_curves = partial(curves, groups=algorithms(members))
        panels_of_clips.append(Panel(draw_curves, f"{model}, {clip}", legend={}, title_size=8))
    default = pick(runs, "compose.name=uniform")
    norms = Panel(partial(metric, groups=algorithms(default), name="grad_norm"), "gradient norm, default", log_y=True)
    return [*panels_of_clips, norms]


def norm_growth(record: Record, extra: Extra) -> float:
    """The gradient's norm in the last fifth of the updates, as a multiple of that in the first."""
    norms = record["metrics"]["grad_norm"]
    fifth = max(1, len(norms) // 5)
    return float(np.mean(norms[-fifth:]) / np.mean(norms[:fifth]))


FIGURE = Figure(
    name="fig7",
    title="Figure 7",
    claim="Plain importance sampling does as well as TOPR in the default setting although its gradients grow; with "
    "60 % negatives and little clipping it harms the model, and TOPR does not.",
    experiments=("fig1 algo=is,topr", "fig7"),
    draw=grid(panels, width=2.7, height=2.6),
    judge=decide(
        ends_above(
            "default: IS at most 3 points below TOPR",
            "is compose.name=uniform",
            "topr compose.name=uniform",
            limit=-0.03,
        ),
        number_above(
            "default: IS's gradient norm, last fifth against first, grows more than TOPR's",
            ("IS", "is compose.name=uniform"),
            ("TOPR", "topr compose.name=uniform"),
            norm_growth,
        ),
        ends_below("60 % negatives, clip 100: IS ends below the base", f"is {LITTLE_CLIPPING}"),
        ends_above("60 % negatives, clip 100: TOPR ends above the base", f"topr {LITTLE_CLIPPING}"),
    ),
    levels=(clipping, algorithms),
    metrics=("grad_norm",),
    note="The paper's clips are 1 and 100; norms of these models hardly ever reach 1, so that those two are nearly one "
    "setting here and 0.1 stands for little room. Adam, which these runs use, rescales gradients, so that a clip "
    "matters less than with Adafactor.",
)
