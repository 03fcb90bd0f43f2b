"""What a benchmark hands over: the seeds and numbers of training and test are not those of one another."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.conftest import config_of, make_completions, make_graded, overrides
from topr_exp.config.data import Grading
from topr_exp.runs import tasks
from topr_exp.runs.policies import Policies
from topr_exp.runs.tasks import load_task

TOLD = ["sampler.seed=3", "data.n=2", "data.eval_n=6", "data.train_problems=4",
        "data.test_problems=3"]  # fmt: skip


def test_the_test_has_a_seed_and_a_number_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tasks, "sample_completions", lambda *given, **more: asked.append((*given, more)) or "sampled")
    monkeypatch.setattr(tasks, "grade_completions", lambda *given: asked.append(given) or "graded")
    sampler, policy, store, questions = (SimpleNamespace(problems=["p"]) for _ in range(4))
    sampler.without_mismatch = lambda: sampler
    made = load_task(config_of(*overrides(tmp_path, *TOLD)))
    found = made.evaluate(sampler, policy, questions, store)  # type: ignore[arg-type]
    of_sampler = {"seed": 0, "store": store, "label": "evaluation"}
    assert asked == [(sampler, policy, questions, 6, of_sampler), ("sampled", Grading("gsm8k"), store)]
    assert found == "graded"


class Asked(list[Any]):
    """Problems, tokenized."""

    @property
    def problems(self) -> list[Any]:
        return self


def test_solutions_to_verify_are_sampled_with_the_seeds_of_their_problems(tmp_path, monkeypatch):
    """Those to test problems are the same for every run of a sweep over sampler.seed."""
    asked = []

    def sample(sampler: Any, policy: Any, problems: Any, n: int, seed: int, **_: Any) -> Any:
        asked.append(([problem.id for problem in problems], n, seed))
        rows = np.repeat(np.arange(len(problems)), n)
        solutions = make_graded(rows, rows < 0, problems=list(problems), text=["."] * len(rows), name="rollouts/r")
        return replace(solutions, stored=replace(solutions.stored, tokens_sampled=len(problems)))

    monkeypatch.setattr(tasks, "tokenize_prompts", lambda problems, *_: Asked(problems))
    monkeypatch.setattr(tasks, "sample_completions", sample)
    monkeypatch.setattr(tasks, "grade_completions", lambda solutions, *_: solutions)
    monkeypatch.setattr(tasks, "load_policy", lambda *given: SimpleNamespace())
    more = ["task=verifier", "model=tiny_verifier", "task.solutions=2", "task.test_solutions=4"]
    made = load_task(config_of(*overrides(tmp_path, *TOLD, *more)))
    train, test = ([problem.id for problem in part] for part in (made.sets.train, made.sets.test))
    assert made.sample_solutions(SimpleNamespace(without_mismatch=dict), SimpleNamespace()) == len(train) + len(test)  # type: ignore
    assert sorted(asked) == sorted([(train, 2, 3), (test, 4, 0)])


@pytest.mark.parametrize("last", [False, True])
def test_mu_model_scores_the_completions_of_a_log_alone(last: bool) -> None:
    policies = Mock(config=config_of("data.completions=hub:a/b", "mu_model=tiny_noise"), needs=frozenset())
    Policies.mu_logp(policies, make_completions([0]), "store", is_last=last)  # type: ignore[arg-type]
    (policy, *_), _ = policies.scored.call_args
    assert (policy is policies.load.return_value, policy is policies.trained) == (last, not last)
