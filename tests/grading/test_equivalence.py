"""Answers out of text by every convention, in linear time; equality on random text and against sympy as an oracle."""

import random
import re
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, SHARED_DATA, lines_of
from tests.grading.cases import ANSWERS, VERDICTS
from tests.grading.conftest import worker_pids
from topr_exp.grading import Grader, extract, last_boxed, symbolic
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.expression import rational_value
from topr_exp.grading.extraction import why_invalid
from topr_exp.grading.latex import tokenize
from topr_exp.grading.sample_points import certainly_different, signed_points

DOCUMENT = (ROOT / "docs" / "graders.md").read_text(encoding="utf-8")
EXTRACTED = re.findall(r"- `(.+?)`: `(.+?)` → `(.+?)`", DOCUMENT)
SECTIONS = re.split(r"^## (.+)$", (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
CONVENTIONS = {
    title: re.findall(r"- `(.+?)` ([=≠]) `(.+?)`", body)
    for title, body in zip(SECTIONS[1::2], SECTIONS[2::2], strict=True)
}


@pytest.mark.parametrize(("format", "text", "answer"), [(each, *case) for each in ANSWERS for case in ANSWERS[each]])
def test_answer(format: str, text: str, answer: str | None) -> None:
    assert extract(text, format) == answer
    if format == "math":
        assert last_boxed(text) == answer


def test_answers_of_the_document() -> None:
    assert (len(EXTRACTED) >= 9, len(CONVENTIONS) >= 12) == (True, True)
    assert [extract(completion, format) for format, completion, _ in EXTRACTED] == [answer for *_, answer in EXTRACTED]


@pytest.mark.parametrize("title", CONVENTIONS)
def test_convention(title: str, grader: Grader) -> None:
    pairs, expected = [], []
    for gold, sign, answer in CONVENTIONS[title]:
        pairs += [(rf"\boxed{{{answer}}}", gold), (rf"\boxed{{{gold}}}", answer)]
        expected += ["correct" if sign == "=" else "incorrect"] * 2
    assert len(pairs) >= 4
    verdicts = [outcome.verdict for outcome in grader.grade(pairs)]
    assert not [pair for pair, got, want in zip(pairs, verdicts, expected, strict=True) if got != want]


@pytest.mark.parametrize("format", VERDICTS)
def test_hedging_is_not_paid(format: str) -> None:
    with Grader(format, workers=1, deadline=20.0) as grader:
        found = grader.grade((completion, gold) for completion, gold, _ in VERDICTS[format])
        got = [(*case[:2], one.verdict) for case, one in zip(VERDICTS[format], found, strict=True)]
    assert got == VERDICTS[format]


@pytest.mark.parametrize("truth", ["correct", "incorrect"])
def test_a_verification_is_correct_when_it_tells_the_truth_and_invalid_without_a_verdict(truth: str) -> None:
    with Grader("verdict", workers=1) as grader:
        outcomes = list(grader.grade((text, truth) for text, _ in ANSWERS["verdict"]))
        assert not worker_pids(grader)  # nothing here is left to workers
    expected = {None: "invalid", truth: "correct"}
    assert [one.verdict for one in outcomes] == [expected.get(said, "incorrect") for _, said in ANSWERS["verdict"]]


UNITS = (
    r"\boxed{", r"\boxed ", r"\boxed", "{", "}", "\n", "The answer is ", "The answer is 5. ", "the final answer is ",
    "the ", "The answer is 5, which ", r"\boxed{5 \text{ ", "</think>", r"\boxed{1} and ", "$", r"\[", "\nQ", " ", "\\",
    "Verdict: ", "verdict", "Verdict:\n", "Verdict: correct ", "Verdict: not ", "Verdict: **", "Verdict: \\boxed{",
)  # fmt: skip


@pytest.mark.parametrize("format", ANSWERS)
@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str, format: str) -> None:
    """A million characters of anything; a quadratic scanner would need hours."""
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()  # of this process alone: others may be at work
    extract(text, format)
    assert time.process_time() - start < 20  # an idle machine needs well under a second


# ---- labelled pairs of public graders' tests; skips without the data


def rows(name: str) -> list[dict[str, Any]]:
    """The JSON lines of a shared file; skips the test where it is absent."""
    path = SHARED_DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is absent (set TOPR_SHARED_DATA)")
    return lines_of(path)


@pytest.mark.extended
def test_agreement(grader: Grader) -> None:
    """At least 98.5 % where all conventions agree; not one wrong pair and no invalid completion is paid."""
    pairs = [row for row in rows("grading/equivalence.jsonl") if row["policy"] is None]
    verdicts = [one.verdict for one in grader.grade((rf"\boxed{{{row['pred']}}}", row["gold"]) for row in pairs)]
    found = [(verdict == "correct", row["equal"]) for verdict, row in zip(verdicts, pairs, strict=True)]
    assert (True, False) not in found
    assert sum(got == right for got, right in found) >= 0.985 * len(pairs)
    cases, found = [row for row in rows("grading/extraction.jsonl") if row["policy"] is None], []
    for format in sorted({row["format"] for row in cases}):
        part = [row for row in cases if row["format"] == format]
        with Grader(format, workers=2, deadline=20.0) as other:
            outcomes = other.grade((row["completion"], row["gold"]) for row in part)
            found += [(one.verdict, row["expected"]) for one, row in zip(outcomes, part, strict=True)]
    assert ("correct", "invalid") not in found
    assert sum(got == expected for got, expected in found) >= 0.985 * len(cases)


GOLDS = dict.fromkeys(
    ("gsm8k/train.jsonl", "gsm8k/test.jsonl"), lambda row: row["answer"].rpartition("####")[2].strip()
)
GOLDS["math/math500.jsonl"] = lambda row: row["answer"]
GOLDS["math/train4500.jsonl"] = lambda row: str(last_boxed(row["solution"]))


@pytest.mark.parametrize("name", GOLDS)
def test_every_gold_equals_itself(name: str) -> None:
    """Also when spaces and a full stop are added, so that more than the text's equality is at work."""
    answers = [*map(GOLDS[name], rows(name))]
    format, form = ("gsm8k", "The answer is {}.") if "gsm8k" in name else ("math", r"\boxed{{{}}}")
    varied = r"\boxed{{\; {} \,.}}" if format == "math" else form
    with Grader(format, workers=1) as grader:
        for each in (form, varied):
            found = list(grader.grade((each.format(gold), gold) for gold in answers))
            assert {outcome.verdict for outcome in found} == {"correct"}
            assert "symbolic" not in {outcome.path for outcome in found}


# Each is 1 wherever the letter is positive.
ONE_BY_ITS_DOMAIN = (
    r"\frac{{\sqrt{{{x}^3}}}}{{{x}\sqrt{{{x}}}}}\cdot",
    r"\sqrt{{\frac{{1}}{{{x}}}}}\sqrt{{{x}}}\cdot",
    r"(1+\ln {x}+\ln\frac{{1}}{{{x}}})\cdot",
)


def test_golds_with_letters_equal_what_equals_them_on_their_common_domain_and_not_their_neighbours() -> None:
    golds = []
    for row in rows("math/train4500.jsonl"):
        gold = str(last_boxed(row["solution"]))
        if re.fullmatch(r"(?=.*\b[a-z]\b)(?:[-+^{}()\da-df-hj-z ]|\\sqrt|\\frac)+", gold):
            golds.append(gold)
    golds = list(dict.fromkeys(golds))[:20]
    assert len(golds) == 20
    with Grader("math", workers=1, deadline=20.0) as grader:
        for form in ONE_BY_ITS_DOMAIN:
            rewritten = []
            for gold in golds:
                letter = re.search(r"\b[a-z]\b", gold)
                assert letter is not None
                rewritten.append(rf"\boxed{{{form.format(x=letter[0])}({gold})}}")
            outcomes = grader.grade(zip(rewritten, golds, strict=True))
            assert {outcome.verdict for outcome in outcomes} == {"correct"}
            neighbours = [*golds[1:], golds[0]]
            outcomes = grader.grade(zip(rewritten, neighbours, strict=True))
            assert {outcome.verdict for outcome in outcomes} == {"incorrect"}


PIECES = [
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "12", "1000", ".5", "3.14", ",", ";", ":", " ", "  ", "\n", "x",
    "y", "i", "e", "n", "ab", "cm", "and", "or", "+", "-", "*", "/", "^", "_", "=", "<", ">", "!", "'", "|", "(", ")",
    "[", "]", "{", "}", "$", "&", "%", "~", "#", "@", '"', "`", "\\", "\\\\", r"\{", r"\}", r"\frac", r"\frac{1}{2}",
    r"\sqrt", r"\sqrt{2}", r"\sqrt[3]{x}", r"\pi", r"\infty", r"\pm", r"\cdot", r"\times", r"\left(", r"\right)",
    r"\left", r"\right", r"\text{", r"\text{ cm}", r"\mathrm{d}", r"\cup", r"\cap", r"\in", r"\le", r"\ne",
    r"\approx", r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin", r"\end", r"\boxed{", r"\boxed", r"\fbox{",
    r"\sum_{k=1}^{n}", r"\int", r"\lim_{x\to 0}", r"\sin", r"\log_2", r"\binom", r"\operatorname{f}", r"\overline{x}",
    r"^\circ", r"\%", r"\$", r"\!", r"\,", r"\mathbb{R}", r"\emptyset", r"\cdots", "−", "π", "²", "½", "∞", "٣",
    "\u0000", "\u200b", "é", "\ud800", "__", "lambda", "The answer is ", "the final answer is ", "\nQ:", "</think>",
    ". ", "I hope",
]  # fmt: skip
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join)
FUZZ = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = settings(FUZZ, max_examples=250)


@FUZZ
@given(TEXT)
def test_extraction_never_fails(text: str) -> None:
    for format in ("math", "gsm8k", "lenient", "final"):
        answer = extract(text, format)
        assert answer is not None or why_invalid(text, format)
        assert answer is None or answer == answer.strip() != ""
    plain = text.replace("\\", "").replace("{", "").replace("}", "").strip()
    assert last_boxed(rf"so \boxed{{{plain}}} it is") == (plain or None)


@FUZZ
@given(TEXT, TEXT)
def test_the_quick_comparison_never_fails_and_is_symmetric(one: str, other: str) -> None:
    assert compare_quickly(one, one)[0] is True
    assert compare_quickly(one, f"  {one}\n")[0] is True
    assert compare_quickly(one, other)[0] == compare_quickly(other, one)[0]


@NUMBERS
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_rationals_are_compared_exactly(one: Fraction, other: Fraction) -> None:
    forms = [f"{one.numerator}/{one.denominator}", rf"\frac{{{one.numerator}}}{{{one.denominator}}}"]
    if one < 0:
        forms.append(rf"-\dfrac{{{-one.numerator}}}{{{one.denominator}}}")
    decimal = f"{one.numerator}.{one.denominator}"
    assert rational_value(tokenize(decimal)) == Fraction(decimal)
    for form in forms:
        assert rational_value(tokenize(form)) == one
        assert compare_quickly(form, f"{other.numerator}/{other.denominator}")[0] == (one == other)


@NUMBERS
@given(st.integers(min_value=1000, max_value=10**15))
def test_thousands(number: int) -> None:
    grouped = f"{number:,}"
    for separator in (",", "{,}", r",\!", r"\,", r",\! ", r"\ "):
        assert compare_quickly(str(number), grouped.replace(",", separator))[0] is True


# ---- sympy's equal and unequal expressions


X, Y = sympy.symbols("x y", real=True)


def random_expression(draw: random.Random, depth: int = 3) -> sympy.Expr:
    if depth == 0 or draw.random() < 0.15:
        atoms = [sympy.Integer(draw.randint(1, 9)), sympy.Rational(draw.randint(1, 9), draw.randint(2, 9)), X, Y]
        return draw.choice([*atoms, sympy.sqrt(draw.randint(2, 12)), sympy.pi])
    one, other = random_expression(draw, depth - 1), random_expression(draw, depth - 1)
    made = (one + other, one + other, one - other, one * other, one / other if other != 0 else one)
    return draw.choice([*made, one ** draw.randint(2, 3), sympy.sqrt(one**2 + 1)])


def pairs(count: int, seed: int) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """An expression and an equal one written otherwise."""
    draw = random.Random(seed)
    while count:
        expression = random_expression(draw)
        form = draw.choice([sympy.expand, sympy.together, sympy.radsimp, lambda e: e])(expression)
        if expression.is_finite is not False and expression.count_ops() < 40 and form.count_ops() < 80:
            count -= 1
            yield expression, form


@pytest.mark.parametrize("seed", range(3))
def test_equal_expressions_are_not_told_apart(seed: int) -> None:
    for one, other in pairs(150, seed):
        assert compare_quickly(sympy.latex(one), sympy.latex(other))[0] is not False, (one, other)


def test_equal_expressions_are_recognised() -> None:
    found = total = 0
    for one, other in pairs(60, 10):
        gold, answer = sympy.latex(one), sympy.latex(other)
        verdict, _ = compare_quickly(gold, answer)
        found += verdict is True or symbolic.equal(gold, answer)
        total += 1
    assert found >= 0.95 * total


def test_unequal_expressions_are_not_accepted() -> None:
    draw = random.Random(5)
    for one, other in pairs(120, 20):
        change = draw.choice([other + 1, 2 * other, other * X, -other, other + sympy.Rational(1, 10**6)])
        if sympy.expand(change - one) == 0:
            continue
        gold, answer = sympy.latex(one), sympy.latex(change)
        assert compare_quickly(gold, answer)[0] is not True
        assert compare_quickly(gold, answer)[0] is False or not symbolic.equal(gold, answer), (one, change)


def test_sample_points_have_all_signs_of_three_names_and_are_the_same_each_time() -> None:
    points = list(signed_points(("a", "b", "c")))
    assert points == list(signed_points(("a", "b", "c")))
    assert len({tuple(value > 0 for value in point.values()) for point in points}) == 8
    assert {point["a"] < point["b"] for point in points if min(point.values()) > 0} == {True, False}


NOT_DIFFERENT = [
    (("\\sqrt", "{", "i", "^", "{", "2", "}", "}"), ("i",)),  # a rounded imaginary part beside a branch cut
    (("1", "/", "(", "x", "-", "x", ")"), ("1",)),  # no value
    (("9", "^", "{", "9", "^", "{", "9", "}", "}"), ("1",)),  # too large
    (("e", "^", "{", "-", "1000", "}"), ("0",)),  # too small to tell from 0
    (("\\sqrt", "[", "4", "]", "{", "3", "-", "2", "-", "1", "}"), ("0",)),  # a root magnifies the error of its 0
]


@pytest.mark.parametrize(("one", "other"), NOT_DIFFERENT)
def test_no_difference_is_claimed_where_rounding_could_make_one(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert not certainly_different(one, other)
    assert not certainly_different(other, one)
