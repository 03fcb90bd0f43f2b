"""The grader's contract: order, streaming, laziness, the cache, counters, classes."""

import importlib
import itertools
import random
from collections.abc import Iterator

import pytest

from topr_exp.grading import Grader
from topr_exp.grading.grader import cores
from topr_exp.types import TOPRError

HALF = r"\frac{\sqrt{2}}{2}"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader("math", workers=2, deadline=20.0) as grader:
        yield grader


def test_plain_numbers_start_no_process() -> None:
    with Grader("gsm8k") as grader:
        completions = [
            ("The answer is 5.", "5"),
            ("The answer is 1,000.0", "1000"),
            ("The answer is 1/2.", "0.25"),
            ("", "1"),
        ]
        outcomes = list(grader.grade(completions))
        assert [o.verdict for o in outcomes] == ["correct", "correct", "incorrect", "invalid"]
        assert [o.path for o in outcomes] == ["string", "rational", "rational", "none"]
        assert grader.worker_pids() == []
        assert grader.counters["correct"] == 2
        grader.start()
        assert len(grader.worker_pids()) == 1 + grader.workers


def test_order_is_kept_whatever_takes_longer(grader: Grader) -> None:
    draw = random.Random(1)
    pairs = []
    for i in range(300):
        form = draw.choice([r"\boxed{%d}", r"\boxed{%d.0}", r"\boxed{%d+\pi-\pi}", "%d"])
        pairs.append((form % i, str(i)))
    outcomes = list(grader.grade(pairs))
    assert [o.verdict for o in outcomes] == ["correct" if "boxed" in text else "invalid" for text, _ in pairs]
    assert [o.answer for o in outcomes] == [text[7:-1] if "boxed" in text else None for text, _ in pairs]


def test_streaming_reads_only_so_far_ahead(grader: Grader) -> None:
    read = 0

    def endless() -> Iterator[tuple[str, str]]:
        nonlocal read
        for i in itertools.count():
            read += 1
            yield rf"\boxed{{{i}+\pi}}", rf"\pi+{i}"

    outcomes = grader.grade(endless())
    assert all(next(outcomes).verdict == "correct" for _ in range(5))
    assert read < 300
    outcomes.close()


def test_a_decided_outcome_does_not_wait_for_the_next_pair(grader: Grader) -> None:
    def source() -> Iterator[tuple[str, str] | None]:
        yield r"\boxed{5}", "5"
        assert seen == ["correct"]
        yield rf"\boxed{{{HALF}}}", r"\frac{1}{\sqrt{2}}"
        yield None  # nothing more for now
        assert seen == ["correct", "correct"]
        yield r"\boxed{6}", "5"

    seen: list[str] = []
    for outcome in grader.grade(source()):
        seen.append(outcome.verdict)
    assert seen == ["correct", "correct", "incorrect"]


def test_identical_work_is_done_once() -> None:
    with Grader("math", workers=1, deadline=20.0) as grader:
        pair = (rf"\boxed{{{HALF}+7}}", r"7+\frac{1}{\sqrt{2}}")
        submitted = []
        pool = grader._pool
        submit = pool.submit
        pool.submit = lambda *arguments: submitted.append(arguments) or submit(*arguments)  # type: ignore
        assert [o.verdict for o in grader.grade([pair] * 50)] == ["correct"] * 50
        assert [o.path for o in grader.grade([pair] * 50)] == ["symbolic"] * 50
        assert len(submitted) == 1


def test_counters_tell_what_became_of_work() -> None:
    with Grader("math", workers=1, deadline=0.3) as grader:
        list(
            grader.grade(
                [(r"\boxed{9^{9^{9^{9}}}}", r"\pi"), (r"\boxed{1}", "1"), ("", "1"), (r"\boxed{0.5}", r"\frac12")]
            )
        )
        assert grader.counters == {
            "timeout": 1, "string": 1, "none": 1, "rational": 1, "correct": 2, "incorrect": 1, "invalid": 1,
        }  # fmt: skip


def test_classes(grader: Grader) -> None:
    answers = [
        "0.5",
        None,
        r"\frac12",
        "1",
        HALF,
        r"\frac{1}{\sqrt 2}",
        "x=1",
        "50\\%",
        "50",
        r"\text{Even}",
        "even",
        "1 ",
    ]
    assert grader.classes(answers) == [0, -1, 0, 1, 2, 2, 1, 3, 3, 4, 4, 1]
    assert grader.classes([]) == []
    assert grader.classes([None, None]) == [-1, -1]


def test_classes_do_not_depend_on_order(grader: Grader) -> None:
    answers = ["1,2", "2,1", r"\{1,2\}", "(1,2)", r"\sqrt{8}", r"2\sqrt2", "2.8284", "x^2-1", "(x-1)(x+1)", "7", "7.0"]
    expected = partition(answers, grader.classes(answers))
    draw = random.Random(0)
    for _ in range(5):
        draw.shuffle(answers)
        assert partition(answers, grader.classes(answers)) == expected


def partition(answers: list[str], classes: list[int]) -> set[frozenset[str]]:
    return {frozenset(a for a, c in zip(answers, classes, strict=True) if c == number) for number in set(classes)}


def test_classes_of_many_answers_take_few_comparisons() -> None:
    """24 sums that only sympy could tell apart: at most 64 comparisons, not 276; for plain expressions, none."""
    with Grader("math", workers=2, deadline=20.0) as grader:
        submitted = 0
        pool = grader._pool
        submit = pool.submit

        def counting(*arguments: str) -> object:
            nonlocal submitted
            submitted += 1
            return submit(*arguments)

        pool.submit = counting  # type: ignore[method-assign,assignment]
        assert grader.classes([str(i % 500) for i in range(1000)]) == [i % 500 for i in range(1000)]
        assert len(set(grader.classes([rf"{i}\sqrt{{{i + 2}}}+\pi" for i in range(1, 65)]))) == 64
        assert submitted == 0
        grader.classes([rf"\sum_{{k=1}}^{{n}} (k^2+{i})" for i in range(24)])
        assert 0 < submitted <= 64


def test_closing_ends_the_workers_and_grading_goes_on() -> None:
    grader = Grader("math", workers=1, deadline=20.0)
    pair = (rf"\boxed{{{HALF}}}", r"\frac{1}{\sqrt{2}}")
    assert [o.verdict for o in grader.grade([pair])] == ["correct"]
    grader.close()
    assert grader.worker_pids() == []
    assert [o.verdict for o in grader.grade([(pair[0], pair[1] + " ")])] == ["correct"]
    grader.close()
    grader.close()


def test_work_that_is_open_when_the_workers_are_closed_fails_in_one_line() -> None:
    with Grader("math", workers=1, deadline=60.0) as grader:
        pool = grader._pool
        answers = [pool.submit("9^{9^{9^{9}}}", rf"{i}+\pi") for i in range(3)]
        grader.close()
        assert [answer.result() for answer in answers] == [("failed", "the grading pool is closed")] * 3
        with pytest.raises(TOPRError, match="the grading pool is closed"):
            pool.submit("x", "y")


@pytest.mark.parametrize("kind", ["gsm8k", "math"])
def test_golds_of_the_generated_problems_equal_themselves(kind: str, grader: Grader) -> None:
    generate = importlib.import_module(f"topr_exp.data.embedded_{kind}").generate
    golds = [problem.answer for problem in generate("test", 60, 0)]
    outcomes = list(grader.grade((rf"so \boxed{{ {gold} }}.", gold) for gold in golds))
    assert {outcome.verdict for outcome in outcomes} == {"correct"}


def test_an_error_in_the_comparison_is_counted_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topr_exp.grading.grader.SYMBOLIC", "tests.grading.own_graders:raising")
    with Grader("math") as grader:
        outcomes = list(
            grader.grade([(rf"\boxed{{{text}}}", HALF) for text in (r"\frac{1}{\sqrt{2}}", r"\frac12\sqrt{2}", HALF)])
        )
        assert [(each.verdict, each.path) for each in outcomes] == [
            ("incorrect", "raised"),
            ("incorrect", "raised"),
            ("correct", "string"),
        ]
        assert grader.counters["raised"] == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 16),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 4),  # processes of this machine, or of torchrun
        ({"WORLD_SIZE": "40", "LOCAL_WORLD_SIZE": "40"}, 1),
        # Four tasks of Slurm: not bound to CPUs of their own, and bound to 16 each.
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "4"}, 4),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "16"}, 16),
        # One task of Slurm's that torchrun divides.
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS": "1", "SLURM_CPUS_PER_TASK": "16"}, 4),
    ],
    ids=str,
)
def test_the_cpus_of_a_process(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: int) -> None:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(16)))
    assert cores() == expected
