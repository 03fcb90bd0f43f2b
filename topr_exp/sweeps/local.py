"""Runs of a sweep in processes of this machine, several at once."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from topr_exp.runtime import distributed
from topr_exp.runtime.stop import Interrupted
from topr_exp.sweeps import child, group
from topr_exp.sweeps.child import Child
from topr_exp.sweeps.sweep import LOG, Run, Sweep

SECONDS_BETWEEN_REPORTS = 60.0


def run_locally(
    sweep: Sweep, runs: Sequence[Run], jobs: int, threads: int | None, report: Callable[[Run | None, str], None]
) -> None:
    """Run these, `jobs` at once; `report(run, message)` after each, the message "" for one that is done, and
    `report(None, "")` now and then while none ends.

    When a signal stops the sweep the runs are told to stop too; Interrupted is raised once they have saved and ended.
    """
    processes = max(run.settings["cluster"]["processes"] for run in runs)
    share = child.threads_per_run(min(jobs, len(runs)) * processes)
    waiting, slots = list(reversed(runs)), list(reversed(range(jobs)))
    working: dict[Child, tuple[Run, int]] = {}
    try:
        while waiting or working:
            while waiting and slots:
                run, slot = waiting.pop(), slots.pop()
                working[Child(run_one, run, sweep.path(run), threads, share, slot)] = (run, slot)
            ended = child.wait(working, SECONDS_BETWEEN_REPORTS)
            if not ended:
                report(None, "")
            for each in ended:
                run, slot = working.pop(each)
                slots.append(slot)
                report(run, str(each.ending() or ""))
    except (Interrupted, KeyboardInterrupt):
        stop(list(working))
        raise


def stop(children: Sequence[Child]) -> None:
    """Let the runs save and end; a second Ctrl-C ends them at once."""
    for each in children:
        each.process.terminate()
    try:
        for each in children:
            each.process.join()
    except (Interrupted, KeyboardInterrupt):
        for each in children:
            each.process.kill()
        raise


# ---- in the process of a run


def run_one(run: Run, folder: Path, threads: int | None, share: int | None, slot: int) -> None:
    """One run in a separate process, which writes its errors into the run's log too."""
    log = (folder / LOG).resolve()  # before the run enters the folder that its sweep was started in
    child.redirect_attempt(log)
    choose_gpus(slot, run.settings["cluster"]["processes"])
    run.settings["cluster"]["threads"] = threads
    child.take_share(share)
    try:
        group.run_processes(run.enter(), log)
    except Interrupted as stopped:
        print(f"{stopped}", file=sys.stderr)
        raise
    except Exception:
        traceback.print_exc()
        raise


def choose_gpus(slot: int, count: int) -> None:
    """Spread the runs over the GPUs, `count` for each, before the first use of one."""
    names = distributed.visible_gpus()
    if len(names) > count:
        first = slot % (len(names) // count) * count
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + count])
