"""The tables of `cases.toml`: answers, verdicts, and completions that break graders.

Each of those has to be answered in time, harmlessly, and never as correct.
"""

import tomllib
from pathlib import Path

CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
ANSWERS = {format: [(row[0], row[1] if row[1:] else None) for row in rows] for format, rows in CASES["answers"].items()}
VERDICTS = {format: [tuple(row) for row in rows] for format, rows in CASES["verdicts"].items()}
GOLD = r"\pi+1"


def joined(parts: str | list[str | tuple[str, int]]) -> str:
    """The text of parts, some of them repeated."""
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


DETERMINANT = r"\\".join("&".join(f"x_{i}y_{j}" for j in range(9)) for i in range(9))
IN_A_BOX = {name: joined(parts) for name, parts in CASES["hostile"]["boxed"].items()} | {
    "sum of many terms": "+".join(f"x_{{{i}}}" for i in range(150)),
    "product of sums": "".join(f"(x+{i})" for i in range(60)),
    "determinant": r"\begin{vmatrix}" + DETERMINANT + r"\end{vmatrix}",
    "control characters": "".join(chr(i) for i in range(32)) + "1",
    "lone surrogate": "\ud800",
}
HOSTILE = {name: rf"The answer is \boxed{{{answer}}}" for name, answer in IN_A_BOX.items()}
HOSTILE |= {name: joined(parts) for name, parts in CASES["hostile"]["whole"].items()}
