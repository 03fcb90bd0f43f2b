"""`completions.jsonl`: some completions of a run for people to read, with their log-probabilities before and after.

A bounded number for each verdict: of every evaluation, and of what each iteration was offered to train on. `logp` maps
an iteration to log π(y|x) under the policy that it ended with (0: the base), completion tokens only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.composition.candidates import CompletionPool
from topr_exp.evaluation.evaluation import Evaluation
from topr_exp.grading.verdicts import Verdicts
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.runtime.files import read_lines, write_text
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.training.logprobs import log_probabilities
from topr_exp.types import VERDICTS, Problem

PER_VERDICT = 12
FILE = "completions.jsonl"


class Showcase:
    """The completions that a run folder shows; every call replaces what an earlier attempt wrote."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.base: Evaluation | None = None

    def tested(self, iteration: int, policy: Policy, evaluation: Evaluation) -> None:
        """Show completions of an evaluation; from the second on, also what became of the base's."""
        if iteration == 0:
            self.base = evaluation
        assert self.base is not None, "the base comes first"
        for made_in, shown in {0: self.base, iteration: evaluation}.items():
            entries = sample_entries("test", made_in, shown.rollouts, shown.verdicts, shown.questions.problems)
            before = [each for each in self.entries() if (each["set"], each["iteration"]) == ("test", made_in)]
            known = {each["row"]: each["logp"] for each in before}
            for entry in entries:
                entry["logp"] = known.get(entry["row"], {})
            self.score(entries, shown.rollouts, policy, iteration)
            self.replace(entries)

    def trained(
        self,
        iteration: int,
        policy: Policy,
        pool: CompletionPool,
        mu: Sequence[NDArray[np.float32]] | None,
        examples: NDArray[np.int64],
    ) -> None:
        """Show completions that an iteration could train on, and whether it did.

        policy: as trained. mu: log μ by row of the pool. examples: the rows that were trained on.
        """
        entries = sample_entries("train", iteration, pool.rollouts, pool.verdicts, pool.problems)
        for entry in entries:
            before = {} if mu is None else {str(iteration - 1): float(mu[entry["row"]].sum(dtype=np.float64))}
            entry["logp"] = before
            entry["trained_on"] = bool((examples == entry["row"]).any())
        self.score(entries, pool.rollouts, policy, iteration)
        self.replace(entries)

    def score(self, entries: list[dict[str, Any]], rollouts: Rollouts, policy: Policy, iteration: int) -> None:
        """Add the log-probability of each completion under `policy`."""
        if entries:
            rows = [entry["row"] for entry in entries]
            values = log_probabilities(policy, rollouts, rows, batch_size=1)["logp"].to_pylist()
            for entry, value in zip(entries, values, strict=True):
                entry["logp"][str(iteration)] = float(np.sum(value, dtype=np.float64))

    def entries(self) -> list[dict[str, Any]]:
        """What is there and whole; what is damaged is made again, or left out."""
        places = ("set", "iteration", "problem", "sample")
        return [
            entry
            for entry in read_lines(self.path)[0]
            if isinstance(entry.get("logp"), dict) and all(isinstance(entry.get(name), str | int) for name in places)
        ]

    def replace(self, entries: list[dict[str, Any]]) -> None:
        """Put entries into the file in place of those of the same sets and iterations."""
        groups = {(entry["set"], entry["iteration"]) for entry in entries}
        kept = [entry for entry in self.entries() if (entry["set"], entry["iteration"]) not in groups]
        if distributed.is_main_process():
            write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in [*kept, *entries]))


def sample_entries(
    split: str, iteration: int, rollouts: Rollouts, verdicts: Verdicts, problems: Sequence[Problem]
) -> list[dict[str, Any]]:
    """Up to PER_VERDICT completions of each verdict, evenly spread over the rows."""
    entries = []
    for code, verdict in enumerate(VERDICTS):
        rows = np.flatnonzero(verdicts.codes == code)
        for row in rows[np.unique(np.linspace(0, len(rows) - 1, PER_VERDICT).round().astype(int))] if len(rows) else []:
            problem = problems[int(rollouts.problem[row])]
            entries.append({
                "set": split, "iteration": iteration, "row": int(row), "problem": problem.id,
                "sample": int(rollouts.sample[row]), "level": problem.level, "subject": problem.subject,
                "question": problem.question, "gold": problem.answer,
                "completion": rollouts.texts(int(row), int(row) + 1)[0], "verdict": verdict,
                "answer": verdicts.columns["answer"][int(row)].as_py(), "tokens": len(rollouts.tokens[int(row)]),
                "truncated": bool(rollouts.truncated[row]),
            })  # fmt: skip
    return entries
