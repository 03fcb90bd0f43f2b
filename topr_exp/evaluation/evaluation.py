"""Evaluation of a policy on the test problems, and the completions of a run that people may read."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp.data.prompts import TokenizedProblems
from topr_exp.evaluation.statistics import mean_lengths, mean_reward, summarise, without_majorities
from topr_exp.grading.verdicts import Verdicts
from topr_exp.runtime import distributed
from topr_exp.runtime.files import write_text
from topr_exp.runtime.json_files import read_lines
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sampling.rollouts import Rollouts
from topr_exp.store import Store
from topr_exp.training.trainer import Journal
from topr_exp.types import VERDICTS, Problem

PER_VERDICT = 12
COMPLETIONS = "completions.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """n graded completions of each test problem."""

    questions: TokenizedProblems
    rollouts: Rollouts
    verdicts: Verdicts
    n: int
    store: Store

    def figures(self, problems: int | None = None) -> dict[str, Any]:
        """The figures of `statistics.summarise` and mean lengths, of the first `problems` problems (None: of all).

        With the mean reward if graded; without maj@K if the grader names no wrong answers: they could not win the vote.
        """
        codes = self.verdicts.codes.reshape(-1, self.n)
        chosen = self.questions.problems[:problems]
        found = summarise(codes[:problems], self.verdicts.classes.reshape(-1, self.n)[:problems], chosen)
        graded = Verdicts("", self.verdicts.columns.slice(0, codes[:problems].size))
        found["grader_timeouts"] = graded.grader_timeouts
        found["truncated_share"] = float(self.rollouts.truncated[: codes[:problems].size].mean())
        found |= mean_lengths(codes[:problems], self.rollouts.tokens.lengths().reshape(-1, self.n)[:problems])
        if self.verdicts.reward is not None:
            rewards = self.verdicts.reward.reshape(-1, self.n)[:problems]
            found |= mean_reward(rewards, [problem.source for problem in chosen])
        return found if self.verdicts.votes_known else without_majorities(found)

    def places(self) -> dict[str, str]:
        """Locate the completions and their verdicts in the store."""
        names = {"rollouts": self.rollouts.name, "verdicts": self.verdicts.name}
        return {kind: str(self.store.root / name) for kind, name in names.items()}


class EvaluatingJournal:
    """A journal that passes everything on, and evaluates after every `every`-th update."""

    def __init__(
        self,
        journal: Journal,
        every: int | None,
        evaluate: Callable[[int, int], None],
        stop: StopFlag,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """check: raises where nothing may be saved any more."""
        self.journal, self.every, self.evaluate, self.stop, self.check = journal, every, evaluate, stop, check

    def log(self, record: dict[str, float]) -> None:
        self.journal.log(record)
        self.reach(int(record["step"]), int(record["samples"]))

    def before_checkpoint(self, step: int, steps: int) -> None:
        self.check()
        self.journal.before_checkpoint(step, steps)

    def reach(self, step: int, samples: int) -> None:
        """Evaluate if it is time; a run that is asked to stop saves instead, and evaluates when it goes on."""
        if self.every is not None and step > 0 and step % self.every == 0 and not self.stop.share():
            with contextlib.suppress(Interrupted):  # the training loop saves, then raises it again
                self.evaluate(step, samples)

    def go_on(self, step: int, samples: int) -> None:
        """Evaluate what an earlier attempt could not; a run that is to stop now ends before another update."""
        self.reach(step, samples)
        if self.stop.share():  # after one more update this point of the curve would never be measured
            self.stop.check()


# ---- completions for people to read: a bounded number for each verdict, of every evaluation and of what was trained on


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

    Up to PER_VERDICT of each verdict, evenly spread over the rows; `logp` is the log-probability when it was drawn.

    split: test or train. examples: the rows that were trained on.
    """
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
            if examples is not None:
                entries[-1]["trained_on"] = bool((examples == row).any())
    path = folder / COMPLETIONS
    for each in read_lines(path)[0]:
        place = each.get("set"), each.get("iteration")
        if place != (split, iteration) and isinstance(place[0], str) and isinstance(place[1], int):
            entries.append(each)
    entries.sort(key=lambda entry: (entry["iteration"], entry["set"]))  # the same file, whatever was written again
    if distributed.is_main_process():
        write_text(path, "".join(json.dumps(entry) + "\n" for entry in entries))
