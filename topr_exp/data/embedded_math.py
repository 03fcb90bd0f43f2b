"""Short tasks in the format of MATH, with LaTeX answers: fractions, roots, intervals, polynomials, pairs, numbers.

Each kind is one function that draws the task's numbers and returns a `Task`; its inner `work` is the solution.
"""

from __future__ import annotations

import random
from math import gcd

from topr_exp.data.embedded import Calc, Task, draw_tasks, to_problems
from topr_exp.types import Problem


def generate(split: str, count: int, seed: int) -> list[Problem]:
    """`count` distinct tasks of `split` (train, test or pretrain), the same on every machine for the same seed."""
    return to_problems(draw_tasks(draw, split, count, seed), "math", split)


def draw(rng: random.Random) -> Task:
    """One random task."""
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng)


def fraction(numerator: int, denominator: int) -> str:
    """LaTeX of a fraction as it stands; a denominator of 1 is left out."""
    sign = "-" if numerator < 0 else ""
    return str(numerator) if denominator == 1 else rf"{sign}\frac{{{abs(numerator)}}}{{{denominator}}}"


def in_lowest_terms(numerator: int, denominator: int) -> bool:
    """Check that a fraction can't be reduced; results that could are not drawn, so no task needs that step."""
    return gcd(numerator, denominator) == 1


def polynomial(variable: str, linear: int, constant: int) -> str:
    """LaTeX of the monic x² + linear·x + constant."""
    text = f"{variable}^2"
    if linear:
        text += f"{linear:+d}{variable}".replace(f"+1{variable}", f"+{variable}").replace(
            f"-1{variable}", f"-{variable}"
        )
    return text + (f"{constant:+d}" if constant else "")


def root(coefficient: int, radicand: int) -> str:
    """LaTeX of coefficient·√radicand."""
    return rf"\sqrt{{{radicand}}}" if coefficient == 1 else rf"{coefficient}\sqrt{{{radicand}}}"


def nonzero(rng: random.Random) -> int:
    """One of 1 to 9, at times negative."""
    return rng.randint(1, 9) * rng.choice((1, 1, 1, -1))


def mostly_positive(rng: random.Random) -> int:
    """One of 0 to 12, at times -9 to -1."""
    return rng.randint(0, 12) if rng.random() < 0.75 else rng.randint(-9, -1)


def add_fractions(rng: random.Random) -> Task:
    """a/b ± c/(bk); level 1 for k = 1, else 2."""
    a, b, c, d, k, op = 1, 1, 1, 1, 1, "+"
    while b == 1 or not in_lowest_terms(a * k + c if op == "+" else a * k - c, d):
        b, k, op = rng.randint(2, 9), rng.choice((1, 1, 2, 3)), rng.choice("+-")
        d = b * k
        a, c = rng.randint(1, b - 1), rng.randint(1, d - 1)

    def work(calc: Calc) -> tuple[str, str]:
        left, text = a, ""
        if k > 1:
            left = calc(a, "*", k)
            text = f" {a}*{k}={left}."
        total = calc(left, op, c)
        return f"{text} {left}{op}{c}={total}.", fraction(total, d)

    return Task(f"Compute ${fraction(a, b)}{op}{fraction(c, d)}$.", min(k, 2), "Prealgebra", work)


def multiply_fractions(rng: random.Random) -> Task:
    """a/b · c/d."""
    a, b, c, d = (rng.randint(1, 7) for _ in range(4))
    while b == 1 or d == 1 or not in_lowest_terms(a * c, b * d):
        a, b, c, d = (rng.randint(1, 7) for _ in range(4))

    def work(calc: Calc) -> tuple[str, str]:
        top, bottom = calc(a, "*", c), calc(b, "*", d)
        return f" {a}*{c}={top}. {b}*{d}={bottom}.", fraction(top, bottom)

    return Task(rf"Compute ${fraction(a, b)}\cdot{fraction(c, d)}$.", 2, "Prealgebra", work)


def simplify_root(rng: random.Random) -> Task:
    """m√r ± n√r, level 2, or m√(k²·r), level 4."""
    r = rng.choice((2, 3, 5, 6, 7, 10))
    k, m, n = rng.randint(2, 5), rng.randint(2, 12), rng.randint(2, 12)
    if rng.random() < 0.5:

        def add(calc: Calc) -> tuple[str, str]:
            total = calc(m, "+", n)
            return f" {m}+{n}={total}.", root(total, r)

        return Task(f"Simplify ${root(m, r)}+{root(n, r)}$.", 2, "Algebra", add)

    def pull(calc: Calc) -> tuple[str, str]:
        total = calc(m, "*", k)
        return f" {root(1, k * k)}={k}. {m}*{k}={total}.", root(total, r)

    return Task(rf"Simplify ${m}\sqrt{{{k * k}\cdot{r}}}$.", 4, "Algebra", pull)


def linear_inequality(rng: random.Random) -> Task:
    """ax + b < c with the solution as an interval; level 2 for a = 1, else 3; 4 where the bound is negative."""
    a, b, bound = rng.choice((1, 1, 2, 3, 4, 5)), nonzero(rng), mostly_positive(rng)
    relation, flipped = rng.choice((("<", False), (">", True), (r"\le", False), (r"\ge", True)))
    x = rng.choice("xyzt")
    term, c = f"{a}{x}" if a > 1 else x, a * bound + b

    def work(calc: Calc) -> tuple[str, str]:
        rest = calc(c, "-" if b > 0 else "+", abs(b))
        text = f" {c}{'-' if b > 0 else '+'}{abs(b)}={rest}."
        end = rest
        if a > 1:
            end = calc(rest, "/", a)
            text += f" {rest}/{a}={end}."
        closed = relation.startswith("\\")
        answer = rf"{'[' if closed else '('}{end},\infty)" if flipped else rf"(-\infty,{end}{']' if closed else ')'}"
        return f"{text} {x} {relation} {end}.", answer

    question = f"Solve ${term}{b:+d} {relation} {c}$. Give the answer as an interval."
    return Task(question, 4 if bound < 0 else 2 if a == 1 else 3, "Algebra", work)


def double_inequality(rng: random.Random) -> Task:
    """l < x + b ≤ h with the solution as an interval; level 3, or 4 where an end is negative."""
    b, start = nonzero(rng), mostly_positive(rng)
    low = start + b
    high = low + rng.randint(2, 12)
    (left, opening), (right, closing) = rng.choice((("<", "("), (r"\le", "["))), rng.choice((("<", ")"), (r"\le", "]")))
    x = rng.choice("xyzt")

    def work(calc: Calc) -> tuple[str, str]:
        op = "-" if b > 0 else "+"
        left_end, right_end = calc(low, op, abs(b)), calc(high, op, abs(b))
        text = f" {low}{op}{abs(b)}={left_end}. {high}{op}{abs(b)}={right_end}."
        return text, f"{opening}{left_end},{right_end}{closing}"

    question = f"Solve ${low} {left} {x}{b:+d} {right} {high}$. Give the answer as an interval."
    return Task(question, 4 if start < 0 else 3, "Intermediate Algebra", work)


def expand(rng: random.Random) -> Task:
    """(x + a)(x + b), level 3 with positive numbers, else 4."""
    a, b = rng.randint(1, 9), nonzero(rng)
    x = rng.choice("xyzt")

    def work(calc: Calc) -> tuple[str, str]:
        linear, constant = calc(a, "+" if b > 0 else "-", abs(b)), calc(a, "*", b)
        return f" {a}{b:+d}={linear}. {a}*{b}={constant}.", polynomial(x, linear, constant)

    verb = rng.choice(("Expand", "Multiply out"))
    return Task(f"{verb} $({x}{a:+d})({x}{b:+d})$.", 3 if b > 0 else 4, "Algebra", work)


def linear_system(rng: random.Random) -> Task:
    """kx + y = s and x − y = d with the solution as an ordered pair; level 3 for k = 1, else 5."""
    k, y, difference = rng.choice((1, 1, 1, 2)), rng.randint(1, 12), rng.randint(1, 12)
    x = y + difference
    total = k * x + y
    u, v = rng.choice((("x", "y"), ("a", "b"), ("m", "n")))

    def work(calc: Calc) -> tuple[str, str]:
        top = calc(total, "+", difference)
        first = calc(top, "/", k + 1)
        second = calc(first, "-", difference)
        text = f" {total}+{difference}={top}. {top}/{k + 1}={first}. {first}-{difference}={second}."
        return text, f"({first},{second})"

    term = u if k == 1 else f"{k}{u}"
    question = f"If ${term}+{v} = {total}$ and ${u}-{v} = {difference}$, find the ordered pair $({u},{v})$."
    return Task(question, 3 if k == 1 else 5, "Algebra", work)


def roots_of_product(rng: random.Random) -> Task:
    """The two roots of (x − r)(x − s) = 0, smaller first."""
    r, s = nonzero(rng), nonzero(rng)
    while r == s:
        s = nonzero(rng)
    x = rng.choice("xyzt")

    def work(calc: Calc) -> tuple[str, str]:
        first, second = (calc(0, "+" if n > 0 else "-", abs(n)) for n in (r, s))
        text = "".join(f" 0{n:+d}={found}." for n, found in ((r, first), (s, second)))
        return text, f"{min(first, second)},{max(first, second)}"

    question = f"Solve $({x}{-r:+d})({x}{-s:+d}) = 0$. List the roots from low to high."
    return Task(question, 5, "Intermediate Algebra", work)


def midpoint(rng: random.Random) -> Task:
    """The midpoint of two points with whole coordinates."""
    ends = []
    for _ in range(2):
        half = rng.randint(1, 7)
        mid = half + rng.randint(0, 8)
        ends.append((mid - half, mid + half))
    (a, c), (b, d) = ends

    def work(calc: Calc) -> tuple[str, str]:
        text, middle = "", []
        for p, q in ((a, c), (b, d)):
            total = calc(p, "+", q)
            middle.append(calc(total, "/", 2))
            text += f" {p}+{q}={total}. {total}/2={middle[-1]}."
        return text, f"({middle[0]},{middle[1]})"

    verb = rng.choice(("Find the midpoint of", "What is the midpoint of"))
    mark = "." if verb.startswith("Find") else "?"
    return Task(f"{verb} $({a},{b})$ and $({c},{d})${mark}", 3, "Geometry", work)


def hypotenuse(rng: random.Random) -> Task:
    """The hypotenuse of a right triangle, as a root that is left as it is."""
    a, b = rng.sample(range(1, 8), 2)
    while any((a * a + b * b) % (k * k) == 0 for k in range(2, 10)):
        a, b = rng.sample(range(1, 8), 2)
    name = rng.choice("ABCDPQRS")

    def work(calc: Calc) -> tuple[str, str]:
        p, q = calc(a, "*", a), calc(b, "*", b)
        total = calc(p, "+", q)
        return f" {a}*{a}={p}. {b}*{b}={q}. {p}+{q}={total}.", root(1, total)

    question = f"A right triangle has its right angle at ${name}$ and legs {a} and {b}. How long is the hypotenuse?"
    return Task(question, 5, "Geometry", work)


def probability(rng: random.Random) -> Task:
    """The chance to draw one colour out of two (level 1) or three (level 3)."""
    colours = rng.sample(("red", "blue", "green", "white"), rng.choice((2, 3)))
    wanted = rng.randrange(len(colours))
    counts = [rng.randint(1, 12) for _ in colours]
    while not in_lowest_terms(counts[wanted], sum(counts)):
        counts = [rng.randint(1, 12) for _ in colours]

    def work(calc: Calc) -> tuple[str, str]:
        total = counts[0]
        for n in counts[1:]:
            total = calc(total, "+", n)
        return f" {'+'.join(map(str, counts))}={total}.", fraction(counts[wanted], total)

    parts = [f"{n} {colour}" for n, colour in zip(counts, colours, strict=True)]
    bag = f"{', '.join(parts[:-1])} and {parts[-1]} balls"
    question = f"A bag has {bag}. What is the probability of {colours[wanted]}?"
    return Task(question, 1 if len(counts) == 2 else 3, "Counting & Probability", work)


def remainder(rng: random.Random) -> Task:
    """The remainder of a division."""
    b, q = rng.randint(2, 6), rng.randint(2, 9)
    rest = rng.randint(0, b - 1)

    def work(calc: Calc) -> tuple[str, str]:
        product = calc(b, "*", q)
        left = calc(b * q + rest, "-", product)
        return f" {b}*{q}={product}. {b * q + rest}-{product}={left}.", str(left)

    return Task(f"Find the remainder when {b * q + rest} is divided by {b}.", 2, "Number Theory", work)


def complex_sum(rng: random.Random) -> Task:
    """(a + bi) ± (c + di)."""
    a, b, c, d = (rng.randint(2, 12) for _ in range(4))
    while b == d:
        d = rng.randint(2, 12)
    op = rng.choice("+-")

    def work(calc: Calc) -> tuple[str, str]:
        real, imaginary = calc(a, op, c), calc(b, op, d)
        text = f" {a}{op}{c}={real}. {b}{op}{d}={imaginary}."
        factor = {1: "+", -1: "-"}.get(imaginary, f"{imaginary:+d}")
        return text, f"{real}{factor}i"

    return Task(f"Compute $({a}+{b}i){op}({c}+{d}i)$.", 2, "Precalculus", work)


# kind -> how often it comes
KINDS = {
    add_fractions: 16,
    multiply_fractions: 8,
    simplify_root: 5,
    linear_inequality: 12,
    double_inequality: 8,
    expand: 12,
    linear_system: 12,
    roots_of_product: 5,
    midpoint: 8,
    hypotenuse: 3,
    probability: 8,
    remainder: 3,
    complex_sum: 8,
}
