"""FIGURES: every figure in the page's order, from the rows of figures.yaml."""

from functools import partial
from pathlib import Path
from typing import Any

import yaml

from reproduce import claims, draw, groups, panels, table2, tabular, variance
from reproduce.figure import Decides, Figure, above, below, compared, each, judged, others, row, within
from reproduce.selection import Runs, pick

MODULES = (claims, draw, panels, table2, tabular, variance)
TABLE = yaml.safe_load(Path(__file__).with_name("figures.yaml").read_text(encoding="utf-8"))
SHARED = TABLE.pop("_")
RULES: dict[str, Any] = {"above": above, "below": below, "within": within}


def named(name: str) -> Any:
    """The function of this name."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def figure(name: str, given: dict[str, Any]) -> Figure:
    row = dict(given)
    metrics = [SHARED["metrics"].get(metric, [metric]) for metric in row.pop("metrics", ())]
    return Figure(
        name,
        row.pop("title"),
        row.pop("claim"),
        tuple(row.pop("experiments", [name])),
        judge=judged(*map(decides, row.pop("claims"))),
        draw=drawing(row),
        levels=tuple(map(groups.grouping, row.pop("levels", ["algorithms"]))),
        wider=tuple(SHARED["wider"].get(each, each) for each in row.pop("wider", SHARED["wider"])),
        metrics=tuple(metric for each in metrics for metric in each),
        names=tuple(row.pop("names", ("pass@1", "maj", "invalid"))),
        **{key: named(row.pop(key)) for key in ("extra", "own_table") if key in row},
        **row,
    )


def decides(rule: Any) -> Decides:
    """A claim's rule: a function by its name, a row, numbers of seeds compared, or rows for each group of a split."""
    if isinstance(rule, str):
        found: Decides = named(rule)
        return found
    if "row" in rule:
        words = dict(zip(("text", "group", "reference", "metric"), rule["row"], strict=False))
        return partial(row, **words, limit=rule.get("limit", 0.0), rule=RULES[rule.get("rule", "above")])
    if "compare" in rule:
        return partial(compared, **{**rule, "number": named(rule["number"])})
    if "others" in rule:
        return others(rule["others"], groups.grouping(rule["of"]), rule["ours"], ahead=rule.get("ahead", False))
    return each(rule["each"], groups.grouping(rule["each"]), *map(decides, rule["claims"]))


def drawing(row: dict[str, Any]) -> Any:
    """A figure's drawing: its function, or its panels, those of each group first."""
    if "draw" in row:
        return named(row.pop("draw"))
    own, split, more = row.pop("panels"), groups.grouping(row.pop("for_each", "everything")), row.pop("more", ())

    def panels_of(runs: Runs) -> list[draw.Panel]:
        repeated = [panel(one, split, key) for key in split(runs) for one in own]
        return [*repeated, *(panel(one) for one in more)]

    rows = groups.grouping(row.pop("rows", "models"))
    return draw.grid(panels_of, rows=rows, columns=row.pop("columns", None), **row.pop("size", {}))


def panel(options: dict[str, Any], split: groups.Split = groups.everything, key: Any = "") -> draw.Panel:
    """A panel of one group of a split."""
    row = {"given": [], "within": "all", **options}
    kind, choice, names = named(row.pop("kind")), row.pop("within"), row.pop("groups", None)
    given = [named(value) if value in claims.NUMBERS else value for value in row.pop("given")]
    title = row.pop("title", "{model}, {group}" if key else "{model}").replace("{group}", groups.name_of(key))
    grouping = groups.grouping(names) if names is not None else lambda runs: runs
    return draw.panel(kind, grouping, *given, within=lambda runs: pick(split(runs)[key], choice), title=title, **row)


FIGURES = tuple(figure(name, row) for name, row in TABLE.items())
