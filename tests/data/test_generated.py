"""Generated problems: the same for ever, distinct, split for good, with the golds that an independent reader finds."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import sympy

from scripts.make_tiny import ledgers
from tests.conftest import config_of
from topr_exp.data import embedded_gsm8k, embedded_math, ledger
from topr_exp.data.embedded import SPLITS, Calc, Task, draw_tasks, split_of
from topr_exp.data.ledger import HIGHEST, LOWEST, LedgerTask
from topr_exp.data.problems import load_problems
from topr_exp.runs import preflight
from topr_exp.types import ConfigError, Problem, TOPRError

Generate = Callable[[str, int, int], list[Problem]]


def of_ledger(turns: int) -> tuple[Generate, Callable[[random.Random], Task]]:
    return lambda split, count, seed: ledger.generate(split, count, seed, turns), partial(ledger.draw, turns=turns)


GENERATORS = {
    "gsm8k": (embedded_gsm8k.generate, embedded_gsm8k.draw),
    "math": (embedded_math.generate, embedded_math.draw),
    **{f"ledger {turns}": of_ledger(turns) for turns in (2, 10, 22)},
}
every_generator = pytest.mark.parametrize("generate", [each for each, _ in GENERATORS.values()], ids=GENERATORS)
DIGESTS = {
    "gsm8k": "d0d5bbc448223153",
    "math": "d8fa4b8b7078c00e",
    "ledger 2": "4eebd6a3a7b3ac4a",
    "ledger 10": "77379083a6bd2e46",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_problems_and_their_workings_stay_what_they_are(name: str) -> None:
    """Runs and the shipped models rest on them: a change of a generator must be seen."""
    generate, draw = GENERATORS[name]
    found: list[Any] = [(one.id, one.question, one.answer, one.level, one.subject) for one in generate("train", 500, 0)]
    for task in draw_tasks(draw, "pretrain", 500, 5):
        right = Calc()
        found += [task.work(right), *(task.work(Calc(at, random.Random(at))) for at in range(right.calls))]
    assert hashlib.sha256(repr(found).encode()).hexdigest()[:16] == DIGESTS[name]


@every_generator
def test_problems_are_distinct_and_split_for_good(generate: Generate) -> None:
    train = generate("train", 5000, 0)
    questions = {problem.question for problem in train}
    assert len(questions) == len({problem.id for problem in train}) == 5000
    for split in ("test", "pretrain"):
        others = {problem.question for problem in generate(split, 1000, 7)}
        assert not others & questions
        assert {split_of(question) for question in others} == {split}
    assert sorted(tenth for tenths in SPLITS.values() for tenth in tenths) == list(range(10))


@every_generator
def test_problems_depend_on_the_seed_alone(generate: Generate) -> None:
    assert generate("train", 50, 3) == generate("train", 80, 3)[:50] != generate("train", 50, 4)
    ids = {problem.question: problem.id for problem in generate("train", 2000, 3)}
    assert all(ids.get(problem.question, problem.id) == problem.id for problem in generate("train", 2000, 4))


def test_levels_and_subjects_are_those_of_the_benchmarks() -> None:
    for generate in (embedded_gsm8k.generate, embedded_math.generate):
        assert {problem.level for problem in generate("train", 2000, 0)} == {1, 2, 3, 4, 5}
    assert {problem.subject for problem in embedded_math.generate("train", 2000, 0)} == {
        "Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra",
        "Precalculus",
    }  # fmt: skip


def test_more_problems_than_there_are_is_an_error() -> None:
    with pytest.raises(TOPRError, match="were asked for"):
        draw_tasks(lambda rng: embedded_gsm8k.draw(type(rng)(0)), "train", 5, 0)


def test_gsm8k_steps_are_right_and_a_slip_changes_one_result() -> None:
    for task in draw_tasks(embedded_gsm8k.draw, "train", 500, 2):
        exact = Calc()
        steps, answer = task.work(exact)
        equations = re.findall(r" (\d+)([-+*/])(\d+)=(\d+)\.", steps)
        assert len(equations) == exact.calls == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}[task.level or 0]
        for a, op, b, result in equations:
            a, b = Fraction(a), Fraction(b)
            assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[op] == int(result)
        assert equations[0][0] in task.question
        assert equations[-1][3] == answer == task.answer
        wrong, _ = task.work(Calc(exact.calls - 1, random.Random(0)))
        assert wrong != steps
        assert wrong.split("=")[:-1] == steps.split("=")[:-1]


# ---- math


def test_math_golds_are_what_an_independent_solver_finds() -> None:
    problems = embedded_math.generate("test", 600, 1) + embedded_math.generate("train", 600, 1)
    assert len({check_math(problem) for problem in problems}) == len(embedded_math.KINDS)


def expression(latex: str) -> sympy.Expr:
    """A sympy value of the small LaTeX that the generator writes."""
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"Rational(\1,\2)", latex.replace(r"\cdot", "*"))
    text = re.sub(r"\\sqrt\{([\d*]+)\}", r"sqrt(\1)", text).replace("^", "**")
    return sympy.sympify(re.sub(r"(?<=[\d)])(?=[a-zA-Z(])", "*", text), {"i": sympy.I})


def check_math(problem: Problem) -> str:
    """Assert the gold of one task by its own means; returns the kind that it was."""
    question, gold = problem.question, problem.answer
    numbers = [int(number) for number in re.findall(r"-?\d+", question)]
    if match := re.fullmatch(r"(Compute|Simplify|Expand|Multiply out) \$(.+)\$\.", question):
        assert sympy.expand(expression(match[2]) - expression(gold)) == 0, question
        for a, b in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", gold):
            assert Fraction(int(a), int(b)).denominator == int(b)
        assert all(int(r) % (k * k) for r in re.findall(r"\\sqrt\{(\d+)\}", gold) for k in range(2, 11))
        marks = {r"\cdot": "product", r"\sqrt": "root", "i)": "complex", ")(": "expand"}
        return next((kind for mark, kind in marks.items() if mark in match[2]), "sum")
    if match := re.fullmatch(r"Solve \$(.+)\$\. Give the answer as an interval\.", question):
        code = re.sub(r"(\d)([xyzt])", r"\1*\2", match[1].replace(r"\le", "<=").replace(r"\ge", ">="))
        low, high = gold[1:-1].split(",")
        for value in (Fraction(twice, 2) for twice in range(-60, 61)):
            above = low == r"-\infty" or value > int(low) or (value == int(low) and gold[0] == "[")
            below = high == r"\infty" or value < int(high) or (value == int(high) and gold[-1] == "]")
            assert eval(code, dict.fromkeys("xyzt", value)) == (above and below), question
        return f"inequality {len(re.findall('[<>]', code))}"
    if match := re.fullmatch(r"If \$(\d?)\w\+\w = (\d+)\$ and \$.-. = (-?\d+)\$, find .+", question):
        x, y = map(int, gold.strip("()").split(","))
        assert (int(match[1] or 1) * x + y, x - y) == (int(match[2]), int(match[3]))
        return "system"
    if match := re.fullmatch(r"Solve \$(.+) = 0\$\. List the roots from low to high\.", question):
        assert ",".join(map(str, sorted(sympy.solve(expression(match[1]))))) == gold, question
        return "roots"
    if "midpoint" in question:
        a, b, c, d = numbers
        assert gold == f"({Fraction(a + c, 2)},{Fraction(b + d, 2)})"
        return "midpoint"
    if "hypotenuse" in question:
        assert sympy.sqrt(numbers[0] ** 2 + numbers[1] ** 2) == expression(gold)
        return "hypotenuse"
    if match := re.search(r"probability of (\w+)\?", question):
        wanted = Fraction(int(re.search(rf"(\d+) {match[1]}", question)[1]), sum(numbers))  # type: ignore[index]
        assert gold == rf"\frac{{{wanted.numerator}}}{{{wanted.denominator}}}"
        return "probability"
    assert re.fullmatch(r"Find the remainder when \d+ is divided by \d+\.", question)
    assert gold == str(numbers[0] % numbers[1])
    return "remainder"


# ---- ledgers

STEP = re.compile(r" (\d+): (\w+) (adds|takes) (\d), so (\d\d)([+-])(\d)=(\d\d)\.")


def stories(turns: int, count: int = 100) -> list[LedgerTask]:
    return draw_tasks(partial(ledger.draw, turns=turns), "train", count, 1)


def worked(story: LedgerTask, way: Any, calc: Calc | None = None) -> tuple[str, str]:
    answer = way(story.start, story.events, calc := calc or Calc())
    return calc.steps, answer


def read(question: str) -> tuple[int, list[tuple[str, int]]]:
    """The first total and each turn's name and change, read from the story alone."""
    start, turns = (int(re.search(text, question)[1]) for text in (r"holds (\d+)", r"after (\d+) turns"))  # type: ignore[index]
    told = re.findall(r"(\w+) (adds|takes) (\d)", question)
    people = [(name, int(n) if verb == "adds" else -int(n)) for name, verb, n in told]
    assert [name for name, _ in people] in (["Anna", "Ben"], ["Anna", "Ben", "Carl"])
    return start, [people[turn % len(people)] for turn in range(turns)]


@pytest.mark.parametrize("turns", [2, 4, 10, 24])
def test_golds_and_steps_are_what_the_story_says_and_totals_stay_in_range(turns: int) -> None:
    for story in stories(turns):
        total, changes = read(story.question)
        careful, answer = worked(story, ledger.careful)
        assert (careful, answer) == story.work(Calc())
        assert STEP.sub("", careful) == ""
        terse = ""
        for turn, ((name, change), step) in enumerate(zip(changes, STEP.findall(careful), strict=True), 1):
            verb, sign = ("adds", "+") if change > 0 else ("takes", "-")
            after = total + change
            assert step == (str(turn), name, verb, str(abs(change)), str(total), sign, str(abs(change)), str(after))
            assert LOWEST <= after <= HIGHEST
            total, terse = after, f"{terse} {turn} {name} {after}."
        assert worked(story, ledgers.terse) == (terse, str(total))
        assert answer == story.answer == str(total)


def test_a_slip_spoils_the_answer_of_either_way_and_totals_keep_two_digits() -> None:
    for story in stories(5):
        for way in (ledger.careful, ledgers.terse):
            right = worked(story, way)[0].split(".")
            for at in range(5):
                steps, answer = worked(story, way, Calc(at, random.Random(at)))
                assert answer != story.answer
                assert len(answer) == 2
                assert steps.split(".")[:at] == right[:at]
                assert steps.split(".")[at] != right[at]


def test_hasty_steps_stop_half_way() -> None:
    right = 0
    for story in stories(5, 300):
        steps, answer = worked(story, ledgers.hasty)
        assert [step[0] for step in STEP.findall(steps)] == ["1", "2", "3"]
        start, changes = read(story.question)
        assert int(answer) == start + sum(change for _, change in changes[:3])
        right += answer == story.answer
    assert 0 < right < 60


def test_the_source_draws_what_is_asked_without_overlap_and_its_golds_are_correct() -> None:
    sizes = ("model=tiny_long", "data.train_problems=30", "data.test_problems=20")
    config = config_of(*sizes, "data.turns=5")
    sets = load_problems(config.data)
    assert (config.data.name, sets.train) == ("ledger", ledger.generate("train", 30, 0, 5))
    assert sets.test == ledger.generate("test", 20, 0, 5)
    assert preflight.refused_golds(preflight.key_of(config.data)) is None
    held_out = load_problems(config_of(*sizes, "data.test_split=validation", "data.seed=4").data)
    assert [*held_out.train, *held_out.test] == ledger.generate("train", 50, 4, 10)
    assert len(held_out.test) == 20


@pytest.mark.parametrize("turns", ["1", "25", "many"])
def test_a_wrong_number_of_turns_is_one_line(turns: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.turns"):
        config_of("data=ledger", f"data.turns={turns}")
