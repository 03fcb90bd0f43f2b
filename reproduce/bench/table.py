"""The bench's table: pass@1 of each loss in each condition, as a difference to TOPR, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.bench.conditions import CONDITIONS, REFERENCE, ROWS
from reproduce.bench.picture import draw_bench
from reproduce.bench.scores import Place, Score, score_cells, score_number
from reproduce.files import links_from, plural, write_file
from reproduce.panels import PERCENT, project_style, save_picture

HEAD = """# The bench

pass@1 of each loss minus TOPR's, in points, paired by seed and problem; of TOPR itself pass@1 (%). **Bold**: the
95 % interval leaves out 0 and Holm's correction over the whole table lets that count; the others are undecided. =: the
same on every problem and seed. †: a seed that ended below half of the base's pass@1, or with a gradient that was not
finite. –: why is said below.

Each cell has its own learning rate, chosen by seeds 100 and 101 on validation problems; seeds 0, 1 and 2 are shown.
With int4 and noise the ratio is to the sampler's own probability (`mu=sampler`), else training scores μ.
`python -m reproduce bench algo=NAME` gives a loss its row, [your own](../losses.md#your-own-loss) too.

![Differences to TOPR by loss and condition](bench.png)
"""


def write_bench(stored: Mapping[str, Any], out: Path) -> Path:
    """Write the table and the picture of a bench's records; returns the table's file."""
    scores = score_cells(stored)
    rows = ordered_rows(scores)
    conditions = [condition.name for condition in CONDITIONS]
    lines = [HEAD, *missing_reference(scores), *table_lines(scores, rows, stored["rows"])]
    lines += ["", "<details>", "<summary>Each cell</summary>", "", *list_cells(scores, rows), "", "</details>"]
    path = out / "bench.md"
    write_file(path, links_from(out, "\n".join(lines) + "\n"))
    with project_style():
        save_picture(draw_bench(scores, rows, conditions), out / "bench.png")
    return path


def table_lines(scores: Mapping[Place, Score], rows: Sequence[str], notes: Mapping[str, Any]) -> list[str]:
    """A row a loss, a column a condition, and the minutes that the row took."""
    names = [condition.name for condition in CONDITIONS]
    titles = ["", *names, "minutes"]
    lines = [f"|{' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        cells = [cell_text(scores.get(Place(row, name))) for name in names]
        minutes = notes.get(row, {}).get("seconds", 0) / 60
        lines.append(f"| `{row}` | {' | '.join(cells)} | {minutes:.0f} |")
    return lines


def ordered_rows(scores: Mapping[Place, Score]) -> list[str]:
    """The rows that have cells: the package's in its order, then a user's own."""
    present = {place.row for place in scores}
    shipped = [row.name for row in ROWS if row.name in present]
    return [*shipped, *sorted(present - set(shipped))]


def missing_reference(scores: Mapping[Place, Score]) -> list[str]:
    if any(place.row == REFERENCE and score.runs for place, score in scores.items()):
        return []
    command = f"python -m reproduce bench algo={REFERENCE}"
    return [f"**TOPR's row is missing**, so no differences: `{command}` with the same `--out`.", ""]


def cell_text(score: Score | None) -> str:
    """A cell of the table; empty where nothing was computed."""
    if score is None:
        return ""
    text = score_number(score, digits=1)
    if score.is_decided:
        text = f"**{text}**"
    return text + "†" * score.collapsed_count


def list_cells(scores: Mapping[Place, Score], rows: Sequence[str]) -> list[str]:
    """A line a cell: rate, pass@1 of each seed, the difference with its interval; or why there is no number."""
    lines = []
    for row in rows:
        for condition in CONDITIONS:
            score = scores.get(Place(row, condition.name))
            if score is not None:
                lines.append(f"- `{row}`, {condition.name}: {describe_score(score)}")
    return lines


def describe_score(score: Score) -> str:
    if score.note:
        return score.note
    parts = [f"rate {score.rate:g}"]
    if score.runs:
        seed_texts = [f"{PERCENT * mean:.1f}" for mean in score.runs.seed_means()]
        parts.append(f"pass@1 {' '.join(seed_texts)} %")
    if score.claim is not None:
        parts.append(f"{score.claim.evidence}, *{score.claim.word}*")
    if score.collapsed_count:
        parts.append(f"{plural(score.collapsed_count, 'seed')} collapsed")
    return "; ".join(parts)
