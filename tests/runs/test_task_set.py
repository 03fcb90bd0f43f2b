"""What a benchmark hands over: the seeds and numbers of training and test are not those of one another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import config_of, overrides
from topr_exp.config.data import Grading
from topr_exp.runs import task_set
from topr_exp.runs.task_set import TaskSet

TOLD = ["sampler.seed=3", "evaluation.seed=5", "data.n=2", "data.eval_n=6", "data.train_problems=4",
        "data.test_problems=3"]  # fmt: skip


def test_the_test_has_a_seed_and_a_number_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(task_set, "evaluate", lambda *given: asked.append(given))
    sampler, policy, questions, store = (SimpleNamespace() for _ in range(4))
    made = TaskSet(config_of(*overrides(tmp_path, *TOLD)))
    made.evaluate(sampler, policy, questions, store)  # type: ignore[arg-type]
    assert asked == [(sampler, policy, questions, 6, 5, Grading("gsm8k"), store)]


def test_solutions_to_verify_are_sampled_with_the_seeds_of_their_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those to test problems are the same for every run of a sweep over sampler.seed."""
    asked = []

    def solve(self: Any, problems: Any, prompter: Any, n: int, seed: int) -> Any:
        asked.append(([problem.id for problem in problems], n, seed))
        return SimpleNamespace(sampled=len(problems), questions=lambda template: list(problems))

    monkeypatch.setattr("topr_exp.verifier.solutions.Solver.solve", solve)
    monkeypatch.setattr(task_set, "load_policy", lambda *given: SimpleNamespace())
    more = ["task=verifier", "model=tiny_verifier", "task.solutions=2", "task.test_solutions=4"]
    made = TaskSet(config_of(*overrides(tmp_path, *TOLD, *more)))
    train, test = ([problem.id for problem in part] for part in (made.sets.train, made.sets.test))
    assert made.generate_solutions(SimpleNamespace(), SimpleNamespace()) == len(train) + len(test)  # type: ignore
    assert sorted(asked) == sorted([(train, 2, 3), (test, 4, 5)])
