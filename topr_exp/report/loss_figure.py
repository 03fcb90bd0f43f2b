"""A picture of losses: the weight of correct and incorrect completions by Δ, equal losses in one panel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.report.loss_weights import weights
from topr_exp.runtime.files import disk_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from topr_exp.algorithms.base import Loss

Values = NDArray[np.float64]

LENGTHS = (1, 10, 100)  # tokens of a completion, over which weights are compared
DRAWN_LENGTH = 10  # tokens of the completions whose weights are drawn
COLUMNS = 5
POINTS = 201  # of a line
COMPARED_POINTS = 31  # of a line that is only compared
WEIGHT_RANGE = (-0.75, 3.25)  # of a panel
MARGIN = 0.4  # between a name and the panel's edge, in weights


@dataclass(frozen=True)
class Axis:
    """An x axis of the picture, from −reach to reach: the Δ of a completion, or of each of its tokens."""

    title: str
    reach: float
    by_token: bool = False

    def positions(self, count: int) -> Values:
        return np.linspace(-self.reach, self.reach, count)


AXES = (  # the last one for losses whose weights depend on length by either of the others
    Axis("Δ of a completion of any length", 5.0),
    Axis("Δ of each token, in a completion of any length", 1.5, by_token=True),
    Axis(f"Δ of a completion of {DRAWN_LENGTH} tokens", 5.0),
)


@dataclass(frozen=True)
class Panel:
    """Losses whose weights are the same."""

    names: list[str]
    curves: Values  # [2, points] of correct and of incorrect completions


def panels(losses: Mapping[str, Loss]) -> dict[Axis, list[Panel]]:
    """Map each x axis to its panels: losses by what their weights depend on, those of equal weights together."""
    panels_by_axis: dict[Axis, list[Panel]] = {}
    for name, loss in losses.items():
        axis = axis_of(loss)
        curves = curves_of(loss, DRAWN_LENGTH, axis, POINTS)
        axis_panels = panels_by_axis.setdefault(axis, [])
        panel = panel_with(curves, axis_panels)
        if panel is not None:
            panel.names.append(name)
        else:
            axis_panels.append(Panel([name], curves))
    return {axis: panels_by_axis[axis] for axis in AXES if axis in panels_by_axis}


def panel_with(curves: Values, axis_panels: list[Panel]) -> Panel | None:
    for panel in axis_panels:
        if are_equal(panel.curves, curves):
            return panel
    return None


def axis_of(loss: Loss) -> Axis:
    """The first axis along which a completion's weight is the same at every length, else the last axis."""
    for axis in AXES[:-1]:
        shortest, *longer = [curves_of(loss, length, axis, COMPARED_POINTS) for length in LENGTHS]
        is_same_at_every_length = all(are_equal(shortest, curves) for curves in longer)
        if is_same_at_every_length:
            return axis
    return AXES[-1]


def curves_of(loss: Loss, length: int, axis: Axis, points: int) -> Values:
    """[2, points] weights of correct and incorrect completions along an axis."""
    positions = axis.positions(points)
    if axis.by_token:
        positions = positions * length  # Δ of the whole completion
    deltas = positions.tolist()
    correct_weights = weights(loss, is_correct=True, length=length, deltas=deltas)
    incorrect_weights = weights(loss, is_correct=False, length=length, deltas=deltas)
    return np.array([correct_weights, incorrect_weights])


def are_equal(first_curves: Values, second_curves: Values) -> bool:
    """Check that weights agree wherever a panel shows them."""
    first_visible = np.clip(first_curves, *WEIGHT_RANGE)
    second_visible = np.clip(second_curves, *WEIGHT_RANGE)
    return np.allclose(first_visible, second_visible, atol=0.001)


def draw(losses: Mapping[str, Loss], path: Path) -> None:
    """Write a picture of weights by log-ratio: a panel for losses of equal weights, a block for each x axis."""
    from matplotlib.figure import Figure

    blocks = panels(losses)
    widest_block = max(map(len, blocks.values()))
    columns = min(COLUMNS, widest_block)
    row_counts = {axis: math.ceil(len(block) / columns) for axis, block in blocks.items()}
    heights = list(row_counts.values())
    width = 2.2 * columns
    height = 2.0 * sum(heights)
    figure = Figure(figsize=(width, height), layout="constrained")
    subfigures = figure.subfigures(len(blocks), height_ratios=heights, squeeze=False).ravel()
    for axis, subfigure in zip(blocks, subfigures, strict=True):
        subfigure.supxlabel(axis.title, fontsize=10)
        subfigure.supylabel("weight", fontsize=10)
        grid = subfigure.subplots(row_counts[axis], columns, squeeze=False, sharex=True, sharey=True)
        draw_block(grid, blocks[axis], axis.positions(POINTS))
    with disk_errors(f"write {path}"):
        figure.savefig(path, dpi=130)


def draw_block(grid: NDArray[Any], block: list[Panel], x: Values) -> None:
    """Draw panels into the first cells of a grid [rows, columns] of axes, and hide the others."""
    columns = grid.shape[1]
    cells = list(grid.ravel())
    drawn_cells = cells[: len(block)]
    for cell, panel in zip(drawn_cells, block, strict=True):
        draw_panel(cell, panel, x)
    for lowest_cell in drawn_cells[-columns:]:  # of each column
        lowest_cell.tick_params(labelbottom=True)
    for empty_cell in cells[len(block) :]:
        empty_cell.set_axis_off()


def draw_panel(cell: Axes, panel: Panel, x: Values) -> None:
    """Draw the lines of a panel, with a name beside each."""
    title_lines = wrap(", ".join(panel.names), 26)
    cell.set_title("\n".join(title_lines), fontsize=10)
    cell.set_ylim(*WEIGHT_RANGE)
    cell.tick_params(labelsize=8)
    cell.grid(color="0.92")
    correct, incorrect = panel.curves
    if are_equal(correct, incorrect):
        draw_line(cell, x, correct, name="both", color="black")
    else:
        draw_line(cell, x, correct, name="pos", color="#0072B2", neighbour=incorrect)
        draw_line(cell, x, incorrect, name="neg", color="#D55E00", neighbour=correct)


def draw_line(cell: Axes, x: Values, y: Values, *, name: str, color: str, neighbour: Values | None = None) -> None:
    """Draw a line; its name stands where it is farthest from its neighbour, on the side turned away from that one."""
    cell.plot(x, y, color=color, linewidth=1.6)
    index = POINTS // 4  # of the point at which the name stands
    is_above = True
    if neighbour is not None:
        index = index_of_widest_gap(x, y, neighbour)
        is_above = bool(y[index] > neighbour[index])
    side = 1 if is_above else -1
    rise = y[index + 5] - y[index - 5]
    alignment = "center"  # of the name; on a slope it stands where the line leads away from it
    if side * rise > 0.1:
        alignment = "right"
    elif side * rise < -0.1:
        alignment = "left"
    cell.annotate(
        name,
        xy=(x[index], y[index]),
        xytext=(0, 3 * side),
        textcoords="offset points",
        ha=alignment,
        va="bottom" if is_above else "top",
        color=color,
        fontsize=9,
    )


def index_of_widest_gap(x: Values, y: Values, neighbour: Values) -> int:
    """The index of the point at which a line is farthest from its neighbour, where a name has room."""
    lowest, highest = WEIGHT_RANGE
    has_room_below = y > lowest + MARGIN
    has_room_above = y < highest - MARGIN
    has_room_aside = np.abs(x) < 0.75 * x[-1]
    has_room = has_room_below & has_room_above & has_room_aside
    gap = np.minimum(np.abs(y - neighbour), 1.5)  # wider ones are as good: the first of them is taken
    return int(np.where(has_room, gap, -1.0).argmax())
