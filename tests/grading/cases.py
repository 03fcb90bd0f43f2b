"""Tables of `cases.toml`: answers, verdicts, hostile completions, arithmetic, mistakes of graders."""

import tomllib
from pathlib import Path


def join_parts(parts):
    """The text of its parts, of which some are [text, times]."""
    text = ""
    for part in parts:
        text += part if isinstance(part, str) else part[0] * part[1]
    return text


def with_answers(rows):
    """Completions with their answers, None where a row has none."""
    return [(row[0], row[1] if row[1:] else None) for row in rows]


CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
ANSWERS = {answer_format: with_answers(rows) for answer_format, rows in CASES["answers"].items()}

# Completions that break graders: each has to be answered in time, harmlessly, and never as correct.
GOLD = r"\pi+1"
BOXED = {name: join_parts(parts) for name, parts in CASES["hostile"]["boxed"].items()}
BOXED["sum of many terms"] = "+".join(map("x_{{{}}}".format, range(150)))
BOXED["product of sums"] = "".join(map("(x+{})".format, range(60)))
DETERMINANT_ROWS = ["&".join(f"x_{row}y_{column}" for column in range(9)) for row in range(9)]
BOXED["determinant"] = r"\begin{vmatrix}" + r"\\".join(DETERMINANT_ROWS) + r"\end{vmatrix}"
BOXED["control characters"] = "".join(map(chr, range(32))) + "1"
BOXED["lone surrogate"] = "\ud800"
HOSTILE = {name: join_parts(parts) for name, parts in CASES["hostile"]["whole"].items()}
for name, answer in BOXED.items():
    HOSTILE[name] = rf"The answer is \boxed{{{answer}}}"
