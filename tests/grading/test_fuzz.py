"""Random LaTeX-like text: nothing crashes, nothing hangs, and equality has the properties of an equality."""

from fractions import Fraction

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topr_exp.grading import extract, last_boxed
from topr_exp.grading.equivalence import compare_quickly
from topr_exp.grading.expression import rational_value
from topr_exp.grading.latex import tokenize

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
FUZZ = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
NUMBERS = settings(FUZZ, max_examples=500)


@FUZZ
@given(TEXT)
def test_extraction_never_fails(text: str) -> None:
    for format in ("math", "gsm8k", "final"):
        answer = extract(text, format)
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
