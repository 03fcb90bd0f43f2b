"""Graded completions that a training set is composed from, sampled and imported ones merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.grading.verdicts import Verdicts
from topr_exp.sampling.imported import index_in_group
from topr_exp.sampling.rollouts import Completions, Rollouts
from topr_exp.types import Problem


@dataclass(frozen=True)
class CompletionPool:
    """Completions with their verdicts; `imported`: [rows] made elsewhere, None where all are from one place."""

    rollouts: Rollouts
    problems: Sequence[Problem]
    verdicts: Verdicts
    imported: NDArray[np.bool_] | None = None


def merge_sources(parts: Sequence[Completions], verdicts: Sequence[Verdicts]) -> CompletionPool:
    """The parts in their order, sampled completions first; those to one prompt are one group, wherever they are from.

    A problem is known by its prompt's tokens and its gold: other ones may have its question.
    """
    if len(parts) == 1:
        return CompletionPool(parts[0].rollouts, parts[0].questions.problems, verdicts[0])
    import pyarrow as pa

    places: dict[tuple[bytes, str], int] = {}
    prompts: list[NDArray[np.int32]] = []
    problems: list[Problem] = []
    index = []
    for part in parts:
        own = []
        for prompt, problem in zip(part.questions.prompts, part.questions.problems, strict=True):
            place = places.setdefault((np.asarray(prompt, np.int32).tobytes(), problem.answer), len(prompts))
            if place == len(prompts):
                prompts.append(prompt)
                problems.append(problem)
            own.append(place)
        index.append(np.array(own, dtype=np.int32)[part.rollouts.problem])
    problem_of = np.concatenate(index)
    names = ("tokens", "text", "finish")
    columns = pa.concat_tables([part.rollouts.columns.select(names) for part in parts])
    columns = columns.append_column("problem", pa.array(problem_of, pa.int32()))
    columns = columns.append_column("sample", pa.array(index_in_group(problem_of), pa.int32()))
    sampled = replace(parts[0].rollouts, name="", columns=columns, prompts=prompts, bounds=[0, len(columns)])
    origin = np.repeat(np.arange(len(parts)), [part.rollouts.rows for part in parts])
    return CompletionPool(
        sampled, problems, Verdicts("", pa.concat_tables([each.columns for each in verdicts])), origin > 0
    )


def concat_rows(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The rows of all parts, in the order of `merge_sources`."""
    return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))
