"""Evaluation of a policy on the test problems: sample, grade, summarise."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from topr_exp.config.data import Grading
from topr_exp.data.prompts import TokenizedProblems
from topr_exp.evaluation.statistics import mean_lengths, mean_reward, summarise, without_majorities
from topr_exp.grading.verdicts import Verdicts, grade_rollouts
from topr_exp.models.policy import Policy
from topr_exp.runtime.stop import Interrupted, StopFlag
from topr_exp.sampling.rollouts import Rollouts, generate_rollouts
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.training.trainer import Journal


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

        With the mean reward where rewards are graded. Without maj@K where the grader does not say what incorrect
        completions answer: none could outvote a correct one.
        """
        codes = self.verdicts.codes.reshape(-1, self.n)
        chosen = self.questions.problems[:problems]
        found = summarise(
            codes[:problems],
            self.verdicts.classes.reshape(-1, self.n)[:problems],
            levels=[problem.level for problem in chosen],
            subjects=[problem.subject for problem in chosen],
            sources=[problem.source for problem in chosen],
        )
        found["cut_off"] = Verdicts("", self.verdicts.columns.slice(0, codes[:problems].size)).cut_off
        found |= mean_lengths(codes[:problems], self.rollouts.tokens.lengths().reshape(-1, self.n)[:problems])
        if self.verdicts.reward is not None:
            rewards = self.verdicts.reward.reshape(-1, self.n)[:problems]
            found |= mean_reward(rewards, [problem.source for problem in chosen])
        return found if self.verdicts.votes_known else without_majorities(found)

    def places(self) -> dict[str, str]:
        """Locate the completions and their verdicts in the store."""
        names = {"rollouts": self.rollouts.name, "verdicts": self.verdicts.name}
        return {kind: str(self.store.root / name) for kind, name in names.items()}


def evaluate(
    sampler: Sampler, policy: Policy, test: TokenizedProblems, n: int, seed: int, grading: Grading, store: Store
) -> Evaluation:
    """Sample n completions of each question and grade them, or read from the store what an earlier call did.

    Problems and seeds are the same for every run of a sweep, so that differences between runs are paired.
    """
    rollouts = generate_rollouts(sampler, policy, test, n, seed, store, "evaluation")
    return Evaluation(test, rollouts, grade_rollouts(rollouts, test.problems, grading, store), n, store)


def first(questions: TokenizedProblems, count: int | None) -> TokenizedProblems:
    """The first `count` questions (None: all)."""
    return dataclasses.replace(questions, problems=questions.problems[:count], prompts=questions.prompts[:count])


class EvaluatingJournal:
    """A journal that passes everything on, and evaluates after every `every`-th update."""

    def __init__(
        self, journal: Journal, every: int | None, evaluate: Callable[[int, int], None], stop: StopFlag
    ) -> None:
        self.journal, self.every, self.evaluate, self.stop = journal, every, evaluate, stop

    def log(self, record: dict[str, float]) -> None:
        self.journal.log(record)
        self.reach(int(record["step"]), int(record["samples"]))

    def before_checkpoint(self, step: int, steps: int) -> None:
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
