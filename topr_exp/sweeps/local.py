"""Runs of a sweep in processes of this machine, several at once.

Importing torch and transformers takes seconds, so one process does it once and each run is forked from it: a fork
server, which has no threads and has never touched a GPU. A run that crashes takes nothing with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from topr_exp import attempt, interrupts
from topr_exp.sweeps import group
from topr_exp.sweeps.sweep import LOG, Run, Sweep

WARM = "topr_exp.sweeps.warm"
SECONDS_BETWEEN_REPORTS = 60.0


def run_here(
    sweep: Sweep, runs: Sequence[Run], jobs: int, threads: int | None, report: Callable[[Run | None, str], None]
) -> None:
    """Run these, `jobs` at once; `report(run, message)` after each, the message "" for one that is done, and
    `report(None, "")` now and then while none ends.

    When a signal stops the sweep the runs are told to stop too; Interrupted is raised once they have saved and ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    processes = max(run.settings["cluster"]["processes"] for run in runs)
    threads = threads or share_of_cores(min(jobs, len(runs)) * processes)
    waiting, slots = list(reversed(runs)), list(reversed(range(jobs)))
    working: dict[ForkServerProcess, tuple[Run, connection.Connection, int]] = {}
    try:
        while waiting or working:
            while waiting and slots:
                run, slot = waiting.pop(), slots.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=work, args=(run, sweep.path(run), threads, slot, theirs))
                process.start()
                theirs.close()
                working[process] = (run, ours, slot)
            if not connection.wait([process.sentinel for process in working], timeout=SECONDS_BETWEEN_REPORTS):
                report(None, "")
            for process in [process for process in working if process.exitcode is not None]:
                run, ours, slot = working.pop(process)
                slots.append(slot)
                report(run, ending(process, ours))
    except (interrupts.Interrupted, KeyboardInterrupt):
        stop(list(working))
        raise


def share_of_cores(jobs: int) -> int | None:
    """CPU threads of a run when so many run at once; None leaves torch's choice to the only one."""
    if jobs == 1:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // jobs, int(asked) if asked.isdecimal() else cores))


def ending(process: ForkServerProcess, messages: connection.Connection) -> str:
    """How a process ended: "" when its run is done, else one line."""
    with messages:
        try:
            return str(messages.recv())
        except EOFError:
            pass
    code = process.exitcode or 0
    return f"killed by {signal.Signals(-code).name} (out of memory?)" if code < 0 else f"ended with exit code {code}"


def stop(processes: Sequence[ForkServerProcess]) -> None:
    """Let the runs save and end; a second Ctrl-C ends them at once."""
    for process in processes:
        process.terminate()
    try:
        with interrupts.deferred():
            for process in processes:
                process.join()
    except (interrupts.Interrupted, KeyboardInterrupt):
        for process in processes:
            process.kill()
        raise


# ---- in the process of a run


def work(run: Run, folder: Path, threads: int | None, slot: int, messages: connection.Connection) -> None:
    """One run, in a process of its own; sends "" or what went wrong."""
    write_into(folder / LOG)
    end_with_launcher()
    choose_gpus(slot, run.settings["cluster"]["processes"])
    if threads is not None:
        run.settings["cluster"]["threads"] = threads
    try:
        log = (folder / LOG).resolve()  # before the run enters the folder that its sweep was started in
        group.start(run.enter(), log)
        messages.send("")
    except interrupts.Interrupted as stopped:
        print(f"{stopped}", file=sys.stderr, flush=True)
        messages.send(str(stopped))
    except Exception as error:
        traceback.print_exc()
        messages.send(attempt.message(error))


def write_into(log: Path) -> None:
    """Append what this process and its children print to a file, which may hold earlier attempts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    redirect(log)
    print(f"==== {attempt.now()}, process {os.getpid()}", flush=True)


def redirect(log: Path) -> None:
    """Append what this process and its children print to a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def end_with_launcher() -> None:
    """Stop, with a checkpoint, when the launcher is killed: nobody would start the rest or see the end."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def choose_gpus(slot: int, count: int) -> None:
    """Spread the runs over the GPUs, `count` for each, before the first use of one."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    if len(names) > count:
        first = slot % (len(names) // count) * count
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + count])
