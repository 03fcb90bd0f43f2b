"""Reports of runs; the names below are public, for notebooks and for figures of your own (docs/python.md)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topr_exp.evaluation.intervals import Interval, clopper_pearson, crossed_interval, t_interval
    from topr_exp.report.drawing import MARKERS, STYLE, plain_number, series_style
    from topr_exp.report.grouping import read_groups
    from topr_exp.report.plots import band
    from topr_exp.report.ranking import against_best, highest_mean, leaders
    from topr_exp.report.reader import Run, read_run
    from topr_exp.report.repetitions import Repetitions, contrast, difference, gain, problem_results, problem_shares
    from topr_exp.verifier.figures import Tally, summarise

MODULES = {
    "topr_exp.evaluation.intervals": ("Interval", "clopper_pearson", "crossed_interval", "t_interval"),
    "topr_exp.report.drawing": ("MARKERS", "STYLE", "plain_number", "series_style"),
    "topr_exp.report.grouping": ("read_groups",),
    "topr_exp.report.plots": ("band",),
    "topr_exp.report.ranking": ("against_best", "highest_mean", "leaders"),
    "topr_exp.report.reader": ("Run", "read_run"),
    "topr_exp.report.repetitions": (
        "Repetitions", "contrast", "difference", "gain", "problem_results", "problem_shares",
    ),
    "topr_exp.verifier.figures": ("Tally", "summarise"),
}  # fmt: skip
__all__ = [
    "MARKERS", "STYLE", "Interval", "Repetitions", "Run", "Tally", "against_best", "band", "clopper_pearson",
    "contrast", "crossed_interval", "difference", "gain", "highest_mean", "leaders", "plain_number", "problem_results",
    "problem_shares", "read_groups", "read_run", "series_style", "summarise", "t_interval",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for: pandas and matplotlib take a second."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")


def __dir__() -> list[str]:
    """List the public names, loaded or not, for the completion of a prompt."""
    return sorted({*globals(), *__all__})
