"""Hold topr_exp/data/gym_tasks.json against the behaviour of reasoning-gym's tasks with golds and with garbage.

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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topr_exp.data.reasoning_gym import EXCLUDED, TASKS
from topr_exp.grading import gym, worker
from topr_exp.grading.extraction import tagged

DRAWN_COUNT = 60  # problems of a task
SCORED_COUNT = 20
DRAWN_OF_SLOW_TASKS = {
    "futoshiki": 4,
    "knight_swap": 4,
    "zebra_puzzles": 20,
    "quantum_lock": 20,
    "intermediate_integration": 20,
}
GARBAGE = (
    "garbage", "I don't know", "?", "-", ".", "nan", "inf", "1e999", "9" * 5000, "(" * 300, "x^", "[]", "{}", "()",
    "[[]]", "[1, 2", "[[1, 2], [3, 4]]", '["a", "b"]', "['a', 'b']", '{"a": 1}', "{'a': {'b': [1]}}", "1+1", "2*x + C",
    "1/0", "__import__('os')", "A -> B", "a,b,c", "7 7 7\n7 7 7\n7 7 7", "\x00", "🙂",
)  # fmt: skip
Entry = dict[str, Any]  # a problem as reasoning-gym draws it


@dataclass
class Trial:
    """Faults of a task in one process; None where there is none."""

    draw_error: str | None = None
    digest: str | None = None  # of the problems
    refused_gold: str | None = None
    paid_garbage: str | None = None
    paid_hedge: str | None = None  # a gold with garbage or another gold beside it
    refused_act: str | None = None
    refused_gold_before_json: str | None = None


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--in-this-process"]:
        trials = try_tasks(arguments[1:])
        print(json.dumps({name: asdict(trial) for name, trial in trials.items()}))
        return 0
    first, second = try_in_a_process("1", arguments), try_in_a_process("2", arguments)
    listed = {*TASKS, *EXCLUDED}
    missing = set(arguments or listed) - first.keys()
    lines = [f"{name}: not there" for name in sorted(missing)]
    for name, trial in first.items():
        reasons = reasons_against(trial, second[name])
        excluded_for = EXCLUDED.get(name)
        is_right = not reasons
        if excluded_for:
            is_right = excluded_for in reasons
        if name in listed and is_right:
            continue
        lines.append(f"{name}: listed as {excluded_for or 'offered'}, found {sorted(reasons) or 'sound'}")
    for line in lines:
        print(line)
    return int(bool(lines))


def try_in_a_process(hash_seed: str, names: Sequence[str]) -> dict[str, Trial]:
    """Try tasks in a process that hashes texts by a seed, in an empty folder."""
    root = Path(__file__).resolve().parents[1]
    search_path = [str(root), *sys.path]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(search_path)}
    command = [sys.executable, "-m", "scripts.try_gym_tasks", "--in-this-process", *names]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment,
            check=True,
        )
    last_line = process.stdout.splitlines()[-1]
    return {name: Trial(**fields) for name, fields in json.loads(last_line).items()}


def reasons_against(first: Trial, second: Trial) -> set[str]:
    """Say why a task can't be offered, in the words of the list; empty if it can."""
    reasons = set()
    if first.draw_error:
        reasons.add("it mixes other tasks, which it has to be told")
    if first.refused_act:
        reasons.add("its scorer evaluates text")
    if first.refused_gold and first.refused_gold_before_json:
        reasons.add("its scorer refuses its own gold")
    if first.refused_gold and not first.refused_gold_before_json:
        reasons.add("its scorer refuses its own gold once that has been JSON")
    if first.paid_garbage:
        reasons.add("its scorer pays garbage")
    if first.paid_hedge:
        reasons.add("its scorer pays its gold with garbage behind it")
    if first.digest != second.digest:
        reasons.add("one seed does not draw the same problems twice")
    return reasons


class ActRecorder:
    """Notes acts that a sealed grading worker would refuse, while `is_on`."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.is_on = False
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.is_on and (act := worker.refused(event, arguments)) is not None:
            self.acts.append(act)


def try_tasks(names: Sequence[str]) -> dict[str, Trial]:
    """Try tasks (none named: all) in this process."""
    recorder = ActRecorder()
    gym.prepare()
    from reasoning_gym.factory import DATASETS

    return {name: try_task(name, recorder) for name in names or sorted(DATASETS)}


def try_task(name: str, recorder: ActRecorder) -> Trial:
    try:
        entries = draw(name)
    except Exception as error:
        return Trial(draw_error=f"{type(error).__name__}: {error}")
    entries_text = json.dumps(entries)
    json_entries = json.loads(entries_text)
    scored_entries = json_entries[:SCORED_COUNT]
    recorder.acts.clear()
    recorder.is_on = True
    trial = Trial(
        digest=hashlib.blake2b(entries_text.encode()).hexdigest(),
        refused_gold=refused_gold(scored_entries),
        paid_garbage=paid_answer(garbage(scored_entries)),
        paid_hedge=paid_answer(hedges(scored_entries)),
    )
    recorder.is_on = False
    if recorder.acts:
        trial.refused_act = recorder.acts[0]
    trial.refused_gold_before_json = refused_gold(entries[:SCORED_COUNT])
    return trial


def draw(name: str) -> list[Entry]:
    """Draw problems of a task; other draws from the global generator must not change them."""
    from reasoning_gym import create_dataset

    random.seed()
    count = DRAWN_OF_SLOW_TASKS.get(name, DRAWN_COUNT)
    dataset = create_dataset(name, seed=1234567, size=count)
    entries = []
    for index in range(count):
        entries.append({"task": name, "options": {}, **dataset[index]})
    return entries


def refused_gold(entries: Sequence[Entry]) -> str | None:
    """Return the first gold that does not score 1 in a completion, with its score."""
    for entry in entries:
        answer = tagged(f"<answer>{entry['answer']}</answer>")
        score = None
        if answer is not None:
            score = gym.score(answer, entry)
        if score != 1:
            return f"{score} for {answer}"
    return None


def paid_answer(answers: Iterator[tuple[str, Entry]]) -> str | None:
    """Return the first answer that scores 1."""
    for answer, entry in answers:
        if gym.score(answer, entry) >= 1:
            return answer
    return None


def garbage(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    for entry in entries:
        for answer in GARBAGE:
            if answer != entry["answer"]:
                yield answer, entry


def hedges(entries: Sequence[Entry]) -> Iterator[tuple[str, Entry]]:
    """Iterate over golds with garbage or another gold beside them."""
    next_entries = [*entries[1:], entries[0]]
    for entry, next_entry in zip(entries, next_entries, strict=True):
        gold, other_gold = entry["answer"], next_entry["answer"]
        yield f"{gold} or else garbage", entry
        if other_gold != gold:
            yield f"{other_gold} {gold}", entry
            yield f"{gold} {other_gold}", entry


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
