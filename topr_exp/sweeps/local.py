"""Scheduler of this machine: runs of a sweep as processes, several at once, which take turns on its GPUs."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from topr_exp.config.groups import ClusterConfig
from topr_exp.runs import run_lock
from topr_exp.runtime import distributed, locks
from topr_exp.runtime.stop import StopFlag
from topr_exp.runtime.terminal import plural, say
from topr_exp.sweeps.clusters import LocalCluster
from topr_exp.sweeps.processes import Child, run_in_processes, share_threads, supervise
from topr_exp.sweeps.run_status import RunState, RunStatus, read_status
from topr_exp.sweeps.scheduler import Scheduler
from topr_exp.sweeps.sweep import Run

FIRST_REPORT_SECONDS = 10
REPORT_SECONDS = 60


class LocalScheduler(Scheduler):
    """Processes of this machine: they begin at once, live while `submit` runs, and show by their folders' claims."""

    place = "on this machine"

    def submit(self, runs: Sequence[Run], cluster: ClusterConfig) -> None:
        """Run all, `cluster.jobs` at once, and print how each ended; a stop signal ends them, and no other starts."""
        assert isinstance(cluster, LocalCluster)
        stop = StopFlag()
        with stop.listening():
            run_all(runs, cluster.jobs, stop)
        stop.check()

    def cancel(self, statuses: Sequence[RunStatus], launcher_claim: Path | None) -> list[str]:
        claims = [status.run.folder / run_lock.CLAIM for status in statuses if not status.job_id]
        if launcher_claim is not None:
            claims.insert(0, launcher_claim)
        complaints = map(terminate, claims)
        return list(filter(None, complaints))


def terminate(claim: Path) -> str:
    """Send SIGTERM to the process that holds a claim; returns why it is left alone, "" if it is not.

    It is left alone if it can't be seen to hold the claim.
    """
    process = locks.living_owner(claim)
    if process is None:
        return ""
    with contextlib.suppress(OSError):  # over by now, or another user's
        if process.is_on_this_host() and process.has_open(claim):
            os.kill(process.pid, signal.SIGTERM)
            return ""
    if locks.living_owner(claim) is None:
        return ""
    reason = "it is not here, not yours, or at other work"
    if not locks.PROC.exists():  # as on macOS
        reason = "without /proc it can't be seen to hold the claim; end it by kill, or by Ctrl-C where it was started"
    return f"{claim}: process {process} is left alone; {reason}"


def run_all(runs: Sequence[Run], parallel_runs: int, stop: StopFlag) -> None:
    """Run all, so many at once, and print how each ended."""
    run_by_child: dict[Child, Run] = {}
    ticker = Ticker(runs)
    runs_at_once = min(parallel_runs, len(runs))  # that share the machine

    def start(run: Run, slot: int) -> Child:
        log = run.log.resolve()
        child = Child("the run", log, run_one, run, log, runs_at_once, slot)
        run_by_child[child] = run
        return child

    def report(child: Child, error: BaseException | None) -> None:
        ticker.count_end()
        status = read_status(run_by_child[child])
        status = replace(status, error=str(error or status.error))
        say(f"{time.strftime('%H:%M:%S')} {status}")

    supervise([partial(start, run) for run in runs], stop, report, slots=parallel_runs, tick=ticker.tick)


def run_one(run: Run, log: Path, parallel_runs: int, slot: int) -> None:
    """Be the process of a run, of which so many run at once."""
    choose_gpus(slot, run.settings["cluster"]["processes"], parallel_runs)
    share_threads(parallel_runs)
    run_in_processes(run.enter(), log)


def choose_gpus(slot: int, gpus_per_run: int, parallel_runs: int) -> None:
    """Make only the slot's GPUs visible, before the first use of one; note how many runs share a GPU."""
    gpus = distributed.visible_gpus()
    gpu_sets = max(1, len(gpus) // gpus_per_run)  # of one run each; the slots take turns on them
    os.environ[distributed.RUNS_PER_GPU] = str(math.ceil(parallel_runs / gpu_sets))
    if len(gpus) > gpus_per_run:
        set_index = slot % gpu_sets
        first_gpu = set_index * gpus_per_run
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first_gpu : first_gpu + gpus_per_run])


class Ticker:
    """Prints how far runs of this machine are, soon after the start and then once a minute."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.ended_count = 0  # a run that failed in an earlier launch, and is yet to start, has not ended
        self.began = time.monotonic()
        self.next_report = self.began + FIRST_REPORT_SECONDS

    def count_end(self) -> None:
        """Count a run that has ended."""
        self.ended_count += 1

    def tick(self) -> None:
        """Print a line if one is due."""
        now_seconds = time.monotonic()
        if now_seconds >= self.next_report:
            self.next_report = now_seconds + REPORT_SECONDS
            statuses = [read_status(run) for run in self.runs]
            line = describe_progress(statuses, self.ended_count, now_seconds - self.began)
            say(f"{time.strftime('%H:%M:%S')} {line}")


def describe_progress(statuses: Sequence[RunStatus], ended_count: int, seconds: float) -> str:
    """Format how many runs have ended after so many seconds, an estimate for the others, and the stages at work."""
    line = f"{ended_count} of {plural(len(statuses), 'run')} ended"
    if ended_count:
        seconds_left = seconds / ended_count * (len(statuses) - ended_count)
        line += f", about {math.ceil(seconds_left / 60)} min left"
    stages = [f"run {status.run.number} {status.stage}" for status in statuses if status.state == RunState.RUNNING]
    if stages:
        line += f"; {', '.join(stages)}"
    return line
