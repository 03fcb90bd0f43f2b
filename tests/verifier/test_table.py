"""What a verifier's run prints: every figure in its own row and column, every difference the right way round."""

from __future__ import annotations

from typing import Any

from topr_exp.verifier.figures import evaluation_table, run_table

NAMES = ("accuracy", "balanced_accuracy", "invalid", "weighted_sc", "maj", "oracle", "solved")


def figures(start: float, **more: float) -> dict[str, Any]:
    """Figures in percent that are all different, from `start` on, with ends 2 below and 3 above."""
    values = {name: start + i for i, name in enumerate(NAMES)} | more
    sizes = {"problems": 40, "solutions": 8, "verifications": 4}
    return sizes | {
        name: {"value": value / 100, "low": (value - 2) / 100, "high": (value + 3) / 100}
        for name, value in values.items()
    }


def lines(table: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in table]


def test_tables() -> None:
    base = figures(10, **{"weighted_sc - maj": 1.5})
    final = figures(70, **{"weighted_sc - maj": 2.5, "weighted_sc - base": 4.5, "maj": 99.0, "oracle": 98.0})
    assert lines(run_table(base, final)) == [
        "% accuracy balanced invalid weighted SC",
        "none (maj@8) – – – 14.0 [12.0, 17.0]",
        "base 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]",
        "trained 70.0 [68.0, 73.0] 71.0 [69.0, 74.0] 72.0 [70.0, 75.0] 73.0 [71.0, 76.0]",
        "oracle (pass@8) – – – 15.0 [13.0, 18.0]",
        "weighted SC, paired: trained - base 4.5 [2.5, 7.5]; trained - none 2.5 [0.5, 5.5]; "
        "base - none 1.5 [-0.5, 4.5]",
        "[ ]: 95 %, bootstrap over 40 problems; 8 solutions each, 16.0 % of them correct; 4 verifications a solution",
    ]
    found = lines(evaluation_table(base).splitlines())
    assert found[2] == "model 10.0 [8.0, 13.0] 11.0 [9.0, 14.0] 12.0 [10.0, 15.0] 13.0 [11.0, 16.0]"
    assert found[4] == "weighted SC, paired: model - none 1.5 [-0.5, 4.5]"
