"""FIGURES: every figure in the page's order, from the rows of figures.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from reproduce import claims, draw, groups, panels, rates, table2, tabular, variance
from reproduce.figure import Compared, Decides, Figure, Row, above, below, each, judged, others, pick, within
from reproduce.selection import Runs

MODULES = (groups, claims, draw, panels, rates, table2, tabular, variance)
TABLE = yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
SHARED = TABLE.pop("_")
RULES: dict[str, Any] = {"above": above, "below": below, "within": within}


def named(name: str) -> Any:
    """The function, or grouping, of this name."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def figure(name: str, row: dict[str, Any]) -> Figure:
    row = dict(row)
    experiments = row.pop("experiments", [name])
    if template := row.pop("variants", ""):
        chosen = row.pop("of", SHARED["variants"])
        more = [template.format(settings=SHARED["variants"][loss], name=loss) for loss in chosen]
        experiments = [experiments[0], *more, *experiments[1:]]
    metrics = [SHARED["metrics"].get(metric, [metric]) for metric in row.pop("metrics", ())]
    return Figure(
        name,
        row.pop("title"),
        row.pop("claim"),
        tuple(experiments),
        judge=judged(*map(decides, row.pop("claims"))),
        draw=drawing(row),
        levels=tuple(groups.LEVELS[level] for level in row.pop("levels", ["algorithm"])),
        wider=tuple(SHARED["wider"].get(each, each) for each in row.pop("wider", SHARED["wider"])),
        metrics=tuple(metric for each in metrics for metric in each),
        names=tuple(row.pop("names", ("pass@1", "maj", "invalid"))),
        note=row.pop("note", "").replace("{widths}", SHARED["widths"]),
        **{key: named(row.pop(key)) for key in ("extra", "own_table") if key in row},
        **row,
    )


def decides(row: Any) -> Decides:
    """A claim's rule: a function by its name, a row, numbers of seeds compared, or rows for each group of a split."""
    if isinstance(row, str):
        rule: Decides = named(row)
        return rule
    if "row" in row:
        words = dict(zip(("text", "group", "reference", "metric"), row["row"], strict=False))
        return Row(**words, limit=row.get("limit", 0.0), rule=RULES[row.get("rule", "above")])
    if "compare" in row:
        row = {**row, "number": named(row["number"])}
        return Compared(row.pop("compare"), **row)
    if "others" in row:
        return others(row["others"], named(row["of"]), row["ours"], ahead=row.get("ahead", False))
    return each(row["each"], named(row["each"]), *map(decides, row["claims"]))


def drawing(row: dict[str, Any]) -> Any:
    """A figure's drawing: its function, or its panels, those of each group first."""
    if "draw" in row:
        return named(row.pop("draw"))
    own, split, more = row.pop("panels"), named(row.pop("for_each", "everything")), row.pop("more", ())

    def panels_of(runs: Runs) -> list[draw.Panel]:
        repeated = [panel(one, split, key) for key in split(runs) for one in own]
        return [*repeated, *(panel(one) for one in more)]

    options: dict[str, Any] = {"rows": named(row.pop("rows", "by_model")), "columns": row.pop("columns", None)}
    return draw.grid(panels_of, **options, **row.pop("size", {}))


def panel(row: dict[str, Any], split: groups.Split = groups.everything, key: Any = "") -> draw.Panel:
    """A panel of one group of a split."""
    row = {"groups": "all_runs", "given": [], **row}
    kind, grouping = named(row.pop("kind")), named(row.pop("groups"))
    given = [named(value) if value in claims.NUMBERS else value for value in row.pop("given")]
    choice = row.pop("within", "all")
    title = row.pop("title", "{model}, {group}" if key else "{model}").replace("{group}", groups.name_of(key))
    return draw.panel(kind, grouping, *given, within=lambda runs: pick(split(runs)[key], choice), title=title, **row)


FIGURES = tuple(figure(name, row) for name, row in TABLE.items())
