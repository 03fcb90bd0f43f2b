"""Pre-training texts of the tiny verifier: a story with somebody's solution, and a verification in one of five styles.

  careful   solves the story, repeats the answer of the solution, then gives the verdict that follows
  slip      the same with one wrong result, and the verdict that follows from it
  lenient   finds the solution right without looking at it
  unmarked, waved through
            as careful and as lenient, without a verdict, so that a grader finds none (invalid)

The solutions look like those of the model `tiny`: steps that are right or have one wrong result, answers without the
form that a grader reads, and bare answers that are nearly always wrong.
"""

import random
from collections.abc import Iterator

from topr_exp.data.embedded import Calc, Task

# The template of conf/model/tiny_verifier.yaml; a test holds them equal.
TEMPLATE = "Question: {question}\nSolution: {solution}\nVerification:"
STYLES = ("careful", "slip", "lenient", "unmarked", "waved through")
SOLUTIONS = {"clean": 0.26, "slip": 0.17, "unmarked": 0.15, "bare": 0.42}  # shares of the styles of solutions
CORRECT_BARE = 0.1  # share of the bare solutions
VERDICTS = {True: " Verdict: correct.", False: " Verdict: incorrect."}


def examples(tasks: list[Task], mix: dict[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Iterate over prompts with verifications, without end."""
    styles, shares = list(mix), list(mix.values())
    while True:
        task = rng.choice(tasks)
        text, stated_answer = solution(task, rng)
        (style,) = rng.choices(styles, shares)
        prompt = TEMPLATE.replace("{question}", task.question).replace("{solution}", text)
        yield prompt, verification(task, stated_answer, style, rng)


def solution(task: Task, rng: random.Random) -> tuple[str, str | None]:
    """Write a solution; returns its text and the answer that a grader reads from it."""
    (style,) = rng.choices(list(SOLUTIONS), list(SOLUTIONS.values()))
    steps, answer = work_out(task, style == "slip", rng)
    if style == "unmarked":
        return f"{steps} So it is {answer}.".strip(), None
    if style == "bare":
        steps = ""
        if rng.random() >= CORRECT_BARE:
            wrong_answers = [number for number in range(1, 100) if str(number) != answer]
            answer = str(rng.choice(wrong_answers))
    return f"{steps} The answer is {answer}.".strip(), answer


def verification(task: Task, stated_answer: str | None, style: str, rng: random.Random) -> str:
    """Verify a solution that states an answer; starts with a space and has no end-of-sequence token."""
    if style == "waved through":
        return " It looks fine."
    if style == "lenient":
        return " It looks fine." + VERDICTS[True]
    steps, answer = work_out(task, style == "slip", rng)
    text = f"{steps} It says {stated_answer}."
    if stated_answer is None:
        text = f"{steps} It gives no answer."
    if style == "unmarked":
        return text
    return text + VERDICTS[answer == stated_answer]


def work_out(task: Task, slips: bool, rng: random.Random) -> tuple[str, str]:
    """Return the steps and the answer, with one wrong result if it slips."""
    calc = Calc()
    answer = task.solve(calc)
    if slips:
        calc = Calc(rng.randrange(calc.calls), rng)
        answer = task.solve(calc)
    return calc.steps, answer
