"""The bench's picture: losses by conditions, coloured by the difference to TOPR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from reproduce.bench.conditions import REFERENCE
from reproduce.bench.scores import Place, Score, score_number
from reproduce.panels import PERCENT, empty_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

COLORS = "PuOr"  # orange below TOPR, purple above; to be told apart by colour-blind readers
LARGEST = 30.0  # points at which a colour is full
MISSING_COLOR = "0.9"
CELL_WIDTH, CELL_HEIGHT, LABELS_WIDTH, LABELS_HEIGHT = 0.6, 0.28, 3.6, 1.4  # inches


def draw_bench(scores: Mapping[Place, Score], rows: Sequence[str], conditions: Sequence[str]) -> Drawing:
    """A heat map with a number in each cell, and a mark after those that are undecided."""
    width = LABELS_WIDTH + CELL_WIDTH * len(conditions)
    height = LABELS_HEIGHT + CELL_HEIGHT * len(rows)
    drawing, [[ax]] = empty_grid(1, width=width, height=height)
    table = np.full((len(rows), len(conditions)), np.nan)
    for place, score in scores.items():
        i, j = rows.index(place.row), conditions.index(place.condition)
        points = points_above_topr(place.row, score)
        table[i, j] = points
        ax.text(
            j,
            i,
            cell_label(score),
            ha="center",
            va="center",
            fontsize=6,
            color=text_color(points),
        )
    ax.set_facecolor(MISSING_COLOR)
    image = ax.imshow(table, cmap=COLORS, vmin=-LARGEST, vmax=LARGEST, aspect="auto")
    drawing.colorbar(image, ax=ax)
    ax.set_title("pass@1 − TOPR's, points   (?: undecided, †: a collapsed seed)", fontsize=8, loc="left")
    ax.set_xticks(range(len(conditions)), conditions, rotation=45, ha="right", fontsize=7)
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    ax.grid(visible=False)
    return drawing


def points_above_topr(row: str, score: Score) -> float:
    """A cell's difference to TOPR, in points; not a number where there is none."""
    if score.difference is not None:
        return PERCENT * score.difference.value
    if row == REFERENCE and score.runs:
        return 0.0
    return float("nan")


def cell_label(score: Score) -> str:
    """The number of a cell with its marks."""
    label = score_number(score, digits=0)
    is_undecided = not (score.is_decided or score.is_equal)
    if score.difference is not None and is_undecided:
        label += "?"
    return label + "†" * score.collapsed_count


def text_color(points: float) -> str:
    """White on dark cells."""
    if abs(points) > 0.6 * LARGEST:
        return "white"
    return "black"
