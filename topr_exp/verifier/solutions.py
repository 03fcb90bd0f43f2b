"""Problems become solutions to verify: a solver answers, the grader finds the truth, each answer makes one question."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topr_exp import world
from topr_exp.config import Config
from topr_exp.data.problems import ProblemSets
from topr_exp.data.prompts import Prompter
from topr_exp.data.questions import Questions, ask
from topr_exp.evaluation.evaluate import Evaluation
from topr_exp.evaluation.verdicts import CORRECT, encode
from topr_exp.files import write_json
from topr_exp.grading.verdicts import judge
from topr_exp.models.policy import Policy, load_policy
from topr_exp.sampling.rollouts import collect
from topr_exp.sampling.sampler import Sampler
from topr_exp.store import Store
from topr_exp.types import Problem
from topr_exp.verifier import figures

TRUTH = {True: "correct", False: "incorrect"}  # what a verdict has to say
FILE = "verification.json"


@dataclass(frozen=True)
class Solutions:
    """K graded solutions of each of P problems."""

    problems: Sequence[Problem]
    texts: list[str]  # [P * K] by problem
    verdicts: NDArray[np.integer]  # [P, K] codes
    classes: NDArray[np.integer]  # [P, K] of their answers
    sampled: int  # tokens that this process sampled for them

    def questions(self, template: str) -> list[Problem]:
        """One problem for each solution, whose answer is the truth about it: all first solutions, all second ones, ...

        (The beginning of the list then holds as many different problems as it can.)
        """
        count, k = self.verdicts.shape
        return [
            replace(
                self.problems[p],
                id=name_of(self.problems[p], sample),
                question=fill(template, self.problems[p].question, self.texts[p * k + sample].strip()),
                answer=TRUTH[bool(self.verdicts[p, sample] == CORRECT)],
                source=self.problems[p].id,
            )
            for sample in range(k)
            for p in range(count)
        ]


def name_of(problem: Problem, sample: int) -> str:
    return f"{problem.id}/solution/{sample:04d}"


def fill(template: str, question: str, solution: str) -> str:
    """The prompt's text; whatever stands in a question or a solution, braces too, stays as it is."""
    parts = {"{question}": question, "{solution}": solution}
    return re.sub(r"\{question\}|\{solution\}", lambda place: parts[place.group()], template)


class Verification:
    """The task of a verifier: what it is asked, and what its verdicts are good for.

    The solver's completions and their grades lie in the store, where every run that asks the same finds them.
    """

    def __init__(self, config: Config, sets: ProblemSets, prompter: Prompter, store: Store, sampler: Sampler) -> None:
        task, tokens = config.task, config.sampler.max_new_tokens
        assert task.solutions is not None
        assert task.test_solutions is not None
        assert task.template is not None
        assert task.chat is not None
        solver = load_policy(config.solver, config.cluster.device.name)
        test = ask(sets.test, prompter, solver, tokens)
        self.test = write_solutions(sampler, solver, test, task.test_solutions, config.evaluation.seed, config, store)
        self.sampled = self.test.sampled
        self.sets = replace(sets, test=self.test.questions(task.template))
        if sets.train:  # there are none where a model is only evaluated
            train = ask(sets.train, prompter, solver, tokens)
            written = write_solutions(sampler, solver, train, task.solutions, config.sampler.seed, config, store)
            self.sampled += written.sampled
            self.sets = replace(self.sets, train=written.questions(task.template))
        # The question is the whole prompt already.
        self.prompter = Prompter("{question}", (), task.chat, ())
        self.base: figures.Tally | None = None

    def tested(self, folder: Path, iteration: int, evaluation: Evaluation) -> dict[str, Any]:
        """The figures of an evaluation; from the second on with the difference to the base's.

        What each problem adds to them goes to FILE in `folder`, for tables over several runs.
        """
        counted = self.tally(evaluation)
        found = figures.summarise(counted)
        self.base = self.base or counted
        if iteration > 0:
            change = figures.difference(self.base.values["weighted_sc"], counted.values["weighted_sc"])
            found["weighted_sc - base"] = change
        path = folder / FILE
        shown = read(path)
        shown["problems"] = [problem.id for problem in self.test.problems]
        shown["solutions"], shown["verifications"] = counted.solutions, counted.verifications
        values = {name: value.tolist() for name, value in counted.values.items()}
        shown.setdefault("iterations", {})[str(iteration)] = values
        if world.leads():
            write_json(path, shown)
        return {"verifier": found}

    def tally(self, evaluation: Evaluation) -> figures.Tally:
        """Each problem's verifications, brought into the order of its solutions."""
        row = {problem.id: i for i, problem in enumerate(evaluation.questions.problems)}
        k = self.test.verdicts.shape[1]
        rows = np.array([[row.get(name_of(problem, s), -1) for s in range(k)] for problem in self.test.problems])
        codes = encode(evaluation.verdicts.verdict.tolist()).reshape(-1, evaluation.n)
        return figures.tally(self.test.verdicts, self.test.classes, codes[rows], rows >= 0)


def write_solutions(
    sampler: Sampler, solver: Policy, questions: Questions, n: int, seed: int, config: Config, store: Store
) -> Solutions:
    """n graded solutions of each question, from the store as far as they are there."""
    rollouts = collect(sampler, solver, questions, n, seed, store, "solving")
    verdicts = judge(rollouts, questions.problems, config.data.grader_name, store)
    return Solutions(
        questions.problems,
        rollouts.texts(0, rollouts.rows),
        encode(verdicts.verdict.tolist()).reshape(-1, n),
        verdicts.classes.reshape(-1, n),
        rollouts.sampled,
    )


def read(path: Path) -> dict[str, Any]:
    """What an earlier evaluation, or an earlier attempt, wrote."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
