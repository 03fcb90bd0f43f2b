"""The task of a model: to answer problems, or to verify solutions to them; each an object with its own stages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topr_exp.config.groups import EVALUATION_SEED
from topr_exp.config.settings import Config
from topr_exp.data.problems import full_question, load_problems
from topr_exp.data.prompts import TokenizedProblems, build_prompter, tokenize_prompts
from topr_exp.evaluation.summary import summarise_evaluation, table_folders
from topr_exp.grading.grader import Grader, open_grader
from topr_exp.grading.verdicts import grade_completions
from topr_exp.models.loading import refuse_other_logits
from topr_exp.models.model_folder import fetch_model_folder
from topr_exp.models.policy import Policy, load_policy
from topr_exp.runs.problem_checks import check_prompts
from topr_exp.sampling.completions import Completions
from topr_exp.sampling.generation import sample_completions
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.types import Problem
from topr_exp.verifier.solutions import Verification


class Task:
    """Problems to answer; test_only: without training problems."""

    def __init__(self, config: Config, *, test_only: bool = False) -> None:
        self.config = config
        self.sets = load_problems(config.data)
        self.prompter = build_prompter(config.data)
        if not config.data.at_hand:  # else checked before the run began
            check_prompts(self.prompter, self.sets, config.data)
        if test_only:
            self.sets = replace(self.sets, train=[])

    def tokenize(self, problems: Sequence[Problem], policy: Policy) -> TokenizedProblems:
        """Encode the prompts of some problems, but for prompts that leave no room for an answer."""
        return tokenize_prompts(problems, self.prompter, policy, self.config.sampler.max_new_tokens)

    def evaluate(
        self, sampler: Sampler, grader: Grader, *, policy: Policy, questions: TokenizedProblems, store: Store
    ) -> Completions:
        """Sample and grade completions of test problems, or read them from the store.

        Problems and seeds are the same for every run of a sweep, so that differences between runs are paired.
        """
        config = self.config
        completions = sample_completions(
            sampler.without_mismatch(),
            policy,
            questions,
            config.data.eval_n,
            seed=EVALUATION_SEED,
            store=store,
            label="evaluation",
        )
        return grade_completions(completions, grader, store)

    def figures(self, completions: Completions, store: Store, folder: Path, iteration: int) -> dict[str, Any]:
        """Compute the figures of an evaluation, with the folders of its completions; folder: of the results."""
        return {**summarise_evaluation(completions), **table_folders(completions, store)}


class VerificationTask(Task):
    """Solutions to verify, which a solver samples; each is a question about its correctness."""

    verification: Verification | None = None  # once solutions are sampled

    def sample_solutions(self, sampler: Sampler, store: Store) -> int:
        """Replace the problems by solutions to them; returns the number of tokens sampled by this process.

        To be called before the policy is loaded: a GPU may have no room for the solver too.
        """
        config = self.config
        fetch_model_folder(config.model.path, config.model.revision)  # what the hub lacks is told before sampling
        solver = load_policy(config.solver_model, config.cluster.device)
        if config.sampler.name == "hf":
            refuse_other_logits(solver.model)
        grading = config.data.grading()

        def solve(problems: Sequence[Problem], n: int, seed: int) -> Completions:
            questions = self.tokenize(problems, solver)
            solutions = sample_completions(
                sampler.without_mismatch(), solver, questions, n, seed=seed, store=store, label="solving"
            )
            with open_grader(grading) as grader:
                return grade_completions(solutions, grader, store)

        self.verification = Verification(
            config.task,
            solve,
            self.sets,
            seed=config.sampler.seed,
            chat_options=config.data.chat_options or {},
        )
        self.sets = self.verification.sets
        self.prompter = self.verification.prompter
        return self.verification.tokens_sampled

    def figures(self, completions: Completions, store: Store, folder: Path, iteration: int) -> dict[str, Any]:
        """The same with the figures of the verifier, which go to a file in `folder` too."""
        assert self.verification is not None, "solutions are sampled before they are verified"
        figures = super().figures(completions, store, folder, iteration)
        return figures | self.verification.figures(folder, iteration, completions)


def load_task(config: Config, *, test_only: bool = False) -> Task:
    """Load the problems of the task that the settings name."""
    task_class = VerificationTask if config.task.verifies else Task
    return task_class(config, test_only=test_only)


# ---- the problems that a run trains on


@dataclass(frozen=True)
class ProblemCounts:
    """Numbers of the problems that a run trains on."""

    count: int
    data_set_count: int  # of the data set's training problems among them
    text: str  # the counts, for the user


def count_training_problems(
    config: Config, train: Sequence[Problem], fitting: Sequence[Problem], imported: Completions | None
) -> ProblemCounts:
    """Count the problems to sample for (of train, those whose prompts fit) and those of imported completions.

    Beside imported ones problems count once for each text; else each is sampled for, solutions with one text too.
    """
    described = f"{config.task.question_kind}{config.data.described}"
    if imported is None:
        return ProblemCounts(len(fitting), len(fitting), f"{len(fitting)} {described}")

    def questions_of(problems: Sequence[Problem]) -> set[str]:
        return {full_question(problem, config.data) for problem in problems}

    data_questions = questions_of(train)
    questions = questions_of(imported.problems)
    if config.compose.mix is not None:
        questions |= questions_of(fitting)
    data_set_count = len(questions & data_questions)
    log_count = len(questions - data_questions)
    descriptions = []
    if data_set_count:
        descriptions.append(f"{data_set_count} {described}")
    if log_count:
        descriptions.append(f"{log_count} problems that {config.data.completions} brought")
    return ProblemCounts(data_set_count + log_count, data_set_count, ", ".join(descriptions))
