"""The list of reasoning-gym's tasks that are offered, derived from what each does with golds and with garbage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, needs_gym
from topr_exp.data.reasoning_gym import EXCLUDED, TASKS

MIXTURE = "composite"  # has no default
# One that is offered, one that has a checker of our own, and one for each reason to be left out.
SAMPLE = (
    "chain_sum",
    "countdown",
    "n_queens",
    "boxnet",
    "arc_agi",
    "game_of_life_halting",
    "gsm_symbolic",
    "word_ladder",
)


def try_tasks(hash_seed: str, folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Try tasks (none named: all) in a folder by themselves: to draw, codeio runs programs that write files."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "tests.data.try_gym_tasks", *names],
        capture_output=True, text=True, cwd=folder, env=environment, timeout=1500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def reasons(told: list[dict[str, Any]]) -> set[str]:
    """Why a task can't be offered, as the table says it; empty where it can."""
    one = told[0]
    found = {
        "its scorer evaluates text": one["acts"],
        "its scorer refuses its own gold": one["gold"] and one["gold_before_json"],
        "its scorer refuses its own gold once that has been JSON": one["gold"] and not one["gold_before_json"],
        "its scorer pays garbage": one["garbage"],
        "its scorer pays its gold with garbage behind it": one["hedge"],
        "one seed does not draw the same problems twice": len({each["digest"] for each in told}) > 1,
    }
    return {reason for reason, holds in found.items() if holds}


def check(told: list[dict[str, Any]]) -> None:
    """Hold the list against what two processes, which hash texts differently, saw of some tasks."""
    first, second = told
    derived = {name: reasons([first[name], second[name]]) for name in first if name != MIXTURE}
    assert [name for name in first if first[name]["draw"]] == [MIXTURE] * (MIXTURE in first)
    assert {name: why for name, why in derived.items() if why and name in TASKS} == {}
    wrong = {name: why for name, why in derived.items() if name in EXCLUDED and EXCLUDED[name] not in why}
    assert wrong == {}


@needs_gym
def test_some_tasks_do_what_the_list_says(tmp_path: Path) -> None:
    assert {EXCLUDED.get(name) for name in (*SAMPLE, MIXTURE)} == {None, *EXCLUDED.values()}
    check([try_tasks(seed, tmp_path, SAMPLE) for seed in ("1", "2")])


@needs_gym
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_tasks_do_what_the_list_says(tmp_path: Path) -> None:
    told = [try_tasks(seed, tmp_path, ()) for seed in ("1", "2")]
    assert told[0].keys() == {*TASKS, *EXCLUDED}
    check(told)
