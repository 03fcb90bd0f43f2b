"""Graders as a user would write them, good and bad."""

import ast
import os
import time


def contains(completion: str, gold: str) -> str:
    return "correct" if gold in completion else "incorrect"


def with_answer(completion: str, gold: str) -> tuple[str, str | None]:
    words = completion.split()
    return ("correct" if gold in words else "incorrect", words[-1]) if words else ("invalid", None)


def endless(completion: str, gold: str) -> str:
    while "wait" in completion:
        time.sleep(0.01)
    return "correct"


def raising(completion: str, gold: str) -> str:
    raise ValueError("no\nidea")


def wrong_type(completion: str, gold: str) -> bool:
    return True


def dying(completion: str, gold: str) -> str:
    os._exit(3)


def dying_if_told(completion: str, gold: str) -> str:
    return "correct" if completion == "go" else dying(completion, gold)


def dying_without_file(completion: str, gold: str) -> tuple[str, str]:
    """Says from when to when it was at work, in the seconds of one clock for all processes."""
    if gold and not os.path.exists(gold):
        os._exit(3)
    began = time.monotonic()
    time.sleep(float(completion))
    return "correct", f"{began} {time.monotonic()}"


def wrong_object(completion: str, gold: str) -> object:
    return {"correct"}


def evaluating(completion: str, gold: str) -> str:
    return str(eval(completion))


def evaluating_a_tree(completion: str, gold: str) -> str:
    return str(eval(compile(ast.parse(completion, mode="eval"), "<unknown>", "eval")))


def reading_a_literal(completion: str, gold: str) -> str:
    import colorsys  # late, and of no bytecode before

    assert colorsys
    return "correct" if list(ast.literal_eval(completion)) == ast.literal_eval(gold) else "incorrect"


def greedy(completion: str, gold: str) -> str:
    hoard = []
    while True:
        hoard.append(bytearray(1 << 26))


def swelling(completion: str, gold: str) -> str:
    return "correct" if len(b"x" * (500 << 20)) else "incorrect"


def writing(completion: str, gold: str) -> str:
    with open(completion, "w") as file:
        file.write("x")
    return "correct"


def closeness(completion: str, gold: str) -> object:
    """What a grader may return beside a verdict, or not: the completion says which."""
    import fractions

    said = {
        "number": 0.5,
        "whole": 1,
        "of a library": fractions.Fraction(1, 4),
        "with answer": (2.5, "5"),
        "with verdict": ("invalid", None, -3),
        "verdict alone": "correct",
        "nan": float("nan"),
        "inf": (float("-inf"), "5"),
        "large": 10**400,
        "true": (True, "5"),
        "twice": (0.5, "5", 0.5),
        "text": ("correct", "5", "0.5"),
        "four": ("correct", "5", 1, 1),
    }
    if completion == "died":
        os._exit(3)
    return said[completion]


NOT_CALLABLE = 3
