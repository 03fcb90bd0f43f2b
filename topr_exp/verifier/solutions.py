"""Problems become solutions to verify: a solver answers, the grader finds the truth, each answer makes one question."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from topr_exp.config.groups import TaskConfig
from topr_exp.data.problems import ProblemSets
from topr_exp.data.prompts import Prompter
from topr_exp.evaluation.evaluation import Evaluation
from topr_exp.evaluation.statistics import CORRECT
from topr_exp.runtime import distributed
from topr_exp.runtime.json_files import MISSING, read_typed_object, write_json
from topr_exp.runtime.terminal import warn
from topr_exp.types import Problem
from topr_exp.verifier import figures

FILE = "verification.json"


class Verifications(TypedDict, total=False):
    """verification.json: each problem's contribution to the figures, by iteration."""

    problems: list[str]
    iterations: dict[str, dict[str, Any]]


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
        k, prompter = self.verdicts.shape[1], Prompter(template, (), False, ())
        return [
            replace(
                problem,
                id=name_of(problem, sample),
                question=prompter.render(problem.question, fields={"solution": self.texts[p * k + sample].strip()}),
                answer="correct" if self.verdicts[p, sample] == CORRECT else "incorrect",
                source=problem.id,
            )
            for sample in range(k)
            for p, problem in enumerate(self.problems)
        ]


def name_of(problem: Problem, sample: int) -> str:
    return f"{problem.id}/solution/{sample:04d}"


class Verification:
    """The task of a verifier: what it is asked, and what its verdicts are good for.

    solve(problems, n, seed): writes and grades n solutions of each. seed, test_seed: for training and test problems.
    chat_options: variables of the verifier's chat template.
    """

    def __init__(
        self,
        task: TaskConfig,
        solve: Callable[..., Solutions],
        sets: ProblemSets,
        *,
        seed: int,
        test_seed: int,
        chat_options: Mapping[str, Any] | None = None,
    ) -> None:
        assert task.solutions is not None
        assert task.test_solutions is not None
        assert task.template is not None
        assert task.chat is not None
        self.test = solve(sets.test, task.test_solutions, test_seed)
        self.sampled = self.test.sampled
        self.sets = replace(sets, test=self.test.questions(task.template))
        if sets.train:  # there are none where a model is only evaluated
            train = solve(sets.train, task.solutions, seed)
            self.sampled += train.sampled
            self.sets = replace(self.sets, train=train.questions(task.template))
        # The question is the whole prompt already.
        self.prompter = Prompter("{question}", (), task.chat, (), chat_options or {})
        self.base: figures.Tally | None = None

    def tested(self, folder: Path, iteration: int, evaluation: Evaluation) -> dict[str, Any]:
        """The figures of an evaluation; from the second on with the difference to the base's.

        What each problem adds to them goes to FILE in `folder`, for tables over several runs.
        """
        # Each problem's verifications, brought into the order of its solutions.
        row = {problem.id: i for i, problem in enumerate(evaluation.questions.problems)}
        k = self.test.verdicts.shape[1]
        rows = np.array([[row.get(name_of(problem, s), -1) for s in range(k)] for problem in self.test.problems])
        codes = evaluation.verdicts.codes.reshape(-1, evaluation.n)
        counted = figures.tally(self.test.verdicts, self.test.classes, codes[rows], rows >= 0)
        found = figures.summarise(counted)
        self.base = self.base or counted
        if iteration > 0:
            change = figures.difference(self.base.values["weighted_sc"], counted.values["weighted_sc"])
            found["weighted_sc - base"] = change
        path = folder / FILE
        shown, fault = read_typed_object(path, Verifications)  # by an earlier evaluation
        if fault not in ("", MISSING):
            warn(f"{path} is damaged: it {fault}; what earlier evaluations wrote there is lost")
        shown["problems"] = [problem.id for problem in self.test.problems]
        shown["solutions"], shown["verifications"] = counted.solutions, counted.verifications
        values = {name: value.tolist() for name, value in counted.values.items()}
        shown.setdefault("iterations", {})[str(iteration)] = values
        if distributed.is_main_process():
            write_json(path, shown)
        return {"verifier": found}
