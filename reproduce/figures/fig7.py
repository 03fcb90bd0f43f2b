"""TOPR, Figure 7: plain importance sampling by the share of negatives and the clipping of gradients."""

from functools import partial

import numpy as np

from reproduce.claims import Extra, ends_above, ends_below, judge_by, number_above
from reproduce.figure import Figure
from reproduce.groups import algorithms, by_choice
from reproduce.panels import Panel, curves, grid, metric
from reproduce.selection import Record, Runs, pick

DEFAULT = "compose.name=uniform"
LITTLE_CLIPPING = "compose.name=proportion optim.grad_clip=100.0"
clipping = by_choice(
    {
        "default": [DEFAULT],
        "60 % negatives, clip 0.1": ["compose.name=proportion optim.grad_clip=0.1"],
        "60 % negatives, clip 1": ["compose.name=proportion optim.grad_clip=1.0"],
        "60 % negatives, clip 100": [LITTLE_CLIPPING],
    }
)


def panels(model: str, runs: Runs, extra: Extra) -> list[Panel]:
    drawn_panels = []
    for clip, members in clipping(runs).items():
        draw_curves = partial(curves, groups=algorithms(members))
        drawn_panels.append(Panel(draw_curves, f"{model}, {clip}", legend={}, title_size=8))
    draw_norms = partial(metric, groups=algorithms(pick(runs, DEFAULT)), name="grad_norm")
    drawn_panels.append(Panel(draw_norms, "gradient norm, default", log_y=True))
    return drawn_panels


def norm_growth(record: Record, extra: Extra) -> float:
    """The gradient's norm in the last fifth of the updates, as a multiple of that in the first."""
    norms = record["metrics"]["grad_norm"]
    fifth = max(1, len(norms) // 5)
    first_mean, last_mean = np.mean(norms[:fifth]), np.mean(norms[-fifth:])
    return float(last_mean / first_mean)


FIGURE = Figure(
    name="fig7",
    title="Figure 7",
    claim="Plain importance sampling does as well as TOPR in the default setting although its gradients grow; with "
    "60 % negatives and little clipping it harms the model, and TOPR does not.",
    experiments=("fig1 algo=is,topr", "fig7"),
    draw=grid(panels, width=2.7, height=2.6),
    judge=judge_by(
        ends_above(
            "default: IS at most 3 points below TOPR",
            f"is {DEFAULT}",
            f"topr {DEFAULT}",
            limit=-0.03,
        ),
        number_above(
            "default: IS's gradient norm, last fifth against first, grows more than TOPR's",
            ("IS", f"is {DEFAULT}"),
            ("TOPR", f"topr {DEFAULT}"),
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
