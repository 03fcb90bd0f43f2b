"""Evaluation of a policy on the test problems: sample, grade, summarise."""

from __future__ import annotations

from typing import Any

from topr_exp.config import Config
from topr_exp.data.questions import Questions
from topr_exp.evaluation.statistics import summarise
from topr_exp.evaluation.verdicts import encode
from topr_exp.grading.verdicts import judge
from topr_exp.models.policy import Policy
from topr_exp.sampling.rollouts import collect
from topr_exp.store import Store


def evaluate(policy: Policy, test: Questions, config: Config, store: Store) -> tuple[dict[str, Any], int]:
    """The figures of `statistics.summarise`, and the number of tokens that this call had to sample.

    Problems and seeds are the same for every run of a sweep, so that differences between runs are paired.
    """
    data = config.data
    rollouts = collect(policy, test, data.eval_n, config.sampler, config.evaluation.seed, store, "evaluation")
    verdicts = judge(rollouts, test.problems, data.grader_name, store)
    codes = encode(verdicts.verdict.tolist()).reshape(-1, data.eval_n)
    figures = summarise(
        codes,
        verdicts.classes.reshape(-1, data.eval_n),
        levels=[problem.level for problem in test.problems],
        subjects=[problem.subject for problem in test.problems],
    )
    where = {"rollouts": str(store.root / rollouts.name), "verdicts": str(store.root / verdicts.name)}
    return {**figures, **where}, rollouts.sampled
