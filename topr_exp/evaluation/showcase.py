"""`completions.jsonl`: some completions of a run for people to read, a bounded number for each verdict.

Of every evaluation, and of what each iteration was offered to train on. `logp` is a completion's log-probability when
it was drawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.grading.verdicts import Verdicts
from topr_exp.runtime import distributed
from topr_exp.runtime.files import read_lines, write_text
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.types import VERDICTS, Problem

PER_VERDICT = 12
FILE = "completions.jsonl"


def show_completions(
    folder: Path,
    split: str,
    iteration: int,
    rollouts: Rollouts,
    verdicts: Verdicts,
    problems: Sequence[Problem],
    examples: NDArray[np.int64] | None = None,
) -> None:
    """Write completions into the folder's file, in place of those that an earlier attempt put there.

    split: test or train. examples: the rows that were trained on.
    """
    entries = sample_entries(split, iteration, rollouts, verdicts, problems)
    if examples is not None:
        entries = [entry | {"trained_on": bool((examples == entry["row"]).any())} for entry in entries]
    path = folder / FILE
    kept = [each for each in read_lines(path)[0] if (each.get("set"), each.get("iteration")) != (split, iteration)]
    if distributed.is_main_process():
        write_text(path, "".join(json.dumps(entry) + "\n" for entry in [*kept, *entries]))


def sample_entries(
    split: str, iteration: int, rollouts: Rollouts, verdicts: Verdicts, problems: Sequence[Problem]
) -> list[dict[str, Any]]:
    """Up to PER_VERDICT completions of each verdict, evenly spread over the rows."""
    entries, columns = [], rollouts.columns
    for code, verdict in enumerate(VERDICTS):
        rows = np.flatnonzero(verdicts.codes == code)
        for row in rows[np.unique(np.linspace(0, len(rows) - 1, PER_VERDICT).round().astype(int))] if len(rows) else []:
            problem = problems[int(rollouts.problem[row])]
            drawn = columns["sampler_logp"][int(row)].as_py() if "sampler_logp" in columns.column_names else None
            entries.append({
                "set": split, "iteration": iteration, "row": int(row), "problem": problem.id,
                "sample": int(rollouts.sample[row]), "level": problem.level, "subject": problem.subject,
                "question": problem.question, "gold": problem.answer,
                "completion": rollouts.texts(int(row), int(row) + 1)[0], "verdict": verdict,
                "answer": verdicts.columns["answer"][int(row)].as_py(), "tokens": len(rollouts.tokens[int(row)]),
                "truncated": bool(rollouts.truncated[row]), "logp": sum(drawn) if drawn else None,
            })  # fmt: skip
    return entries
