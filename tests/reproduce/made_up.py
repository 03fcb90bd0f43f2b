"""Records of runs that nobody ran, and figures by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reproduce.figure import Figure
from reproduce.jobs import Request
from reproduce.registry import FIGURES
from topr_exp.report.results import packed


def request_for(*figures: Figure, full: bool = False, overrides: tuple[str, ...] = ()) -> Request:
    return Request(figures, full, overrides, jobs=2, recorded=False, out=Path("nowhere"))


def named(name: str) -> Figure:
    return next(figure for figure in FIGURES if figure.name == name)


def made_up(algo: str, seed: int, correct: np.ndarray, **settings: Any) -> dict[str, Any]:
    """A record with so many correct completions of 8 for each problem."""

    def results(correct: np.ndarray, invalid: np.ndarray, maj: np.ndarray) -> dict[str, Any]:
        kinds = {"correct": correct, "invalid": invalid, "maj": maj}
        return {"n": 8, "k": 8, "of_problems": {name: packed(each) for name, each in kinds.items()}}

    base = results(*(np.full(len(correct), count) for count in (2, 1, 250)))
    final = results(correct, 8 - correct, 1000 * (correct > 4))
    names = {"algo.name": algo, "data.name": "gsm8k", "model.name": "tiny", "seed": seed, **settings}
    return {"run": f"{algo}{seed}", "settings": names, "environment": {"git_commit": "abc"}, "base": base,
            "final": final, "metrics": {"step": [1]}, "summary": {"n_train": 40}}  # fmt: skip
