"""GSM8K's solutions as completions to imitate, and a stand-in for GSM8K that the shipped tiny model can learn."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reproduce.files import write_file
from topr_exp import Config, ConfigError

CALCULATION = re.compile(r"<<[^>]*>>")  # GSM8K's notes for a calculator
MARK = "####"  # before the answer
STORY = "Mia has {mia} coins. Bea has {difference} more than Mia. How many coins does Bea have now?"
STEPS = "Bea has {mia} + {difference} = <<{mia}+{difference}={bea}>>{bea}."
LARGEST = 20


def write_solutions(path: Path, config: Config) -> None:
    """Write the solutions of the training problems as JSON lines that a run imports, without the calculator's notes.

    TOPRError where the problems can't be read, or have no solutions.
    """
    data: Any = config.data  # GSM8K's have rows
    rows = []
    for _, row in data.rows("train"):
        steps, mark, answer = row["answer"].rpartition(MARK)
        if mark:
            gold = answer.strip().replace(",", "")
            completion = f"{CALCULATION.sub('', steps).strip()}\nThe answer is {gold}."
            rows.append({"question": row["question"], "completion": completion, "gold": gold})
    if not rows:
        allowed = "hub or a folder with GSM8K's files"
        raise ConfigError(f"data.source={data.source}: no solutions there; allowed: {allowed}")
    write_lines(path, rows)


def write_stand_in(folder: Path) -> None:
    """Write sums in GSM8K's form; those whose product ends in 0 or 5 are for testing."""
    rows_of_split: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for mia, difference in itertools.product(range(2, LARGEST), repeat=2):
        split = "train" if mia * difference % 5 else "test"
        bea = mia + difference
        question = STORY.format(mia=mia, difference=difference)
        steps = STEPS.format(mia=mia, difference=difference, bea=bea)
        rows_of_split[split].append({"question": question, "answer": f"{steps}\n{MARK} {bea}"})
    for split, rows in rows_of_split.items():
        write_lines(folder / f"{split}.jsonl", rows)


def write_lines(path: Path, rows: Iterable[dict[str, str]]) -> None:
    write_file(path, "".join(f"{json.dumps(row)}\n" for row in rows))
