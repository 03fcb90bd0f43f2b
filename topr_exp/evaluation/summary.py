"""The figures of an evaluation: n graded completions of each test problem."""

from typing import Any

from topr_exp.evaluation.statistics import Figures, mean_lengths, mean_reward, summarise
from topr_exp.grading.verdicts import grader_timeouts, votes_are_known
from topr_exp.sampling.completions import Completions
from topr_exp.store import Store


def summarise_evaluation(completions: Completions, problems: int | None = None) -> Figures:
    """Compute the figures of `statistics.summarise` and mean lengths, of the first `problems` problems (None: of all).

    With the mean reward if graded; without maj@K if the grader names no incorrect answers: they could not win the vote.
    """
    n = len(completions) // len(completions.problems)
    tested_problems = completions.problems[:problems]

    def by_problem(column: Any) -> Any:
        """Arrange a column [M] of the completions as [tested problems, n]."""
        return column.reshape(-1, n)[:problems]

    verdicts = by_problem(completions.verdicts)
    classes = by_problem(completions.answer_classes)
    is_truncated = by_problem(completions.is_truncated)
    lengths = by_problem(completions.tokens.lengths())
    figures = summarise(verdicts, classes, tested_problems, votes_are_known=votes_are_known(completions))
    figures["grader_timeouts"] = grader_timeouts(completions.first_rows(verdicts.size))
    figures["truncated_share"] = float(is_truncated.mean())
    figures |= mean_lengths(verdicts, lengths)
    if completions.reward is not None:
        rewards = by_problem(completions.reward)
        sources = [problem.source for problem in tested_problems]
        figures |= mean_reward(rewards, sources)
    return figures


def table_folders(completions: Completions, store: Store) -> dict[str, str]:
    """Locate the completions and their verdicts in the store."""
    stored = completions.stored
    assert stored is not None, "an evaluation lies in a store"
    return {
        "rollouts": str(store.root / stored.rollouts),
        "verdicts": str(store.root / str(stored.verdicts)),
    }
