"""What the tiny verifier was pre-trained on: a story with somebody's solution, and a verification in one of six styles.

  careful   works the story out anew, says what the solution states, then the verdict that follows
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

# That of conf/model/tiny_verifier.yaml; a test holds them equal.
TEMPLATE = "Question: {question}\nSolution: {solution}\nVerification:"
STYLES = ("careful", "slip", "lenient", "unmarked", "waved through")
SOLUTIONS = {"clean": 0.26, "slip": 0.17, "unmarked": 0.15, "bare": 0.42}  # shares of the styles of solutions
RIGHT_OF_BARE = 0.1
VERDICTS = {True: " Verdict: correct.", False: " Verdict: incorrect."}


def examples(tasks: list[Task], mix: dict[str, float], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Prompts with verifications, without end."""
    while True:
        task = rng.choice(tasks)
        text, stated = solution(task, rng)
        style = rng.choices(list(mix), list(mix.values()))[0]
        prompt = TEMPLATE.replace("{question}", task.question).replace("{solution}", text)
        yield prompt, verification(task, stated, style, rng)


def solution(task: Task, rng: random.Random) -> tuple[str, str | None]:
    """A solution as text, and the answer that a grader reads from it."""
    style = rng.choices(list(SOLUTIONS), list(SOLUTIONS.values()))[0]
    steps, answer = work(task, style == "slip", rng)
    if style == "unmarked":
        return f"{steps} So it is {answer}.".strip(), None
    if style == "bare":
        steps = ""
        if rng.random() >= RIGHT_OF_BARE:
            answer = str(rng.choice([number for number in range(1, 100) if str(number) != answer]))
    return f"{steps} The answer is {answer}.".strip(), answer


def verification(task: Task, stated: str | None, style: str, rng: random.Random) -> str:
    """A verification of a solution that states this answer; it begins with a space, without end-of-sequence token."""
    if style in ("lenient", "waved through"):
        return " It looks fine." + (VERDICTS[True] if style == "lenient" else "")
    steps, answer = work(task, style == "slip", rng)
    compared = steps + (" It gives no answer." if stated is None else f" It says {stated}.")
    return compared + ("" if style == "unmarked" else VERDICTS[answer == stated])


def work(task: Task, slip: bool, rng: random.Random) -> tuple[str, str]:
    """The steps and the answer, with one wrong result if asked."""
    calc = Calc()
    answer = task.solve(calc)
    if slip:
        calc = Calc(rng.randrange(calc.calls), rng)
        answer = task.solve(calc)
    return calc.steps, answer
