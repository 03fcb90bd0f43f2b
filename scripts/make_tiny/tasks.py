"""Pre-training texts of the tiny model of generated tasks: questions of two tasks of reasoning-gym, as it writes them,
small enough for the model, and completions in four styles.

  clean     the steps, then the answer between tags
  slip      the same with a wrong result, or an expression that comes to something else (incorrect)
  unmarked  the steps without tags, so that the grader finds no answer (invalid)
  bare      the answer at once
"""

import operator
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

# The template of conf/model/tiny_tasks.yaml; a test holds them equal, and the questions to the library's.
TEMPLATE = "{question}\n"
STYLES = ("clean", "slip", "unmarked", "bare")
CHAIN_SUM = {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2}
COUNTDOWN = {"min_numbers": 2, "max_numbers": 3, "max_value": 20, "min_target": 2, "max_target": 99}
TASKS = {"chain_sum": CHAIN_SUM, "countdown": COUNTDOWN}
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
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
    """Iterate over prompts with completions, without end."""
    generators = {"chain_sum": chain_sum, "countdown": countdown}
    while True:
        (name,) = rng.choices(list(shares), list(shares.values()))
        (style,) = rng.choices(list(mix), list(mix.values()))
        task = generators[name](rng, slips=style == "slip")
        text = f"<answer>{task.answer}</answer>"
        if style == "unmarked":
            text = f"So it is {task.answer}."
        if style != "bare":
            text = f"{task.steps} {text}"
        yield TEMPLATE.format(question=task.question), text


class WorkedTask(NamedTuple):
    """A question with the steps to an answer."""

    question: str
    steps: str
    answer: str


def chain_sum(rng: random.Random, *, slips: bool) -> WorkedTask:
    """Draw a sum of a few numbers of as many digits, with one wrong result if it slips."""
    digits = rng.randint(CHAIN_SUM["min_digits"], CHAIN_SUM["max_digits"])
    count = rng.randint(CHAIN_SUM["min_terms"], CHAIN_SUM["max_terms"])
    smallest = 0
    if digits > 1:
        smallest = 10 ** (digits - 1)
    total, *terms = [rng.randint(smallest, 10**digits - 1) for _ in range(count)]
    signs = [rng.choice("+-") for _ in terms]
    wrong_index = None
    if slips:
        wrong_index = rng.randrange(len(signs))
    expression = str(total)
    steps = []
    for index, (sign, term) in enumerate(zip(signs, terms, strict=True)):
        result = OPERATIONS[sign](total, term)
        if index == wrong_index:
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        steps.append(f"{total} {sign} {term} = {result}.")
        expression = f"{expression} {sign} {term}"
        total = result
    return WorkedTask(SUM.format(expression=expression), " ".join(steps), str(total))


def countdown(rng: random.Random, *, slips: bool) -> WorkedTask:
    """Draw numbers with a target; a slip is an expression of the same numbers that misses the target."""
    solution = draw_expression(rng)
    while not COUNTDOWN["min_target"] <= solution.value <= COUNTDOWN["max_target"]:
        solution = draw_expression(rng)
    target = solution.value
    numbers = rng.sample(solution.numbers, len(solution.numbers))
    listed_numbers = ", ".join(map(str, numbers))
    question = rng.choice(FIND).format(numbers=listed_numbers, target=target) + RULES
    if slips:
        solution = draw_expression(rng, numbers)
        while solution.value == target:
            solution = draw_expression(rng, numbers)
    return WorkedTask(question, solution.steps, solution.expression)


class Evaluation(NamedTuple):
    """An expression of numbers, worked out from left to right."""

    numbers: list[int]
    value: int
    steps: str
    expression: str


def draw_expression(rng: random.Random, numbers: list[int] | None = None) -> Evaluation:
    """Draw an expression (of the given numbers, in any order) whose intermediate results are all whole."""
    while True:
        count = rng.randint(COUNTDOWN["min_numbers"], COUNTDOWN["max_numbers"])
        operands = [rng.randint(1, COUNTDOWN["max_value"]) for _ in range(count)]
        if numbers is not None:
            operands = rng.sample(numbers, len(numbers))
        evaluation = evaluate_with_random_signs(operands, rng)
        if evaluation is not None:
            return evaluation


def evaluate_with_random_signs(operands: list[int], rng: random.Random) -> Evaluation | None:
    """Join operands by random signs and work them out; None as soon as a result is not whole."""
    value, expression = Fraction(operands[0]), str(operands[0])
    steps = []
    for index, operand in enumerate(operands[1:]):
        sign = rng.choice("+-*/")
        result = OPERATIONS[sign](value, operand)
        steps.append(f"{value} {sign} {operand} = {result}.")
        if index and sign in "*/":
            expression = f"({expression})"
        value = result
        expression = f"{expression} {sign} {operand}"
        if value.denominator != 1:
            return None
    return Evaluation(operands, int(value), " ".join(steps), expression)
