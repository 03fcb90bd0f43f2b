"""Solutions to verify: a solver answers problems, the grader finds the truth, each answer becomes one question."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from topr_exp.config.groups import EVALUATION_SEED, TaskConfig
from topr_exp.data.problems import ProblemSets
from topr_exp.data.prompts import Prompter
from topr_exp.evaluation.intervals import Values
from topr_exp.evaluation.statistics import Figures
from topr_exp.runtime import distributed
from topr_exp.runtime.json_files import MISSING, read_typed_object, write_json
from topr_exp.runtime.terminal import warn
from topr_exp.sampling.completions import Completions
from topr_exp.types import Problem
from topr_exp.verifier.figures import Tally, difference, summarise, tally_votes

FILE = "verification.json"


class Verifications(TypedDict, total=False):
    """verification.json: each problem's contribution to the figures, by iteration."""

    problems: list[str]
    iterations: dict[str, dict[str, Any]]


def questions_about(solutions: Completions, template: str) -> list[Problem]:
    """Turn each solution into a problem whose answer is its verdict: all first solutions, all second ones, ...

    (The beginning of the list then holds as many different problems as it can.)
    """
    prompter = Prompter(template)
    texts = solutions.texts(range(len(solutions)))
    solutions_per_problem = len(solutions) // len(solutions.problems)
    questions = []
    for sample in range(solutions_per_problem):
        for index, problem in enumerate(solutions.problems):
            row = index * solutions_per_problem + sample
            question = replace(
                problem,
                id=question_id_of(problem, sample),
                question=prompter.render(problem.question, fields={**problem.fields, "solution": texts[row].strip()}),
                answer="correct" if solutions.is_correct[row] else "incorrect",
                source=problem.id,
            )
            questions.append(question)
    return questions


def question_id_of(problem: Problem, sample: int) -> str:
    return f"{problem.id}/solution/{sample:04d}"


class Verification:
    """The questions that a verifier is asked, and the figures of its answers.

    solve(problems, n, seed): samples and grades n solutions of each problem. seed: for training problems; test problems
    have that of evaluations. chat_options: variables of the verifier's chat template.
    """

    def __init__(
        self,
        task: TaskConfig,
        solve: Callable[[list[Problem], int, int], Completions],
        sets: ProblemSets,
        *,
        seed: int,
        chat_options: Mapping[str, Any],
    ) -> None:
        assert task.solutions is not None
        assert task.test_solutions is not None
        assert task.template is not None
        assert task.chat is not None
        self.test_solutions = solve(sets.test, task.test_solutions, EVALUATION_SEED)
        self.tokens_sampled = self.test_solutions.tokens_sampled
        self.sets = replace(sets, test=questions_about(self.test_solutions, task.template))
        if sets.train:  # there are none where a model is only evaluated
            train_solutions = solve(sets.train, task.solutions, seed)
            self.tokens_sampled += train_solutions.tokens_sampled
            self.sets = replace(self.sets, train=questions_about(train_solutions, task.template))
        # The question is the whole prompt already.
        self.prompter = Prompter("{question}", chat=task.chat, chat_options=chat_options)
        self.base_scores: Values | None = None  # [P] weighted_sc at the first evaluation

    def figures(self, folder: Path, iteration: int, verifications: Completions) -> Figures:
        """Compute the figures of an evaluation; after the first evaluation with the difference to it.

        Each problem's contribution goes to FILE in `folder`, for tables over several runs.
        """
        tally = tally_verifications(self.test_solutions, verifications)
        summary = summarise(tally)
        scores = tally.values["weighted_sc"]
        if self.base_scores is None:
            self.base_scores = scores
        if iteration > 0:
            summary["weighted_sc - base"] = difference(self.base_scores, scores)
        record_tally(folder / FILE, iteration, self.test_solutions.problems, tally)
        return {"verifier": summary}


def tally_verifications(solutions: Completions, verifications: Completions) -> Tally:
    """Count each problem's verifications, of which some may be missing (their questions were too long)."""
    problem_count = len(solutions.problems)
    solution_verdicts = solutions.verdicts.reshape(problem_count, -1)  # [P, K]
    index_by_question = {question.id: index for index, question in enumerate(verifications.problems)}
    question_index = np.full(solution_verdicts.shape, -1)  # of each solution; -1: missing
    for problem_index, sample in np.ndindex(question_index.shape):
        question_id = question_id_of(solutions.problems[problem_index], sample)
        question_index[problem_index, sample] = index_by_question.get(question_id, -1)
    verdicts_by_question = verifications.verdicts.reshape(len(verifications.problems), -1)
    return tally_votes(
        solution_verdicts,
        solutions.answer_classes.reshape(problem_count, -1),
        verdicts_by_question[question_index],  # of a missing question some other one's, which are not read
        is_verified=question_index >= 0,
    )


def record_tally(path: Path, iteration: int, problems: Sequence[Problem], tally: Tally) -> None:
    """Add an iteration's contributions by problem to a file of all evaluations."""
    record, fault = read_typed_object(path, Verifications)
    if fault not in ("", MISSING):
        warn(f"{path} is damaged: it {fault}; what earlier evaluations wrote there is lost")
    iterations = record.get("iterations", {})
    iterations[str(iteration)] = {name: values.tolist() for name, values in tally.values.items()}
    record |= {
        "problems": [problem.id for problem in problems],
        "solutions": tally.solutions,
        "verifications": tally.verifications,
        "iterations": iterations,
    }
    if distributed.is_main_process():
        write_json(path, record)
