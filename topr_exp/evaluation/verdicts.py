"""Verdicts as small integers, and what is counted from them alone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from topr_exp.types import VERDICTS

CORRECT, INCORRECT, INVALID = range(len(VERDICTS))  # the codes, in the order of VERDICTS


def encode(verdicts: Iterable[str]) -> NDArray[np.int8]:
    """The codes of verdicts by name: their index in VERDICTS."""
    code: dict[str, int] = {name: i for i, name in enumerate(VERDICTS)}
    return np.array([code[verdict] for verdict in verdicts], dtype=np.int8)


def shares(verdicts: NDArray[np.integer]) -> dict[str, float]:
    """The share of each verdict among all completions; verdicts: codes of any shape."""
    counts = np.bincount(verdicts.ravel(), minlength=len(VERDICTS))
    return {name: float(count / verdicts.size) for name, count in zip(VERDICTS, counts, strict=True)}


def correct_histogram(verdicts: NDArray[np.integer]) -> list[int]:
    """The number of problems with 0, 1, ... n correct completions (TOPR, Figure 4); verdicts: [P, n]."""
    return np.bincount((verdicts == CORRECT).sum(axis=1), minlength=verdicts.shape[1] + 1).tolist()
