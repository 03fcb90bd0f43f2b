"""Completions of a run for people to read: a bounded number for each verdict, of every evaluation and training set."""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.runtime import distributed
from topr_exp.runtime.files import write_text
from topr_exp.runtime.json_files import read_lines
from topr_exp.sampling.completions import Completions
from topr_exp.types import VERDICTS

PER_VERDICT = 12


def show_completions(
    folder: Path, split: str, iteration: int, completions: Completions, examples: NDArray[np.int64] | None = None
) -> None:
    """Write up to PER_VERDICT completions of each verdict into completions.jsonl, replacing an earlier attempt's.

    `logp` is the log-probability when it was sampled. split: test or train. examples: [N, 1] or [N, 2] rows of a
    training set that were trained on.
    """
    path = folder / "completions.jsonl"
    entries = entries_of_other_sets(path, split, iteration)
    for code in range(len(VERDICTS)):
        rows_of_verdict = np.flatnonzero(completions.verdicts == code)
        for row in spread_evenly(rows_of_verdict):
            entry = {"set": split, "iteration": iteration}
            entry |= describe_completion(completions, row)
            if examples is not None:
                entry["trained_on"] = row in examples
            entries.append(entry)
    entries.sort(key=itemgetter("iteration", "set"))  # the same file in whatever order of writing
    if distributed.is_main_process():
        lines = [json.dumps(entry) + "\n" for entry in entries]
        write_text(path, "".join(lines))


def entries_of_other_sets(path: Path, split: str, iteration: int) -> list[dict[str, Any]]:
    """Read the entries of other splits and iterations; a malformed one is left out."""
    entries, _ = read_lines(path)
    entries_of_others = []
    for entry in entries:
        entry_split = entry.get("set")
        entry_iteration = entry.get("iteration")
        if not isinstance(entry_split, str) or not isinstance(entry_iteration, int):
            continue
        if (entry_split, entry_iteration) != (split, iteration):
            entries_of_others.append(entry)
    return entries_of_others


def spread_evenly(rows: NDArray[np.int64]) -> list[int]:
    """Choose at most PER_VERDICT of the rows, evenly spread."""
    if len(rows) > PER_VERDICT:
        positions = np.linspace(0, len(rows) - 1, PER_VERDICT).round()
        rows = rows[positions.astype(int)]
    return rows.tolist()


def describe_completion(completions: Completions, row: int) -> dict[str, Any]:
    """Describe a completion with its problem, verdict and log-probability, ready for JSON."""
    problem = completions.problems[completions.problem_index[row]]
    logp = None
    if completions.has("sampler_logp"):
        logprobs = completions.table["sampler_logp"][row].as_py()
        if logprobs:  # neither null nor empty
            logp = sum(logprobs)
    return {
        "row": row,
        "problem": problem.id,
        "sample": int(completions.sample_index[row]),
        "level": problem.level,
        "subject": problem.subject,
        "question": problem.question,
        "gold": problem.answer,
        "completion": completions.table["text"][row].as_py(),
        "verdict": VERDICTS[completions.verdicts[row]],
        "answer": completions.table["answer"][row].as_py(),
        "tokens": len(completions.tokens[row]),
        "truncated": bool(completions.is_truncated[row]),
        "logp": logp,
    }
