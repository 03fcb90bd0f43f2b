"""Graders as a user would write them, good and bad."""

import ast
import json
import os
import sys
import time

KEPT: list[bytes] = []


def contains(completion: str, gold: str) -> str:
    return "correct" if gold in completion else "incorrect"


def with_answer(completion: str, gold: str) -> tuple[str, str | None]:
    words = completion.split()
    return ("correct" if gold in words else "incorrect", words[-1]) if words else ("invalid", None)


def naming_mistakes(completion: str, gold: str) -> str | tuple[str, str]:
    """Gives the answers of incorrect completions alone."""
    return "correct" if completion == gold else ("incorrect", completion)


def obedient(completion: str, gold: str) -> object:
    """Does what the completion says, or returns it, read as JSON."""
    act, _, rest = completion.partition(" ")
    match act:
        case "raise":
            raise ValueError("no\nidea")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "hoard":
            hoard = []
            while True:
                hoard.append(bytearray(1 << 26))
        case "swell":
            KEPT.append(b"x" * (500 << 20))
            return "correct"
        case "write":
            os.close(os.open(rest, os.O_WRONLY | os.O_CREAT))
        case "eval":
            return eval(rest)
        case "tree":
            return eval(compile(ast.parse(rest, mode="eval"), "<unknown>", "eval"))
        case "literal":
            import colorsys  # late, and of no bytecode before

            assert colorsys
            return "correct" if list(ast.literal_eval(rest)) == ast.literal_eval(gold) else "incorrect"
        case "library":
            import fractions

            return fractions.Fraction(1, 4)
        case "print":
            print("said", rest, file=sys.stderr, flush=True)
            os.write(2, f"wrote {rest}\n".encode())
            print("for nobody")
            return "correct"
        case "object":
            return {"correct"}
    said = json.loads(completion)
    return tuple(said) if isinstance(said, list) else said


def dying_without_file(completion: str, gold: str) -> tuple[str, str]:
    """Says from when to when it was at work, in the seconds of one clock for all processes."""
    if gold and not os.path.exists(gold):
        os._exit(3)
    began = time.monotonic()
    time.sleep(float(completion))
    return "correct", f"{began} {time.monotonic()}"


def hashing(completion: str, gold: str) -> tuple[str, str]:
    """Says what the hash of a text is in its process."""
    return "correct", str(hash(completion))


NOT_CALLABLE = 3


def send_raw(text: bytes) -> None:
    """Write to every descriptor of a worker that can be written to, as code below Python could."""
    for descriptor in range(3, 24):
        try:
            os.write(descriptor, text)
        except OSError:
            continue


def misbehaving(completion: str, gold: str) -> str:
    """Sends what is no answer, or only a part of one."""
    match completion:
        case "half":
            send_raw(b'["ok", "corr')
            time.sleep(600)
        case "endless":
            while True:
                send_raw(b"[" * 65536)
        case "number":
            send_raw(b"5\n")
        case "nested":
            send_raw(b"[" * 100_000 + b"\n")
        case "two lines":
            send_raw(b'["ok", 1]\n["ok", 2]\n')
    return "correct"
