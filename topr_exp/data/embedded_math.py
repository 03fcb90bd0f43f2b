"""Short tasks in the format of MATH, with LaTeX answers: fractions, roots, intervals, polynomials, pairs, numbers.

A kind is one function that draws the task's numbers and returns a `Task`. Results that could be reduced are not drawn.
"""

import random
from math import gcd

from topr_exp.data.embedded import Calc, Task

VARIABLES = "xyzt"


def draw(rng: random.Random) -> Task:
    """Draw one random task."""
    (draw_kind,) = rng.choices(list(KINDS), list(KINDS.values()))
    return draw_kind(rng)


def fraction(numerator: int, denominator: int) -> str:
    """LaTeX of a fraction, not reduced; a denominator of 1 is left out."""
    if denominator == 1:
        return str(numerator)
    sign = "-" if numerator < 0 else ""
    return rf"{sign}\frac{{{abs(numerator)}}}{{{denominator}}}"


def coefficient(number: int) -> str:
    """A number other than 0 with its sign, as before a variable: +3, -2, + for 1, - for -1."""
    signed = f"{number:+d}"
    if abs(number) == 1:
        return signed[0]
    return signed


def root(factor: int, radicand: int) -> str:
    """LaTeX of factor·√radicand."""
    shown_factor = "" if factor == 1 else str(factor)
    return rf"{shown_factor}\sqrt{{{radicand}}}"


def draw_nonzero(rng: random.Random) -> int:
    """Draw from 1 to 9, a quarter of them negative."""
    return rng.randint(1, 9) * rng.choice((1, 1, 1, -1))


def draw_mostly_positive(rng: random.Random) -> int:
    """Draw from 0 to 12, or for a quarter from -9 to -1."""
    if rng.random() < 0.75:
        return rng.randint(0, 12)
    return rng.randint(-9, -1)


def add_fractions(rng: random.Random) -> Task:
    """a/b ± c/(bk); level 1 for k = 1, else 2."""
    while True:
        b = rng.randint(2, 9)
        k = rng.choice((1, 1, 2, 3))
        op = rng.choice("+-")
        d = b * k
        a = rng.randint(1, b - 1)
        c = rng.randint(1, d - 1)
        result = Calc().compute(a * k, op, c)
        if gcd(result, d) == 1:
            break

    def solve(calc: Calc) -> str:
        expanded = calc(a, "*", k) if k > 1 else a
        numerator = calc(expanded, op, c)
        return fraction(numerator, d)

    question = f"Compute ${fraction(a, b)}{op}{fraction(c, d)}$."
    return Task(question, min(k, 2), "Prealgebra", solve)


def multiply_fractions(rng: random.Random) -> Task:
    """a/b · c/d."""
    a = b = c = d = 1
    while b == 1 or d == 1 or gcd(a * c, b * d) > 1:
        a, b, c, d = (rng.randint(1, 7) for _ in range(4))

    def solve(calc: Calc) -> str:
        numerator = calc(a, "*", c)
        denominator = calc(b, "*", d)
        return fraction(numerator, denominator)

    question = rf"Compute ${fraction(a, b)}\cdot{fraction(c, d)}$."
    return Task(question, 2, "Prealgebra", solve)


def simplify_root(rng: random.Random) -> Task:
    """m√r + n√r, level 2, or m√(k²·r), level 4."""
    r = rng.choice((2, 3, 5, 6, 7, 10))
    k = rng.randint(2, 5)
    m = rng.randint(2, 12)
    n = rng.randint(2, 12)

    def add_roots(calc: Calc) -> str:
        return root(calc(m, "+", n), r)

    def extract_root(calc: Calc) -> str:
        calc.write(f"{root(1, k * k)}={k}.")
        return root(calc(m, "*", k), r)

    if rng.random() < 0.5:
        return Task(f"Simplify ${root(m, r)}+{root(n, r)}$.", 2, "Algebra", add_roots)
    return Task(rf"Simplify ${m}\sqrt{{{k * k}\cdot{r}}}$.", 4, "Algebra", extract_root)


def linear_inequality(rng: random.Random) -> Task:
    """ax + b < c with the solution as an interval; level 2 for a = 1, else 3; 4 where the bound is negative."""
    a = rng.choice((1, 1, 2, 3, 4, 5))
    b = draw_nonzero(rng)
    bound = draw_mostly_positive(rng)
    relation, is_lower_bound = rng.choice((("<", False), (">", True), (r"\le", False), (r"\ge", True)))
    x = rng.choice(VARIABLES)
    term = f"{a}{x}" if a > 1 else x
    c = a * bound + b

    def solve(calc: Calc) -> str:
        end = calc.add(c, -b)
        if a > 1:
            end = calc(end, "/", a)
        calc.write(f"{x} {relation} {end}.")
        opening, closing = "()"
        if relation.startswith("\\"):  # the end belongs to the interval
            opening, closing = "[]"
        if is_lower_bound:
            return rf"{opening}{end},\infty)"
        return rf"(-\infty,{end}{closing}"

    level = 2 if a == 1 else 3
    if bound < 0:
        level = 4
    question = f"Solve ${term}{b:+d} {relation} {c}$. Give the answer as an interval."
    return Task(question, level, "Algebra", solve)


def double_inequality(rng: random.Random) -> Task:
    """l < x + b < h, each < or ≤, with the solution as an interval; level 3, or 4 where its lower end is negative."""
    b = draw_nonzero(rng)
    lower_end = draw_mostly_positive(rng)
    low = lower_end + b
    high = low + rng.randint(2, 12)
    low_relation, opening = rng.choice((("<", "("), (r"\le", "[")))
    high_relation, closing = rng.choice((("<", ")"), (r"\le", "]")))
    x = rng.choice(VARIABLES)

    def solve(calc: Calc) -> str:
        start = calc.add(low, -b)
        end = calc.add(high, -b)
        return f"{opening}{start},{end}{closing}"

    inequality = f"{low} {low_relation} {x}{b:+d} {high_relation} {high}"
    question = f"Solve ${inequality}$. Give the answer as an interval."
    return Task(question, 4 if lower_end < 0 else 3, "Intermediate Algebra", solve)


def expand(rng: random.Random) -> Task:
    """(x + a)(x + b), level 3 with positive numbers, else 4."""
    a = rng.randint(1, 9)
    b = draw_nonzero(rng)
    x = rng.choice(VARIABLES)

    def solve(calc: Calc) -> str:
        linear = calc.add(a, b)
        constant = calc(a, "*", b)
        polynomial = f"{x}^2"
        if linear:
            polynomial += f"{coefficient(linear)}{x}"
        if constant:
            polynomial += f"{constant:+d}"
        return polynomial

    verb = rng.choice(("Expand", "Multiply out"))
    return Task(f"{verb} $({x}{a:+d})({x}{b:+d})$.", 3 if b > 0 else 4, "Algebra", solve)


def linear_system(rng: random.Random) -> Task:
    """kx + y = s and x − y = d with the solution as an ordered pair; level 3 for k = 1, else 5."""
    k = rng.choice((1, 1, 1, 2))
    y = rng.randint(1, 12)
    difference = rng.randint(1, 12)
    x = y + difference
    total = k * x + y
    u, v = rng.choice((("x", "y"), ("a", "b"), ("m", "n")))

    def solve(calc: Calc) -> str:
        multiple = calc(total, "+", difference)  # (k + 1) x
        first = calc(multiple, "/", k + 1)
        second = calc(first, "-", difference)
        return f"({first},{second})"

    term = u if k == 1 else f"{k}{u}"
    question = f"If ${term}+{v} = {total}$ and ${u}-{v} = {difference}$, find the ordered pair $({u},{v})$."
    return Task(question, 3 if k == 1 else 5, "Algebra", solve)


def roots_of_product(rng: random.Random) -> Task:
    """The two roots of (x − r)(x − s) = 0, smaller first."""
    r = draw_nonzero(rng)
    s = draw_nonzero(rng)
    while r == s:
        s = draw_nonzero(rng)
    x = rng.choice(VARIABLES)

    def solve(calc: Calc) -> str:
        roots = [calc.add(0, r), calc.add(0, s)]  # x = 0 + r, from x − r = 0
        return ",".join(map(str, sorted(roots)))

    question = f"Solve $({x}{-r:+d})({x}{-s:+d}) = 0$. List the roots from low to high."
    return Task(question, 5, "Intermediate Algebra", solve)


def midpoint(rng: random.Random) -> Task:
    """The midpoint of two points with whole coordinates."""
    intervals = []  # of x and of y, from the first point to the second
    for _ in range(2):
        half = rng.randint(1, 7)
        middle = half + rng.randint(0, 8)
        intervals.append((middle - half, middle + half))
    (first_x, second_x), (first_y, second_y) = intervals
    verb, mark = rng.choice((("Find", "."), ("What is", "?")))

    def solve(calc: Calc) -> str:
        middles = []
        for low, high in intervals:
            sum_of_ends = calc(low, "+", high)
            middles.append(calc(sum_of_ends, "/", 2))
        x, y = middles
        return f"({x},{y})"

    question = f"{verb} the midpoint of $({first_x},{first_y})$ and $({second_x},{second_y})${mark}"
    return Task(question, 3, "Geometry", solve)


def hypotenuse(rng: random.Random) -> Task:
    """The hypotenuse of a right triangle, as a root that can't be simplified."""
    a, b = rng.sample(range(1, 8), 2)
    while has_square_factor(a * a + b * b):
        a, b = rng.sample(range(1, 8), 2)
    name = rng.choice("ABCDPQRS")
    question = f"A right triangle has its right angle at ${name}$ and legs {a} and {b}. How long is the hypotenuse?"

    def solve(calc: Calc) -> str:
        first_square = calc(a, "*", a)
        second_square = calc(b, "*", b)
        return root(1, calc(first_square, "+", second_square))

    return Task(question, 5, "Geometry", solve)


def has_square_factor(number: int) -> bool:
    """True if a square above 1 divides a number below 121."""
    return any(number % (factor * factor) == 0 for factor in range(2, 10))


def probability(rng: random.Random) -> Task:
    """The chance to draw one colour out of two (level 1) or three (level 3)."""
    colour_count = rng.choice((2, 3))
    colours = rng.sample(("red", "blue", "green", "white"), colour_count)
    winner = rng.randrange(colour_count)
    counts = [rng.randint(1, 12) for _ in colours]
    while gcd(counts[winner], sum(counts)) > 1:
        counts = [rng.randint(1, 12) for _ in colours]

    def solve(calc: Calc) -> str:
        total = counts[0]
        for count in counts[1:]:
            total = calc.compute(total, "+", count)
        summands = "+".join(map(str, counts))
        calc.write(f"{summands}={total}.")
        return fraction(counts[winner], total)

    balls = [f"{count} {colour}" for count, colour in zip(counts, colours, strict=True)]
    bag = f"{', '.join(balls[:-1])} and {balls[-1]} balls"
    question = f"A bag has {bag}. What is the probability of {colours[winner]}?"
    return Task(question, 1 if len(counts) == 2 else 3, "Counting & Probability", solve)


def remainder(rng: random.Random) -> Task:
    """The remainder of a division."""
    divisor = rng.randint(2, 6)
    quotient = rng.randint(2, 9)
    dividend = divisor * quotient + rng.randint(0, divisor - 1)

    def solve(calc: Calc) -> str:
        multiple = calc(divisor, "*", quotient)
        return str(calc(dividend, "-", multiple))

    question = f"Find the remainder when {dividend} is divided by {divisor}."
    return Task(question, 2, "Number Theory", solve)


def complex_sum(rng: random.Random) -> Task:
    """(a + bi) ± (c + di)."""
    a, b, c, d = (rng.randint(2, 12) for _ in range(4))
    while b == d:  # the difference would have no imaginary part
        d = rng.randint(2, 12)
    op = rng.choice("+-")

    def solve(calc: Calc) -> str:
        real = calc(a, op, c)
        imaginary = calc(b, op, d)
        return f"{real}{coefficient(imaginary)}i"

    question = f"Compute $({a}+{b}i){op}({c}+{d}i)$."
    return Task(question, 2, "Precalculus", solve)


# kind -> its weight when kinds are drawn
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
