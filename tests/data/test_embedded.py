"""The embedded problems: distinct, split for good, and with the gold answers that an independent reader finds."""

from __future__ import annotations

import random
import re
from fractions import Fraction

import pytest
import sympy

from topr_exp.data import embedded_gsm8k, embedded_math
from topr_exp.data.embedded import SPLITS, Calc, draw_tasks, split_of
from topr_exp.types import Problem, TOPRError

GENERATORS = {"gsm8k": embedded_gsm8k, "math": embedded_math}
GOLDEN_GSM8K = (
    "gsm8k/embedded/train/92cf3864b20f2fe7",
    "Mia has 40 coins. Bea has 4 more than Mia. How many coins does Bea have now?",
    "44",
)
GOLDEN_MATH = ("math/embedded/train/dee86cf54a986238", "Find the midpoint of $(6,0)$ and $(10,4)$.", "(8,2)")
WORDS = {"twice": 2, "three times": 3, "four times": 4, "five times": 5}


@pytest.mark.parametrize("name", GENERATORS)
def test_there_are_20000_distinct_training_problems_apart_from_the_other_splits(name: str) -> None:
    generate = GENERATORS[name].generate
    train = generate("train", 20_000, 0)
    questions = {problem.question for problem in train}
    assert len(questions) == len({problem.id for problem in train}) == 20_000
    for seed in (0, 7):
        for split in ("test", "pretrain"):
            others = {problem.question for problem in generate(split, 3000, seed)}
            assert len(others) == 3000
            assert not others & questions
            assert {split_of(question) for question in others} == {split}


@pytest.mark.parametrize("name", GENERATORS)
def test_problems_depend_on_the_seed_alone(name: str) -> None:
    generate = GENERATORS[name].generate
    assert generate("train", 50, 3) == generate("train", 50, 3)
    assert generate("train", 50, 3) == generate("train", 80, 3)[:50]
    assert generate("train", 50, 3) != generate("train", 50, 4)
    ids = {problem.question: problem.id for problem in generate("train", 2000, 3)}
    for problem in generate("train", 2000, 4):
        assert ids.get(problem.question, problem.id) == problem.id


def test_the_first_problems_stay_what_they_are() -> None:
    # Runs and the shipped models rest on them: a change of the generators must be seen.
    first = embedded_gsm8k.generate("train", 1, 0)[0]
    assert (first.id, first.question, first.answer) == GOLDEN_GSM8K
    first = embedded_math.generate("train", 1, 0)[0]
    assert (first.id, first.question, first.answer) == GOLDEN_MATH


@pytest.mark.parametrize("name", GENERATORS)
def test_all_levels_and_splits_occur(name: str) -> None:
    problems = GENERATORS[name].generate("train", 2000, 0)
    assert {problem.level for problem in problems} == {1, 2, 3, 4, 5}
    assert sorted(tenth for tenths in SPLITS.values() for tenth in tenths) == list(range(10))


def test_math_problems_have_the_subjects_of_math() -> None:
    subjects = {problem.subject for problem in embedded_math.generate("train", 2000, 0)}
    assert subjects == {
        "Algebra",
        "Counting & Probability",
        "Geometry",
        "Intermediate Algebra",
        "Number Theory",
        "Prealgebra",
        "Precalculus",
    }


@pytest.mark.parametrize("name", GENERATORS)
def test_more_problems_than_there_are_is_an_error(name: str) -> None:
    with pytest.raises(TOPRError, match="were asked for"):
        draw_tasks(lambda rng: GENERATORS[name].draw(type(rng)(0)), "train", 5, 0)


def test_gsm8k_golds_are_what_the_story_says() -> None:
    for problem in embedded_gsm8k.generate("test", 3000, 1) + embedded_gsm8k.generate("train", 3000, 1):
        assert problem.answer == str(read_story(problem.question)), problem.question


def test_gsm8k_steps_are_right_and_end_in_the_answer() -> None:
    for task in draw_tasks(embedded_gsm8k.draw, "train", 1000, 2):
        steps, answer = task.work(Calc())
        equations = steps.strip().rstrip(".").split(". ")
        assert {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}[task.level] == len(equations)
        for equation in equations:
            left, right = equation.split("=")
            a, op, b = re.fullmatch(r"(\d+)([-+*/])(\d+)", left).groups()
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": Fraction(int(a), int(b))}
            assert value[op] == int(right)
        assert equations[-1].endswith(f"={answer}")


def test_math_golds_are_what_an_independent_solver_finds() -> None:
    kinds = set()
    for problem in embedded_math.generate("test", 1000, 1) + embedded_math.generate("train", 1000, 1):
        kinds.add(check_math(problem))
    assert len(kinds) == len(embedded_math.KINDS)


def test_a_slip_changes_exactly_one_result() -> None:
    for task in draw_tasks(embedded_gsm8k.draw, "train", 300, 5):
        exact = Calc()
        right, _ = task.work(exact)
        wrong, _ = task.work(Calc(exact.calls - 1, random.Random(0)))
        assert right != wrong
        assert right.split("=")[:-1] == wrong.split("=")[:-1]


def read_story(question: str) -> int:
    """The answer of a story, read sentence by sentence."""
    sentences = re.findall(r"[^.?]+[.?]", question)
    counts: dict[str, int] = {}
    who = other = ""
    for sentence in map(str.strip, sentences):
        numbers = [int(number) for number in re.findall(r"\d+", sentence)]
        if re.search(r"years old|also has|costs|miles", sentence):
            continue
        compared = re.fullmatch(r"(\w+) has (.+?) as many as (\w+)\.|(\w+) has \d+ (more|fewer) than (\w+)\.", sentence)
        if compared:
            who, other = compared[1] or compared[4], compared[3] or compared[6]
            if compared[2]:
                counts[who] = counts[other] * WORDS[compared[2]]
            else:
                counts[who] = counts[other] + numbers[0] * (1 if compared[5] == "more" else -1)
        elif re.search(r"buys|finds|brings", sentence):
            counts[who] += numbers[0]
        elif re.search(r"loses|sells|takes", sentence):
            counts[who] -= numbers[0]
        elif "equal boxes" in sentence:
            counts[who] = int(Fraction(counts[who], numbers[0]))
        elif "together" in sentence:
            return counts[who] + counts[other]
        elif sentence.startswith("How many"):
            assert who in sentence or "each box" in sentence
            return counts[who]
        else:
            opening = re.fullmatch(r"(\w+) has (\d+) \w+\.", sentence)
            assert opening, sentence
            who = opening[1]
            counts[who] = int(opening[2])
    raise AssertionError(question)


def expression(latex: str) -> sympy.Expr:
    """A sympy value of the small LaTeX that the generator writes."""
    text = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"Rational(\1,\2)", latex.replace(r"\cdot", "*"))
    text = re.sub(r"\\sqrt\{([\d*]+)\}", r"sqrt(\1)", text).replace("^", "**")
    text = re.sub(r"(?<=[\d)])(?=[a-zA-Z(])", "*", text)
    return sympy.sympify(text, {"i": sympy.I})


def check_math(problem: Problem) -> str:
    """Assert the gold of one task by its own means; returns the kind that it was."""
    question, gold = problem.question, problem.answer
    if match := re.fullmatch(r"(Compute|Simplify|Expand|Multiply out) \$(.+)\$\.", question):
        assert sympy.expand(expression(match[2]) - expression(gold)) == 0, question
        assert_canonical(gold)
        marks = {r"\cdot": "product", r"\sqrt": "root", "i)": "complex", ")(": "expand"}
        return next((kind for mark, kind in marks.items() if mark in match[2]), "sum")
    if match := re.fullmatch(r"Solve \$(.+)\$\. Give the answer as an interval\.", question):
        relation = match[1].replace(r"\le", "<=").replace(r"\ge", ">=")
        kind = "double" if len(re.findall("[<>]", relation)) == 2 else "linear"
        code = re.sub(r"(\d)([xyzt])", r"\1*\2", relation)
        variable = re.search("[xyzt]", code)[0]
        low, high = gold[1:-1].split(",")
        for twice in range(-60, 61):
            value = Fraction(twice, 2)
            above = low == r"-\infty" or value > int(low) or (value == int(low) and gold[0] == "[")
            below = high == r"\infty" or value < int(high) or (value == int(high) and gold[-1] == "]")
            assert eval(code, {variable: value}) == (above and below), question
        return kind
    if match := re.fullmatch(r"If \$(\d?)(\w)\+(\w) = (\d+)\$ and \$.-. = (-?\d+)\$, find .+", question):
        x, y = map(int, gold.strip("()").split(","))
        assert int(match[1] or 1) * x + y == int(match[4])
        assert x - y == int(match[5])
        return "system"
    if match := re.fullmatch(r"Solve \$(.+) = 0\$\. List the roots from low to high\.", question):
        roots = sympy.solve(expression(match[1]))
        assert ",".join(map(str, sorted(roots))) == gold, question
        return "roots"
    if "midpoint" in question:
        a, b, c, d = map(int, re.findall(r"-?\d+", question))
        assert gold == f"({Fraction(a + c, 2)},{Fraction(b + d, 2)})"
        return "midpoint"
    if "hypotenuse" in question:
        a, b = map(int, re.findall(r"\d+", question))
        assert sympy.sqrt(a * a + b * b) == expression(gold)
        return "hypotenuse"
    if "probability" in question:
        counts = {colour: int(n) for n, colour in re.findall(r"(\d+) (\w+)", question)}
        wanted = Fraction(counts[re.search(r"of (\w+)\?", question)[1]], sum(counts.values()))
        assert gold == rf"\frac{{{wanted.numerator}}}{{{wanted.denominator}}}"
        return "probability"
    a, b = map(int, re.fullmatch(r"Find the remainder when (\d+) is divided by (\d+)\.", question).groups())
    assert gold == str(a % b)
    return "remainder"


def assert_canonical(gold: str) -> None:
    """Fractions are reduced, roots are without squares."""
    for numerator, denominator in re.findall(r"\\frac\{(\d+)\}\{(\d+)\}", gold):
        assert Fraction(int(numerator), int(denominator)).denominator == int(denominator)
    for radicand in re.findall(r"\\sqrt\{(\d+)\}", gold):
        assert all(int(radicand) % (k * k) for k in range(2, 11))
