"""What the tiny model of generated tasks was pre-trained on: two of reasoning-gym's tasks, their questions as it writes
them, small enough for the model, and completions in four styles.

  clean     the steps, then the answer between tags
  slip      the same with a wrong result, or an expression that comes to something else (incorrect)
  unmarked  the steps without tags, so that the grader finds no answer (invalid)
  bare      the answer at once
"""

import random
from collections.abc import Iterator
from fractions import Fraction

# That of conf/model/tiny_tasks.yaml; a test holds them equal, and the questions to the library's.
TEMPLATE = "{question}\n"
STYLES = ("clean", "slip", "unmarked", "bare")
CHAIN_SUM = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
COUNTDOWN = {"min_numbers": 2, "max_numbers": 3, "max_value": 20, "min_target": 2, "max_target": 99}
TASKS = {"chain_sum": CHAIN_SUM, "countdown": COUNTDOWN}
SUM = "State the final answer to the following arithmetic problem: {expression} ="
FIND = (
    "Using all the numbers {numbers}, create an expression that equals {target}.\nYou can only use each number once.",
    "Find a way to make {target} using all of these numbers: {numbers}.\nEach number can only be used once.",
    "Calculate {target} using all of these numbers: {numbers}.\nEach number may be used at most once.",
)
RULES = """

Final answer format instructions:
1. Provide your solution as a arithmetic expression (no '=' sign).
2. Do not include the target number in the expression.
3. Use '*' for multiplication.
4. Use '/' for division.
5. Do not include any other text or formatting."""


def examples(shares: dict[str, float], mix: dict[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Prompts with completions, without end."""
    while True:
        task = rng.choices(list(shares), list(shares.values()))[0]
        style = rng.choices(list(mix), list(mix.values()))[0]
        question, steps, answer = (chain_sum if task == "chain_sum" else countdown)(rng, slip=style == "slip")
        ending = f"So it is {answer}." if style == "unmarked" else f"<answer>{answer}</answer>"
        yield TEMPLATE.format(question=question), ending if style == "bare" else f"{steps} {ending}"


def chain_sum(rng: random.Random, *, slip: bool) -> tuple[str, str, str]:
    """Question, steps and answer of a sum of a few numbers of as many digits."""
    digits = rng.randint(CHAIN_SUM["min_digits"], CHAIN_SUM["max_digits"])
    count = rng.randint(CHAIN_SUM["min_terms"], CHAIN_SUM["max_terms"])
    numbers = [rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1) for _ in range(count)]
    signs = [rng.choice("+-") for _ in numbers[1:]]
    wrong = rng.randrange(len(signs)) if slip else None
    question, total, steps = str(numbers[0]), numbers[0], []
    for place, (sign, number) in enumerate(zip(signs, numbers[1:], strict=True)):
        result = total + number if sign == "+" else total - number
        if place == wrong:
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        steps.append(f"{total} {sign} {number} = {result}.")
        question, total = f"{question} {sign} {number}", result
    return SUM.format(expression=question), " ".join(steps), str(total)


def countdown(rng: random.Random, *, slip: bool) -> tuple[str, str, str]:
    """Question, steps and expression; a slip is an expression of the same numbers that misses the target."""
    numbers, target, steps, expression = reached(rng)
    shown = rng.sample(numbers, len(numbers))
    question = rng.choice(FIND).format(numbers=", ".join(map(str, shown)), target=target) + RULES
    while slip:
        _, missed, steps, expression = reached(rng, shown)
        slip = missed == target
    return question, steps, expression


def reached(rng: random.Random, given: list[int] | None = None) -> tuple[list[int], int, str, str]:
    """Numbers, the whole number in range that they come to from left to right, how, and the expression."""
    while True:
        count = rng.randint(COUNTDOWN["min_numbers"], COUNTDOWN["max_numbers"])
        drawn = [rng.randint(1, COUNTDOWN["max_value"]) for _ in range(count)]
        numbers = rng.sample(given, len(given)) if given is not None else drawn
        value, expression, steps = Fraction(numbers[0]), str(numbers[0]), []
        for place, number in enumerate(numbers[1:]):
            sign = rng.choice("+-*/")
            by = {"+": value + number, "-": value - number, "*": value * number, "/": value / number}
            left = f"({expression})" if place and sign in "*/" else expression
            steps.append(f"{value} {sign} {number} = {by[sign]}.")
            value, expression = by[sign], f"{left} {sign} {number}"
            if value.denominator != 1:
                break
        else:
            if given is not None or COUNTDOWN["min_target"] <= value <= COUNTDOWN["max_target"]:
                return numbers, int(value), " ".join(steps), expression
