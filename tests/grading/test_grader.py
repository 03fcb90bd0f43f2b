"""The grader's contract: order, streaming, laziness, classes; arithmetic; the CPUs that it takes."""

import itertools
import random
from fractions import Fraction

import pytest

from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader
from topr_exp.grading.grader import cores
from topr_exp.grading.gym import score, value_and_numbers
from topr_exp.grading.pool import WorkerPool
from topr_exp.runtime.distributed import CPUS_PER_PROCESS

HALF = r"\frac{\sqrt{2}}{2}"


def boxed(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(rf"\boxed{{{answer}}}", gold) for answer, gold in pairs]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The tasks that are handed to workers from now on."""
    seen: list[tuple[str, ...]] = []
    submit = WorkerPool.submit
    noting = lambda pool, tasks: submit(pool, [seen.append(task) or task for task in tasks])  # type: ignore
    monkeypatch.setattr(WorkerPool, "submit", noting)
    return seen


def test_plain_numbers_start_no_process() -> None:
    with Grader("gsm8k") as grader:
        said = {"The answer is 5.": "5", "The answer is 1,000.0": "1000", "The answer is 1/2.": "0.25", "": "1"}
        outcomes = list(grader.grade(said.items()))
        assert [one.verdict for one in outcomes] == ["correct", "correct", "incorrect", "invalid"]
        assert [one.path for one in outcomes] == ["string", "rational", "rational", "none"]
        assert worker_pids(grader) == []
        grader.start()
        assert len(worker_pids(grader)) == 1 + grader.workers


def test_order_is_kept_whatever_takes_longer(grader: Grader) -> None:
    draw = random.Random(1)
    forms = [draw.choice([r"\boxed{%d}", r"\boxed{%d.0}", r"\boxed{%d+\pi-\pi}", "%d"]) for _ in range(1200)]
    outcomes = list(grader.grade((form % i, str(i)) for i, form in enumerate(forms)))
    texts = [form % i for i, form in enumerate(forms)]
    assert [one.verdict for one in outcomes] == ["correct" if "boxed" in text else "invalid" for text in texts]
    assert [one.answer for one in outcomes] == [text[7:-1] if "boxed" in text else None for text in texts]


def test_streaming_reads_only_so_far_ahead(grader: Grader) -> None:
    read = itertools.count()
    outcomes = grader.grade((rf"\boxed{{{i}+\pi}}", rf"\pi+{i}") for i in read)
    assert all(next(outcomes).verdict == "correct" for _ in range(5))
    assert next(read) < 600
    outcomes.close()


def test_identical_work_is_done_once(grader: Grader, submitted: list[tuple[str, ...]]) -> None:
    [pair] = boxed((HALF + "+7", r"7+\frac{1}{\sqrt{2}}"))
    assert [(one.verdict, one.path) for one in grader.grade([pair] * 50)] == [("correct", "symbolic")] * 50
    assert len(submitted) == 1


def test_what_decided_is_told() -> None:
    with Grader("math", workers=1, deadline=0.3) as grader:
        pairs = [(r"9^{9^{9^{9}}}", r"\pi"), ("1", "1"), ("0.5", r"\frac12")]
        found = [(one.path, one.verdict) for one in grader.grade([*boxed(*pairs), ("", "1")])]
    assert found == [("timeout", "incorrect"), ("string", "correct"), ("rational", "correct"), ("none", "invalid")]


HALVES = [HALF, r"\frac{1}{\sqrt 2}"]
CLASSES: list[tuple[list[str | None], list[int]]] = [
    (["0.5", None, r"\frac12", "1", *HALVES, "x=1", "50\\%", "50", r"\text{Even}", "even"],
     [0, -1, 0, 1, 2, 2, 1, 3, 3, 4, 4]),
    (["42", "x=41=42", "x=42=42.0", r"x=\sqrt{4}=2", "2", "x=41=43"], [0, 1, 0, 2, 2, 3]),  # a chain with two values
    (["1,2", "2,1", r"\{1,2\}", "(1,2)", r"\sqrt{8}", r"2\sqrt2", "2.8284", "x^2-1", "(x-1)(x+1)", "7", "7.0"],
     [0, 0, 0, 1, 2, 2, 3, 4, 4, 5, 5]),
    ([None, None], [-1, -1]),
    ([], []),
]  # fmt: skip


@pytest.mark.parametrize(("answers", "expected"), CLASSES)
def test_classes_whatever_the_order(answers: list[str | None], expected: list[int], grader: Grader) -> None:
    assert grader.classes(answers) == expected
    draw = random.Random(0)
    for _ in range(5):
        order = draw.sample(range(len(answers)), len(answers))
        found = grader.classes([answers[i] for i in order])
        pairs = {(expected[i], number) for i, number in zip(order, found, strict=True)}
        assert len(pairs) == len(set(expected)) == len({*found})


def test_classes_of_many_answers_take_few_comparisons(grader: Grader, submitted: list[tuple[str, ...]]) -> None:
    """24 sums that only sympy could tell apart: at most 64 comparisons, not 276; for plain expressions, none."""
    assert grader.classes([str(i % 500) for i in range(1000)]) == [i % 500 for i in range(1000)]
    assert len(set(grader.classes([rf"{i}\sqrt{{{i + 2}}}+\pi" for i in range(1, 65)]))) == 64
    assert not submitted
    grader.classes([rf"\sum_{{k=1}}^{{n}} (k^2+{i})" for i in range(24)])
    assert 0 < len(submitted) <= 64


def test_closing_ends_the_workers_and_grading_goes_on() -> None:
    grader = Grader("math", workers=1, deadline=20.0)
    for space in ("", " "):
        assert [one.verdict for one in grader.grade(boxed((HALF, r"\frac{1}{\sqrt{2}}" + space)))] == ["correct"]
        assert worker_pids(grader)
        grader.close()
        assert worker_pids(grader) == []
    grader.close()


def test_an_error_in_the_comparison_is_counted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.grading.grader.SYMBOLIC", "math.sqrt")  # of a text: it raises
    with Grader("math") as grader:
        texts = (r"\frac{1}{\sqrt{2}}", r"\frac12\sqrt{2}", HALF)
        found = [(one.verdict, one.path) for one in grader.grade(boxed(*((text, HALF) for text in texts)))]
        assert found == [("incorrect", "raised"), ("incorrect", "raised"), ("correct", "string")]


@pytest.mark.parametrize(
    ("processes", "cpus_per_process", "expected"),
    [
        (None, None, 16),
        ("4", None, 4),  # processes of this machine, or of torchrun
        ("40", None, 1),
        ("4", "4", 4),  # a scheduler started them, not bound to CPUs of their own
        ("4", "16", 16),  # bound to 16 each
    ],
)
def test_the_cpus_of_a_process(monkeypatch, processes, cpus_per_process, expected):
    variables = {"LOCAL_WORLD_SIZE": processes, CPUS_PER_PROCESS: cpus_per_process}
    for name, value in variables.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    assert cores() == expected


# ---- arithmetic of countdown's answers: exact, bounded, and nothing but + - * / on whole numbers


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("96 - 36 + 5*11", 115, [96, 36, 5, 11]), ("2*(3+4)/7", 2, [2, 3, 4, 7]), ("1/3/2", Fraction(1, 6), [1, 3, 2]),
        ("10 - 3 - 2", 5, [10, 3, 2]), ("-(2 - 5) * -4", -12, [2, 5, 4]), ("007", 7, [7]),
        ("\t(1\n+ 2) ", 3, [1, 2]), ("(" * 90 + "5" + ")" * 90, 5, [5]), ("-" * 199 + "5", -5, [5]),
    ],
)  # fmt: skip
def test_the_value_of_arithmetic(text: str, value: Fraction, numbers: list[int]) -> None:
    assert value_and_numbers(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 2", "1 +", "*1", "+1", "(1", "1)", "()", "2(3)", "(2)3", "2**3", "7//2", "1.5", "1,5", "2^3", "3!",
     "1e3", "1_0", "x", "4 = 4", "1/0", "1/(2-2)", "٣", "９", "−1", "5" * 13, "1" + "+1" * 100, "__import__('os')",
     "1\0", "2 1/3", "(+1)", "2*+3"],
)  # fmt: skip
def test_nothing_else_has_a_value(text: str) -> None:
    assert value_and_numbers(text) is None


COUNTDOWN = {"task": "countdown", "options": {}, "metadata": {"numbers": [2, 3, 3, 7], "target": 20}}
PUZZLE24 = {"task": "puzzle24", "options": {}, "metadata": {"numbers": [3, 3, 8, 8]}}


@pytest.mark.parametrize(
    ("task", "right", "wrong"),
    [
        (COUNTDOWN, ["3*7 - 3 + 2", "2 + 7*3 - 3"],
         ["2*3+2*7", "(3*7)-(2-3/3)", "20", "3*7 - 3 + 2 = 20", "3*7 - 3 + 2 + 0", "37 - 3 - 2", "7*3 - 2/3 - 1/3"]),
        (PUZZLE24, ["8/(3-8/3)"], ["8*3 + 3/8", "4*6"]),  # the library cuts 24.375 to 24
    ],
)  # fmt: skip
def test_arithmetic_takes_each_number_once_and_comes_to_the_target(task, right, wrong):
    assert [score(answer, task) for answer in right + wrong] == [1] * len(right) + [0] * len(wrong)
