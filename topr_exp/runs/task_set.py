"""The problems as a model is asked them, a prompt for people to read, and the evaluation of the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topr_exp.config.data import Grading
from topr_exp.config.settings import Config
from topr_exp.data.problems import load_problems
from topr_exp.data.prompts import TokenizedProblems, build_prompter, tokenize_prompts
from topr_exp.evaluation.evaluation import Evaluation, evaluate
from topr_exp.models.policy import Policy, load_policy
from topr_exp.sampling.rollouts import Completions
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.types import Problem

if TYPE_CHECKING:
    from topr_exp.verifier.solutions import Verification


@dataclass(frozen=True)
class TrainedOn:
    """The problems that a run trains on."""

    count: int
    of_data: int  # how many of them are training problems of the data set
    text: str  # how many are which


def trained_on(config: Config, train: Sequence[Problem], imported: Completions | None) -> TrainedOn:
    """Count the problems of the data set (train) to sample for, those that imported completions answer, or both."""
    known = {problem.question for problem in train}
    sampled = known if imported is None or config.compose.mix is not None else set[str]()
    answered = {problem.question for problem in imported.questions.problems} if imported is not None else set()
    ours, brought = (sampled | answered) & known, answered - known
    parts = [f"{len(ours)} {'solutions to ' * config.task.verifies}{config.data.described}"] if ours else []
    parts += [f"{len(brought)} problems that {config.data.completions} brought"] if brought else []
    return TrainedOn(len(ours) + len(brought), len(ours), ", ".join(parts))


class TaskSet:
    """The problems as a model is asked them: questions to answer, or solutions to verify; test_only: those alone."""

    def __init__(self, config: Config, *, test_only: bool = False) -> None:
        self.config = config
        self.sets, self.prompter = load_problems(config.data), build_prompter(config.data)
        if test_only:
            self.sets = dataclasses.replace(self.sets, train=[])
        self.verification: Verification | None = None

    def generate_solutions(self, sampler: Sampler, store: Store) -> int:
        """Put solutions by the solver, to be verified, in place of the problems; returns the tokens it sampled."""
        from topr_exp.verifier.solutions import Solver, Verification

        config = self.config
        policy = load_policy(config.solver, config.cluster.device)
        solver = Solver(policy, sampler, Grading(config.data.grader_name, threshold=config.data.threshold), store)
        seeds = {"seed": config.sampler.seed, "test_seed": config.evaluation.seed}
        self.verification = Verification(config.task, solver, self.sets, self.prompter, **seeds)
        self.sets, self.prompter = self.verification.sets, self.verification.prompter
        return self.verification.sampled

    def tokenize(self, problems: Sequence[Problem], policy: Policy) -> TokenizedProblems:
        """The prompts of some of the problems, as far as they leave room for an answer."""
        return tokenize_prompts(problems, self.prompter, policy, self.config.sampler.max_new_tokens)

    def evaluate(self, sampler: Sampler, policy: Policy, questions: TokenizedProblems, store: Store) -> Evaluation:
        """Graded completions of test problems, with the problems and seeds of all runs that are compared."""
        config = self.config
        n, seed = config.data.eval_n, config.evaluation.seed
        return evaluate(sampler, policy, questions, n, seed, config.grading, store)

    def figures(self, evaluation: Evaluation, folder: Path, iteration: int) -> dict[str, Any]:
        """The figures of an evaluation and where its completions lie; a verifier's go to a file in `folder` too."""
        found = {**evaluation.figures(), **evaluation.places()}
        if self.verification is not None:
            found |= self.verification.tested(folder, iteration, evaluation)
        return found
