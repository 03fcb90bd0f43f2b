"""Hold topr_exp/data/gym_tasks.json against what tasks of reasoning-gym do with golds and with garbage.

`python -m scripts.try_gym_tasks [TASK ...]` (none named: all, which takes minutes) ends with status 1 where the list
is wrong. Two processes that hash texts differently try each task, in a folder by themselves: to draw, some run programs
that write files. They note each act that a sealed grading worker would refuse while an answer is scored, such as
evaluating a text.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from topr_exp.data.reasoning_gym import EXCLUDED, TASKS
from topr_exp.grading import gym, worker
from topr_exp.grading.extraction import tagged

DRAWN, SCORED = 60, 20
SLOW = {"futoshiki": 4, "knight_swap": 4, "zebra_puzzles": 20, "quantum_lock": 20, "intermediate_integration": 20}
GARBAGE = (
    "garbage", "I don't know", "?", "-", ".", "nan", "inf", "1e999", "9" * 5000, "(" * 300, "x^", "[]", "{}", "()",
    "[[]]", "[1, 2", "[[1, 2], [3, 4]]", '["a", "b"]', "['a', 'b']", '{"a": 1}', "{'a': {'b': [1]}}", "1+1", "2*x + C",
    "1/0", "__import__('os')", "A -> B", "a,b,c", "7 7 7\n7 7 7\n7 7 7", "\x00", "🙂",
)  # fmt: skip


def main() -> int:
    if sys.argv[1:2] == ["--in-this-process"]:
        print(json.dumps(tried(sys.argv[2:])))
        return 0
    told = [in_a_process(seed, sys.argv[1:]) for seed in ("1", "2")]
    missing = {*(sys.argv[1:] or [*TASKS, *EXCLUDED])} - told[0].keys()
    wrong = int(bool(missing))
    print(*(f"{name}: not there" for name in sorted(missing)), sep="\n", end="")
    for name in told[0]:
        found, listed = reasons([each[name] for each in told]), EXCLUDED.get(name)
        if name not in {*TASKS, *EXCLUDED} or (listed not in found if listed else found):
            print(f"{name}: listed as {listed or 'offered'}, found {sorted(found) or 'sound'}")
            wrong = 1
    return wrong


def in_a_process(hash_seed: str, names: list[str]) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "scripts.try_gym_tasks", "--in-this-process", *names]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def reasons(told: list[dict[str, Any]]) -> set[str]:
    """Why a task can't be offered, as the list says it; empty where it can."""
    one = told[0]
    found = {
        "it mixes other tasks, which it has to be told": one["draw"],
        "its scorer evaluates text": one["acts"],
        "its scorer refuses its own gold": one["gold"] and one["gold_before_json"],
        "its scorer refuses its own gold once that has been JSON": one["gold"] and not one["gold_before_json"],
        "its scorer pays garbage": one["garbage"],
        "its scorer pays its gold with garbage behind it": one["hedge"],
        "one seed does not draw the same problems twice": len({each["digest"] for each in told}) > 1,
    }
    return {reason for reason, holds in found.items() if holds}


def tried(names: list[str]) -> dict[str, Any]:
    """What some tasks do, by their names."""
    noted: list[str] = []
    scoring = False

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if scoring and (what := worker.refused(event, arguments)) is not None:
            noted.append(what)

    sys.addaudithook(note)
    gym.prepare()
    from reasoning_gym.factory import DATASETS

    found: dict[str, Any] = {}
    for name in names or sorted(DATASETS):
        found[name] = told = dict[str, Any].fromkeys(
            ("draw", "digest", "gold", "garbage", "hedge", "acts", "gold_before_json")
        )
        try:
            drawn = draw(name)
        except Exception as error:
            told["draw"] = f"{type(error).__name__}: {error}"
            continue
        as_golds = [json.loads(json.dumps(entry)) for entry in drawn]
        told["digest"] = hashlib.blake2b(json.dumps(as_golds).encode()).hexdigest()
        noted.clear()
        scoring = True
        told["gold"] = refused_gold(as_golds[:SCORED])
        told["garbage"] = paid(garbage(as_golds[:SCORED]))
        told["hedge"] = paid(hedges(as_golds[:SCORED]))
        scoring = False
        told["acts"] = noted[0] if noted else None
        told["gold_before_json"] = refused_gold(drawn[:SCORED])
    return found


def draw(name: str) -> list[dict[str, Any]]:
    """Problems; what else has drawn from the global generator must not change them."""
    from reasoning_gym import create_dataset

    random.seed()
    count = SLOW.get(name, DRAWN)
    made = create_dataset(name, seed=1234567, size=count)
    return [{"task": name, "options": {}, **made[k]} for k in range(count)]


def refused_gold(drawn: list[dict[str, Any]]) -> str | None:
    """The first gold that does not score 1 in a completion, with what it scores."""
    for entry in drawn:
        answer = tagged(f"<answer>{entry['answer']}</answer>")
        value = gym.score(answer, entry) if answer is not None else None
        if value != 1:
            return f"{value} for {answer}"
    return None


def paid(answers: Iterator[tuple[str, dict[str, Any]]]) -> str | None:
    """The first answer that scores 1."""
    return next((answer for answer, entry in answers if gym.score(answer, entry) >= 1), None)


def garbage(drawn: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((answer, entry) for entry in drawn for answer in GARBAGE if answer != entry["answer"])


def hedges(drawn: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A gold with garbage or another gold beside it."""
    for entry, other in zip(drawn, [*drawn[1:], drawn[0]], strict=True):
        gold = entry["answer"]
        yield f"{gold} or else garbage", entry
        if other["answer"] != gold:
            yield f"{other['answer']} {gold}", entry
            yield f"{gold} {other['answer']}", entry


if __name__ == "__main__":
    sys.exit(main())
