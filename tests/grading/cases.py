"""Tables of `cases.toml`: answers, verdicts, hostile completions, arithmetic, mistakes of graders."""

import tomllib
from pathlib import Path


def join_parts(parts):
    """The text of its parts, of which some are [text, times]."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            repeated, times = part
            text += repeated * times
    return text


def with_answers(rows):
    """Completions with their answers, None where a row has none."""
    pairs = []
    for completion, *answers in rows:
        answer = answers[0] if answers else None
        pairs.append((completion, answer))
    return pairs


def determinant(size):
    """A matrix of products of variables, as LaTeX."""
    rows = []
    for row in range(size):
        cells = [f"x_{row}y_{column}" for column in range(size)]
        rows.append("&".join(cells))
    return r"\begin{vmatrix}" + r"\\".join(rows) + r"\end{vmatrix}"


CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
ANSWERS = {answer_format: with_answers(rows) for answer_format, rows in CASES["answers"].items()}

# Completions that break graders: each has to be answered in time, harmlessly, and never as correct.
GOLD = r"\pi+1"
BOXED = {name: join_parts(parts) for name, parts in CASES["hostile"]["boxed"].items()}
BOXED["sum of many terms"] = "+".join(f"x_{{{number}}}" for number in range(150))
BOXED["product of sums"] = "".join(f"(x+{number})" for number in range(60))
BOXED["determinant"] = determinant(9)
BOXED["control characters"] = "".join(map(chr, range(32))) + "1"
BOXED["lone surrogate"] = "\ud800"
HOSTILE = {name: join_parts(parts) for name, parts in CASES["hostile"]["whole"].items()}
for name, answer in BOXED.items():
    HOSTILE[name] = rf"The answer is \boxed{{{answer}}}"
