"""Short tasks in the format of MATH, with LaTeX answers: fractions, roots, intervals, polynomials, pairs, numbers.

Each kind is one function that draws the task's numbers and returns a `Task`, whose `solve` is the solution.
"""

import random
from functools import reduce
from math import gcd

from topr_exp.data.embedded import Calc, Task


def draw(rng: random.Random) -> Task:
    """One random task."""
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng)


def fraction(numerator: int, denominator: int) -> str:
    """LaTeX of a fraction as it stands; a denominator of 1 is left out."""
    sign = "-" if numerator < 0 else ""
    return str(numerator) if denominator == 1 else rf"{sign}\frac{{{abs(numerator)}}}{{{denominator}}}"


def coefficient(number: int) -> str:
    """A number with its sign, as it stands before a variable."""
    return f"{number:+d}"[: 1 if abs(number) == 1 else None]


def root(factor: int, radicand: int) -> str:
    """LaTeX of factor·√radicand."""
    return rf"\sqrt{{{radicand}}}" if factor == 1 else rf"{factor}\sqrt{{{radicand}}}"


def nonzero(rng: random.Random) -> int:
    """One of 1 to 9, at times negative."""
    return rng.randint(1, 9) * rng.choice((1, 1, 1, -1))


def mostly_positive(rng: random.Random) -> int:
    """One of 0 to 12, at times -9 to -1."""
    return rng.randint(0, 12) if rng.random() < 0.75 else rng.randint(-9, -1)


# Results that could be reduced are not drawn, so no task needs that step.


def add_fractions(rng: random.Random) -> Task:
    """a/b ± c/(bk); level 1 for k = 1, else 2."""
    a, b, c, d, k, op = 1, 1, 1, 1, 1, "+"
    while b == 1 or gcd(a * k + c if op == "+" else a * k - c, d) > 1:
        b, k, op = rng.randint(2, 9), rng.choice((1, 1, 2, 3)), rng.choice("+-")
        d = b * k
        a, c = rng.randint(1, b - 1), rng.randint(1, d - 1)
    question = f"Compute ${fraction(a, b)}{op}{fraction(c, d)}$."
    solve = lambda calc: fraction(calc(calc(a, "*", k) if k > 1 else a, op, c), d)
    return Task(question, min(k, 2), "Prealgebra", solve)


def multiply_fractions(rng: random.Random) -> Task:
    """a/b · c/d."""
    a, b, c, d = 1, 1, 1, 1
    while b == 1 or d == 1 or gcd(a * c, b * d) > 1:
        a, b, c, d = (rng.randint(1, 7) for _ in range(4))
    question = rf"Compute ${fraction(a, b)}\cdot{fraction(c, d)}$."
    return Task(question, 2, "Prealgebra", lambda calc: fraction(calc(a, "*", c), calc(b, "*", d)))


def simplify_root(rng: random.Random) -> Task:
    """m√r ± n√r, level 2, or m√(k²·r), level 4."""
    r = rng.choice((2, 3, 5, 6, 7, 10))
    k, m, n = rng.randint(2, 5), rng.randint(2, 12), rng.randint(2, 12)
    if rng.random() < 0.5:
        question = f"Simplify ${root(m, r)}+{root(n, r)}$."
        return Task(question, 2, "Algebra", lambda calc: root(calc(m, "+", n), r))

    def solve(calc: Calc) -> str:
        calc.steps += f" {root(1, k * k)}={k}."
        return root(calc(m, "*", k), r)

    return Task(rf"Simplify ${m}\sqrt{{{k * k}\cdot{r}}}$.", 4, "Algebra", solve)


def linear_inequality(rng: random.Random) -> Task:
    """ax + b < c with the solution as an interval; level 2 for a = 1, else 3; 4 where the bound is negative."""
    a, b, bound = rng.choice((1, 1, 2, 3, 4, 5)), nonzero(rng), mostly_positive(rng)
    relation, flipped = rng.choice((("<", False), (">", True), (r"\le", False), (r"\ge", True)))
    x = rng.choice("xyzt")
    term, c = f"{a}{x}" if a > 1 else x, a * bound + b

    def solve(calc: Calc) -> str:
        rest = calc.add(c, -b)
        end = calc(rest, "/", a) if a > 1 else rest
        calc.steps += f" {x} {relation} {end}."
        opening, closing = "[]" if relation.startswith("\\") else "()"
        return rf"{opening}{end},\infty)" if flipped else rf"(-\infty,{end}{closing}"

    question = f"Solve ${term}{b:+d} {relation} {c}$. Give the answer as an interval."
    return Task(question, 4 if bound < 0 else 2 if a == 1 else 3, "Algebra", solve)


def double_inequality(rng: random.Random) -> Task:
    """l < x + b ≤ h with the solution as an interval; level 3, or 4 where an end is negative."""
    b, start = nonzero(rng), mostly_positive(rng)
    low = start + b
    high = low + rng.randint(2, 12)
    (left, opening), (right, closing) = rng.choice((("<", "("), (r"\le", "["))), rng.choice((("<", ")"), (r"\le", "]")))
    x = rng.choice("xyzt")
    question = f"Solve ${low} {left} {x}{b:+d} {right} {high}$. Give the answer as an interval."
    solve = lambda calc: f"{opening}{calc.add(low, -b)},{calc.add(high, -b)}{closing}"
    return Task(question, 4 if start < 0 else 3, "Intermediate Algebra", solve)


def expand(rng: random.Random) -> Task:
    """(x + a)(x + b), level 3 with positive numbers, else 4."""
    a, b = rng.randint(1, 9), nonzero(rng)
    x = rng.choice("xyzt")

    def solve(calc: Calc) -> str:
        linear, constant = calc.add(a, b), calc(a, "*", b)
        middle = f"{coefficient(linear)}{x}" if linear else ""
        return f"{x}^2{middle}" + (f"{constant:+d}" if constant else "")

    verb = rng.choice(("Expand", "Multiply out"))
    return Task(f"{verb} $({x}{a:+d})({x}{b:+d})$.", 3 if b > 0 else 4, "Algebra", solve)


def linear_system(rng: random.Random) -> Task:
    """kx + y = s and x − y = d with the solution as an ordered pair; level 3 for k = 1, else 5."""
    k, y, difference = rng.choice((1, 1, 1, 2)), rng.randint(1, 12), rng.randint(1, 12)
    x = y + difference
    total = k * x + y
    u, v = rng.choice((("x", "y"), ("a", "b"), ("m", "n")))

    def solve(calc: Calc) -> str:
        first = calc(calc(total, "+", difference), "/", k + 1)
        return f"({first},{calc(first, '-', difference)})"

    term = u if k == 1 else f"{k}{u}"
    question = f"If ${term}+{v} = {total}$ and ${u}-{v} = {difference}$, find the ordered pair $({u},{v})$."
    return Task(question, 3 if k == 1 else 5, "Algebra", solve)


def roots_of_product(rng: random.Random) -> Task:
    """The two roots of (x − r)(x − s) = 0, smaller first."""
    r, s = nonzero(rng), nonzero(rng)
    while r == s:
        s = nonzero(rng)
    x = rng.choice("xyzt")
    question = f"Solve $({x}{-r:+d})({x}{-s:+d}) = 0$. List the roots from low to high."
    solve = lambda calc: ",".join(map(str, sorted(calc.add(0, n) for n in (r, s))))
    return Task(question, 5, "Intermediate Algebra", solve)


def midpoint(rng: random.Random) -> Task:
    """The midpoint of two points with whole coordinates."""
    ends = []
    for _ in range(2):
        half = rng.randint(1, 7)
        mid = half + rng.randint(0, 8)
        ends.append((mid - half, mid + half))
    (a, c), (b, d) = ends
    verb, mark = rng.choice((("Find", "."), ("What is", "?")))
    question = f"{verb} the midpoint of $({a},{b})$ and $({c},{d})${mark}"
    solve = lambda calc: f"({','.join(str(calc(calc(p, '+', q), '/', 2)) for p, q in ends)})"
    return Task(question, 3, "Geometry", solve)


def hypotenuse(rng: random.Random) -> Task:
    """The hypotenuse of a right triangle, as a root that is left as it is."""
    a, b = rng.sample(range(1, 8), 2)
    while any((a * a + b * b) % (k * k) == 0 for k in range(2, 10)):
        a, b = rng.sample(range(1, 8), 2)
    name = rng.choice("ABCDPQRS")
    question = f"A right triangle has its right angle at ${name}$ and legs {a} and {b}. How long is the hypotenuse?"
    return Task(question, 5, "Geometry", lambda calc: root(1, calc(calc(a, "*", a), "+", calc(b, "*", b))))


def probability(rng: random.Random) -> Task:
    """The chance to draw one colour out of two (level 1) or three (level 3)."""
    colours = rng.sample(("red", "blue", "green", "white"), rng.choice((2, 3)))
    wanted = rng.randrange(len(colours))
    counts = [rng.randint(1, 12) for _ in colours]
    while gcd(counts[wanted], sum(counts)) > 1:
        counts = [rng.randint(1, 12) for _ in colours]

    def solve(calc: Calc) -> str:
        total = reduce(lambda one, other: calc.compute(one, "+", other), counts)
        calc.steps += f" {'+'.join(map(str, counts))}={total}."
        return fraction(counts[wanted], total)

    parts = [f"{n} {colour}" for n, colour in zip(counts, colours, strict=True)]
    bag = f"{', '.join(parts[:-1])} and {parts[-1]} balls"
    question = f"A bag has {bag}. What is the probability of {colours[wanted]}?"
    return Task(question, 1 if len(counts) == 2 else 3, "Counting & Probability", solve)


def remainder(rng: random.Random) -> Task:
    """The remainder of a division."""
    b, q = rng.randint(2, 6), rng.randint(2, 9)
    whole = b * q + rng.randint(0, b - 1)
    question = f"Find the remainder when {whole} is divided by {b}."
    return Task(question, 2, "Number Theory", lambda calc: str(calc(whole, "-", calc(b, "*", q))))


def complex_sum(rng: random.Random) -> Task:
    """(a + bi) ± (c + di)."""
    a, b, c, d = (rng.randint(2, 12) for _ in range(4))
    while b == d:
        d = rng.randint(2, 12)
    op = rng.choice("+-")
    question = f"Compute $({a}+{b}i){op}({c}+{d}i)$."
    return Task(question, 2, "Precalculus", lambda calc: f"{calc(a, op, c)}{coefficient(calc(b, op, d))}i")


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
