"""The grader's contract: order, streaming, laziness, classes, the CPUs that it takes."""

import itertools
import random

import pytest

from tests.conftest import each_row, values_of
from tests.grading.cases import CASES
from tests.grading.conftest import boxed, decisions, verdicts_on, worker_pids
from topr_exp.grading import Grader
from topr_exp.grading.grader import cores
from topr_exp.grading.pool import WorkerPool
from topr_exp.runtime.distributed import CPUS_PER_PROCESS

HALF = r"\frac{\sqrt{2}}{2}"


class NotingGrader(Grader):
    """Notes the tasks that it hands to the workers of another grader."""

    def __init__(self, grader):
        super().__init__(grader.name)
        self.pool = grader.start()
        self.tasks = []

    def start(self):
        return self

    def submit(self, tasks):
        self.tasks += tasks
        return self.pool.submit(tasks)


def test_plain_numbers_start_no_process_and_a_closed_grader_starts_again():
    golds = {"The answer is 5.": "5", "The answer is 1,000.0": "1000", "The answer is 1/2.": "0.25", "": "1"}
    with Grader("gsm8k", workers=1, deadline=20.0) as grader:
        assert decisions(grader, golds.items()) == [
            ("correct", "string"),
            ("correct", "rational"),
            ("incorrect", "rational"),
            ("invalid", "none"),
        ]
        assert worker_pids(grader) == []

        for gold in (r"\frac{1}{\sqrt{2}}", r"\frac{1}{\sqrt{2} }"):
            assert verdicts_on(grader, [(f"The answer is {HALF}.", gold)]) == ["correct"]
            assert len(worker_pids(grader)) == 1 + grader.workers
            grader.close()
            assert worker_pids(grader) == []


def test_outcomes_come_in_order_whatever_takes_longer(grader):
    rng = random.Random(1)
    completions, answers = [], []
    for number in range(600):
        answer = rng.choice([f"{number}", f"{number}.0", rf"{number}+\pi-\pi", None])
        completions.append(boxed(answer) if answer else "nothing in a box")
        answers.append(answer)

    outcomes = list(grader.grade((completion, str(number)) for number, completion in enumerate(completions)))

    assert values_of(outcomes, "answer") == answers
    assert values_of(outcomes, "verdict") == ["correct" if answer else "invalid" for answer in answers]


def test_a_stream_is_read_only_so_far_ahead(grader):
    numbers = itertools.count()

    outcomes = grader.grade((boxed(rf"{number}+\pi"), rf"\pi+{number}") for number in numbers)

    assert [next(outcomes).verdict for _ in range(5)] == ["correct"] * 5
    assert next(numbers) < 600


def test_identical_work_is_done_once(grader):
    noting = NotingGrader(grader)

    pair = (boxed(f"{HALF}+7"), r"7+\frac{1}{\sqrt{2}}")

    assert decisions(noting, [pair] * 50) == [("correct", "symbolic")] * 50
    assert len(noting.tasks) == 1


@pytest.mark.parametrize("name", CASES["classes"])
def test_equal_answers_are_one_class_whatever_their_order(name, grader):
    rows = list(CASES["classes"][name])
    assert numbers_of(rows, grader) == [number for _, number in rows]

    rng = random.Random(0)
    for _ in range(5):
        rng.shuffle(rows)
        numbers = numbers_of(rows, grader)
        expected = [number for _, number in rows]
        pairs = set(zip(numbers, expected, strict=True))
        assert len(pairs) == len({*numbers}) == len({*expected})


def numbers_of(rows, grader):
    return grader.classes([answer or None for answer, _ in rows])


def test_classes_of_many_answers_take_few_comparisons(grader):
    noting = NotingGrader(grader)
    numbers = [number % 500 for number in range(1000)]
    roots = [rf"{number}\sqrt{{{number + 2}}}+\pi" for number in range(64)]
    sums = [rf"\sum_{{k=1}}^{{n}} (k^2+{number})" for number in range(24)]

    assert noting.classes(list(map(str, numbers))) == numbers
    assert noting.classes(roots) == list(range(64))
    assert noting.tasks == [], "plain expressions need no sympy"
    noting.classes(sums)
    assert 0 < len(noting.tasks) <= 64, "of 276 pairs"


def test_an_error_in_the_comparison_is_counted_and_ends_nothing(grader):
    failing = NotingGrader(grader)
    failing.pool = WorkerPool("math.sqrt", 1, 20.0)  # of a text: it raises

    outcomes = decisions(failing, [(boxed(r"\frac{1}{\sqrt{2}}"), HALF), (boxed(HALF), HALF)])
    failing.pool.close()

    assert outcomes == [("incorrect", "raised"), ("correct", "string")]


# Processes of this machine, or of torchrun | CPUs to which a scheduler bound each | CPUs that it takes of 16
SHARES = """
1 | None | 16
4 | None | 4
40 | None | 1
4 | 4 | 4
4 | 16 | 16
"""


@each_row("processes bound cpus", SHARES, literals=True)
def test_a_process_takes_its_share_of_the_cpus(processes, bound, cpus, variables, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    variables["LOCAL_WORLD_SIZE"] = str(processes)
    if bound is not None:
        variables[CPUS_PER_PROCESS] = str(bound)

    assert cores() == cpus
