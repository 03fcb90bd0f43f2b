"""kill -9 at fifty random moments over a run's life; the same run again each time; the same bits at the end."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from tests.conftest import config_of
from tests.sweep_tools import TINY, result

KILLS = 50
SETTINGS = [*TINY, "optim.epochs=3", "iterations=2", "cluster.threads=1"]


def attempt(output: Path) -> ForkServerProcess:
    """The run in a process of its own, forked from one that has everything imported: kills find it at work."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["topr_exp.sweeps.warm", "tests.sweeps.test_kills"])
    process = context.Process(target=work, args=(output,))
    process.start()
    return process


def work(output: Path) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    from topr_exp.pipeline import run

    run(config_of(*SETTINGS, f"output_dir={output}"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_kills(tmp_path: Path) -> None:
    attempt(tmp_path / "warm").join()
    began = time.monotonic()
    attempt(tmp_path / "undisturbed").join()
    life = time.monotonic() - began
    wanted = result(config_of(*SETTINGS, f"output_dir={tmp_path / 'undisturbed'}").folder)
    rng, found, number = random.Random(0), Counter[str](), 0
    while found.total() < KILLS:
        number += 1
        output = tmp_path / str(number)
        folder = config_of(*SETTINGS, f"output_dir={output}").folder
        process = attempt(output)
        time.sleep(rng.uniform(0, life))
        process.kill()
        process.join()
        if (folder / "DONE").exists():  # too late to count: the machine is faster than it was
            life *= 0.9
            continue
        found[stage(folder / "state.json")] += 1
        last = attempt(output)
        last.join()
        assert last.exitcode == 0
        assert result(folder) == wanted, f"kill {number}"
        shutil.rmtree(output)
    print(f"{KILLS} kills of a run at work, by stage: {dict(found)}", file=sys.stderr)
    assert len(found) >= 3, found


def stage(state: Path) -> str:
    return str(json.loads(state.read_text())["stage"] or "start") if state.exists() else "start"
