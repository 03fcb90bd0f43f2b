"""Graders as a user would write them, good and bad."""

import ast
import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass

HOARD = []


def contains(completion, gold):
    return "correct" if gold in completion else "incorrect"


@dataclass(frozen=True)
class Scaled:
    factor: float

    def __call__(self, completion, gold):
        return self.factor * float(completion)


def obedient(completion, gold):
    """Does what the completion says, or returns it, read as JSON."""
    act, _, argument = completion.partition(" ")
    match act:
        case "raise":
            raise ValueError("no\nidea")
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "spin":
            all(itertools.repeat(True))  # in C: no signal is handled, no other thread runs
        case "hoard":
            while True:
                HOARD.append(bytes(1 << 26))
        case "swell":
            HOARD.append(b"x" * (500 << 20))
            return 1
        case "write":
            os.close(os.open(argument, os.O_WRONLY | os.O_CREAT))
        case "eval":
            return eval(argument)
        case "tree":
            return eval(compile(ast.parse(argument, mode="eval"), "<unknown>", "eval"))
        case "literal":
            import colorsys  # late, and of no bytecode before

            assert colorsys
            return int(list(ast.literal_eval(argument)) == ast.literal_eval(gold))
        case "library":
            import fractions

            return fractions.Fraction(1, 4)
        case "print":
            print("said", argument, file=sys.stderr, flush=True)
            os.write(2, f"wrote {argument}\n".encode())
            print("for nobody")
            return 1
        case "object":
            return {"correct"}
        case "randomness":
            return sys.flags.hash_randomization
    value = json.loads(completion)
    return tuple(value) if isinstance(value, list) else value


def interrupted_in_old_workers(seconds, blow):
    """Says from when to when it was at work, by a clock of all processes; blow: a signal, and which workers get it."""
    number, *old_pids = blow.split() or ["0"]
    if str(os.getpid()) in old_pids:
        signal.raise_signal(int(number))
    start = time.monotonic()
    time.sleep(float(seconds))
    return "correct", f"{start} {time.monotonic()}"


NOT_CALLABLE = 3


def send_raw(text):
    """Write to every descriptor of a worker that can be written to, as code below Python could."""
    for descriptor in range(3, 24):
        try:
            os.write(descriptor, text)
        except OSError:
            continue


def misbehaving(completion, gold):
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
