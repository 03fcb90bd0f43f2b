"""Table printed at the end of a verifier's run or evaluation."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "invalid": "invalid",
    "weighted_sc": "weighted SC",
}
WIDTH = 22


def run_table(base: dict[str, Any], final: dict[str, Any]) -> list[str]:
    """The table of a run from its figures before and after training."""
    changes = {
        "trained - base": final["weighted_sc - base"],
        "trained - none": final["weighted_sc - maj"],
        "base - none": base["weighted_sc - maj"],
    }
    paired = "; ".join(f"{name} {cell(value)}" for name, value in changes.items())
    return [*rows({"base": base, "trained": final}), f"weighted SC, paired: {paired}", note(base)]


def evaluation_table(figures: dict[str, Any]) -> str:
    """The table of one model."""
    paired = f"weighted SC, paired: model - none {cell(figures['weighted_sc - maj'])}"
    return "\n".join([*rows({"model": figures}), paired, note(figures)])


def rows(verifiers: dict[str, dict[str, Any]]) -> list[str]:
    """Some verifiers of the same solutions between none and one that is always right."""
    k, first = next((figures["solutions"], figures) for figures in verifiers.values())
    lines = [f"{'%':<18}" + "".join(f"{title:>{WIDTH}}" for title in COLUMNS.values())]
    ends = {f"none (maj@{k})": {"weighted_sc": first["maj"]}}, {f"oracle (pass@{k})": {"weighted_sc": first["oracle"]}}
    for name, row in {**ends[0], **verifiers, **ends[1]}.items():
        lines.append(f"{name:<18}" + "".join(f"{cell(row.get(column)):>{WIDTH}}" for column in COLUMNS))
    return lines


def note(figures: dict[str, Any]) -> str:
    """Caption of the table."""
    return (
        f"[ ]: 95 %, bootstrap over {figures['problems']} problems; {figures['solutions']} solutions each, "
        f"{100 * figures['solved']['value']:.1f} % of them correct; {figures['verifications']} verifications a solution"
    )


def cell(figure: dict[str, float | None] | None) -> str:
    """A figure in per cent with its interval."""
    if figure is None or figure["value"] is None:
        return "–"
    value, low, high = f"{100 * figure['value']:.1f}", figure["low"], figure["high"]
    return value if low is None or high is None else f"{value} [{100 * low:.1f}, {100 * high:.1f}]"
