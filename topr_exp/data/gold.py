"""Gold answers, and levels, as the benchmarks write them."""

from __future__ import annotations

import contextlib
import math
import re

from topr_exp.types import TOPRError

GSM8K_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?")


def gsm8k_gold(solution: str) -> str | None:
    """The number after the last "####", without thousands separators and dollar signs; None where there is none."""
    _, mark, tail = solution.rpartition("####")
    number = tail.strip().replace(",", "").replace("$", "")
    return number if mark and GSM8K_NUMBER.fullmatch(number) else None


def math_gold(solution: str) -> str | None:
    r"""The content of the last \boxed (or \fbox) of a solution, braces balanced; None where there is none.

    MATH also writes a single character without braces, as in "\boxed 5".
    """
    start = max(solution.rfind(r"\boxed"), solution.rfind(r"\fbox"))
    if start < 0:
        return None
    after = solution[start:].removeprefix(r"\boxed").removeprefix(r"\fbox").lstrip()
    if not after.startswith("{"):
        return after.split("$")[0].split()[0] if after.split("$")[0].strip() else None
    depth = 0
    for index, character in enumerate(after):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return after[1:index].strip() or None
    return None


def refuse_no_number(where: str, gold: str) -> None:
    """Raise TOPRError for a gold that no answer can equal: NaN, or beyond all numbers of a computer (1e999)."""
    for part in re.split(r"[\[\](){},;\s]+", gold):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(part)):
                continue
            raise TOPRError(f"{where}: the gold answer {gold} is no finite number")


def level_of(value: object) -> int | None:
    """1 to 5 of what MATH writes as "Level 3"; None for anything else."""
    digits = str(value).removeprefix("Level ")
    return int(digits) if digits in ("1", "2", "3", "4", "5") else None
