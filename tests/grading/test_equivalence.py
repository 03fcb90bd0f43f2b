"""Answers of completions and their equality: tables, documents, random texts, sympy's expressions."""

import operator
import random
import re
import time
from fractions import Fraction
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SHARED_DATA, document, each_row, lines_of, values_of
from tests.grading.cases import ANSWERS, CASES
from tests.grading.conftest import boxed, verdicts_on
from topr_exp.grading import Grader, extract, last_boxed, symbolic
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.expression import expression_tree, rational_value
from topr_exp.grading.extraction import why_invalid
from topr_exp.grading.latex import tokenize
from topr_exp.grading.real_domain import equal_in_all_regions
from topr_exp.grading.sample_points import certainly_different
from topr_exp.grading.surroundings import without_words

VERDICT_OF_SIGN = {"=": "correct", "≠": "incorrect"}


def documented(page, pattern):
    """The rows of a page's lists."""
    return re.findall(pattern, document(page))


@pytest.mark.parametrize("answer_format", ANSWERS)
def test_an_answer_is_read_by_the_conventions_of_its_format(answer_format):
    for completion, answer in ANSWERS[answer_format]:
        assert extract(completion, answer_format) == answer, completion
        if answer_format == "math":
            assert last_boxed(completion) == answer, completion


def test_documented_answers_are_read():
    rows = documented("graders.md", r"- `(.+?)`: `(.+?)` → `(.+?)`")

    assert len(rows) >= 6
    for answer_format, completion, answer in rows:
        assert extract(completion, answer_format) == answer


def test_equalities_hold_in_both_directions(grader):
    rows = documented("verdicts.md", r"- `(.+?)` ([=≠]) `(.+?)`")
    assert len(rows) >= 48
    rows += CASES["equalities"]["rows"]
    expected = {}
    for first, sign, second in rows:
        expected[boxed(first), second] = VERDICT_OF_SIGN[sign]
        expected[boxed(second), first] = VERDICT_OF_SIGN[sign]

    assert verdict_of_pair(grader, expected) == expected


def verdict_of_pair(grader, pairs):
    return dict(zip(pairs, verdicts_on(grader, pairs), strict=True))


@pytest.mark.parametrize("answer_format", CASES["verdicts"])
def test_units_and_words_cost_nothing_and_hedging_is_not_paid(answer_format):
    expected = {}
    for completion, gold, verdict in CASES["verdicts"][answer_format]:
        expected[completion, gold] = verdict

    with Grader(answer_format, workers=1, deadline=20.0) as grader:
        assert verdict_of_pair(grader, expected) == expected


READERS = {name: partial(extract, answer_format=name) for name in ANSWERS}
READERS["words behind a number"] = lambda text: without_words(f"5{text}")


@pytest.mark.parametrize("name", READERS)
def test_reading_an_answer_takes_linear_time(name):
    for unit in CASES["linear"]["units"]:
        completion = unit * (400_000 // len(unit))
        start = time.process_time()  # of this process alone: others may be at work
        READERS[name](completion)
        assert time.process_time() - start < 5, unit  # an idle machine needs half a second at most


# ---- labelled pairs and golds; these tests skip without the data


def shared_rows(name):
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set TOPR_SHARED_DATA)")
    return pd.DataFrame(lines_of(path))


def undisputed_rows(name):
    """Rows on which all conventions agree."""
    rows = shared_rows(name)
    return rows[rows["policy"].isna()]


@pytest.mark.extended
def test_labelled_answers_agree_in_98_percent_and_no_wrong_one_is_paid(grader):
    rows = undisputed_rows("grading/equivalence.jsonl")
    completions = rows["pred"].map(boxed)

    verdicts = verdicts_on(grader, zip(completions, rows["gold"], strict=True))

    is_paid = np.array(verdicts) == "correct"
    is_paid_wrongly = is_paid & ~rows["equal"]
    assert not is_paid_wrongly.any()
    assert (is_paid == rows["equal"]).mean() >= 0.985


@pytest.mark.extended
def test_labelled_completions_agree_in_98_percent_and_no_invalid_one_is_paid(grader):
    rows = undisputed_rows("grading/extraction.jsonl")
    assert set(rows["format"]) == {grader.name}

    verdicts = np.array(verdicts_on(grader, zip(rows["completion"], rows["gold"], strict=True)))

    verdicts_on_invalid = verdicts[rows["expected"] == "invalid"]
    assert "correct" not in verdicts_on_invalid
    assert (verdicts == rows["expected"]).mean() >= 0.985


# In math500 and train4500 also written so that more than the text's equality is at work
COMPLETIONS = r"""
gsm8k/train.jsonl | The answer is {}.
gsm8k/test.jsonl | The answer is {}.
math/math500.jsonl | \boxed{{{}}}
math/math500.jsonl | \boxed{{\; {} \,.}}
math/train4500.jsonl | \boxed{{\; {} \,.}}
"""


@each_row("name pattern", COMPLETIONS)
def test_every_gold_of_the_benchmarks_equals_itself(name, pattern):
    rows = shared_rows(name)
    solutions = rows["answer"] if "answer" in rows else rows["solution"].map(last_boxed)
    golds = solutions.str.rpartition("####")[2].str.strip()
    completions = golds.map(pattern.format)
    answer_format, _, _ = name.partition("/")

    with Grader(answer_format, workers=1) as grader:
        outcomes = list(grader.grade(zip(completions, golds, strict=True)))

    assert set(values_of(outcomes, "verdict")) == {"correct"}
    assert "symbolic" not in values_of(outcomes, "path")


# ---- random texts and numbers

PIECES = [*CASES["random"]["pieces"], "\ud800"]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join)
FUZZ = settings(max_examples=250)


@FUZZ
@given(TEXTS)
def test_any_text_has_an_answer_or_a_reason_for_having_none(text):
    for answer_format in ("math", "gsm8k", "lenient", "final"):
        answer = extract(text, answer_format)
        if answer is None:
            assert why_invalid(text, answer_format)
        else:
            assert answer == answer.strip() != ""
    plain = re.sub(r"[\\{}]", "", text).strip()
    assert last_boxed(rf"so {boxed(plain)} it is") == (plain or None)


@FUZZ
@given(TEXTS, TEXTS)
def test_the_quick_comparison_of_any_texts_is_symmetric(first, second):
    assert compare_quickly(first, f"  {first}\n")[0] is True
    assert compare_quickly(first, second)[0] == compare_quickly(second, first)[0]


@FUZZ
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_rational_numbers_are_compared_exactly(first, second):
    decimal = f"{first.numerator}.{first.denominator}"
    assert rational_value(tokenize(decimal)) == Fraction(decimal)
    for form in (f"{first}", rf"\frac{{{first.numerator}}}{{{first.denominator}}}"):
        assert rational_value(tokenize(form)) == first
        assert compare_quickly(form, str(second))[0] == (first == second)


# ---- sympy's equal and unequal expressions

X, Y = sympy.symbols("x y", real=True)
FRACTIONS = ("1/2", "2/3", "5/4", "7/9", "8/3")
ATOMS = [
    X,
    Y,
    sympy.pi,
    *map(sympy.Integer, range(1, 10)),
    *map(sympy.sqrt, range(2, 13)),
    *map(sympy.Rational, FRACTIONS),
]
OPERATIONS = (
    operator.add,
    operator.sub,
    operator.mul,
    lambda first, second: first / second if second != 0 else first,
    lambda first, _: first**2,
    lambda first, _: first**3,
    lambda first, _: sympy.sqrt(first**2 + 1),
)
FORMS = (sympy.expand, sympy.together, sympy.radsimp, lambda expression: expression)


def random_expression(rng, depth=3):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(ATOMS)
    first = random_expression(rng, depth - 1)
    second = random_expression(rng, depth - 1)
    operation = rng.choice(OPERATIONS)
    return operation(first, second)


def equal_expressions(count, seed):
    """Yield expressions, each with an equal one that is written otherwise."""
    rng = random.Random(seed)
    while count:
        expression = random_expression(rng)
        form = rng.choice(FORMS)(expression)
        if expression.is_finite is not False and expression.count_ops() < 40 and form.count_ops() < 80:
            count -= 1
            yield expression, form


def test_equal_expressions_are_recognised_and_never_told_apart():
    recognised = 0
    for expression, form in equal_expressions(100, seed=10):
        gold = sympy.latex(expression)
        answer = sympy.latex(form)
        is_equal, _ = compare_quickly(gold, answer)
        assert is_equal is not False, (gold, answer)
        recognised += is_equal or symbolic.equal(gold, answer)

    assert recognised >= 95


# The first equals the second from 1 to 2, from 2 on, ...
EQUAL_IN_A_PART = r"""
\sqrt{x-2\sqrt{x-1}} | 1-\sqrt{x-1}
\sqrt{x-2\sqrt{x-1}} | \sqrt{x-1}-1
\sqrt{x+2\sqrt{x-1}} | -1-\sqrt{x-1}
\sqrt[3]{x+1+3\sqrt[3]{x^2}+3\sqrt[3]{x}} | -1-\sqrt[3]{x}
\sqrt{(x-1)^2} | x-1
"""


def sympy_of(text):
    return symbolic.to_sympy(expression_tree(tokenize(text)))


@each_row("gold answer", EQUAL_IN_A_PART)
def test_no_proof_covers_a_part_of_the_domain(gold, answer):
    """Without sample points, which would tell the two apart before."""
    gold = sympy_of(gold)
    answer = sympy_of(answer)

    assert not equal_in_all_regions(gold, answer, lambda gap: gap == 0)
    assert not equal_in_all_regions(answer, gold, lambda gap: gap == 0)


def test_unequal_expressions_are_not_accepted():
    rng = random.Random(5)
    for expression, form in equal_expressions(100, seed=20):
        changed = rng.choice([form + 1, 2 * form, form * X, -form, form + sympy.Rational(1, 10**6)])
        if sympy.expand(changed - expression) == 0:
            continue
        gold = sympy.latex(expression)
        answer = sympy.latex(changed)
        is_equal, _ = compare_quickly(gold, answer)
        if is_equal is None:
            is_equal = symbolic.equal(gold, answer)
        assert is_equal is False, (gold, answer)


# A rounded product; a rounded imaginary part beside a branch cut; no value; too large; too small to tell from 0; a root
# that magnifies the error of its 0
ROUNDED = r"""
\sqrt{2}\sqrt{3} | \sqrt{6}
\sqrt{i^2} | i
1/(x-x) | 1
9^{9^9} | 1
e^{-1000} | 0
\sqrt[4]{3-2-1} | 0
"""


@each_row("first second", ROUNDED)
def test_no_difference_is_claimed_where_rounding_could_make_one(first, second):
    assert not certainly_different(tokenize(first), tokenize(second))
    assert not certainly_different(tokenize(second), tokenize(first))
