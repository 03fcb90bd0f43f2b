"""`python -m topr_exp.sweeps`: how a sweep stands, go on with it, cancel it, read what its runs print.

Everything is read from the sweep's folder, and from Slurm where jobs of it are there. So this works in another terminal
or on another machine that sees the folder, and while runs are active.
"""

from __future__ import annotations

import argparse
import os
import pwd
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from topr_exp.config.cluster import SlurmCluster
from topr_exp.runs import attempt
from topr_exp.runs.console import say, warn
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import exit_status
from topr_exp.sweeps.status import ACTIVE, RUNNING, Status, count_states, read_statuses, status_table
from topr_exp.sweeps.sweep import CLAIM, FILE, LOG, SUBMITIT, Run, Sweep, lock_sweep
from topr_exp.types import TOPRError

OUTPUTS = Path("outputs")  # output_dir unless it is set


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return exit_status(partial(run_command, parser().parse_args(arguments)))


def run_command(options: argparse.Namespace) -> int:
    if options.folder is None:
        return list_sweeps(OUTPUTS)
    sweep = Sweep.read(options.folder)
    if options.command == "status":
        return show_status(sweep)
    if options.command == "resume":
        return resume(sweep, options.settings)
    if options.command == "cancel":
        return cancel(sweep, options.run)
    return logs(sweep, options.run, options.lines, options.follow)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m topr_exp.sweeps", description=str(__doc__).split("\n\n")[0])
    commands = top.add_subparsers(dest="command", required=True)
    helps = {
        "status": "one line a run: state, stage, time left, pass@1, Slurm id, last error",
        "resume": "start again what is unfinished or failed and at work nowhere",
        "cancel": "stop runs, with a checkpoint; all of them when none is named",
        "logs": "what a run prints, and the error that ended it",
    }
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, text in helps.items()}
    for name, each in parsers.items():
        optional = name == "status"
        without = f" (without it: one line for each sweep in {OUTPUTS})" if optional else ""
        each.add_argument(
            "folder", type=Path, nargs="?" if optional else None, help=f"the sweep's folder: output_dir/name{without}"
        )
    parsers["resume"].add_argument("settings", nargs="*", help="other settings of the cluster, as in cluster.jobs=4")
    run_help = "number, Slurm id or folder's name of a run"
    parsers["cancel"].add_argument("run", nargs="*", help=run_help)
    parsers["logs"].add_argument("run", help=run_help)
    parsers["logs"].add_argument("--lines", type=positive_int, default=40, help="from the end (default: 40)")
    parsers["logs"].add_argument("--follow", action="store_true", help="go on until the run ends")
    return top


def positive_int(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {text}")
    return int(text)


def list_sweeps(output_dir: Path) -> int:
    """`status` without a folder: one line a sweep, the one that was launched last at the end."""
    files = sorted(output_dir.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    for folder in sorted(output_dir.glob("*/")):
        if not os.access(folder, os.R_OK | os.X_OK, effective_ids=True):
            warn(f"cannot read {folder}: no permission; a sweep in it is left out")
    if not files:
        raise TOPRError(f"there is no sweep in {output_dir}; give output_dir/name of a sweep that is elsewhere")
    for path in files:
        try:
            sweep = Sweep.read(path.parent)
        except TOPRError as error:
            warn(str(error))
            continue
        statuses, queue = read_statuses(sweep, sweep.runs)
        say(f"{sweep.folder}: {count_states(statuses)}")
        for note in queue.notes:
            warn(f"{sweep.folder}: {note}")
    return 0


def show_status(sweep: Sweep) -> int:
    """`status`"""
    statuses, queue = read_statuses(sweep, sweep.runs)
    for note in queue.notes:
        warn(note)
    say(status_table(statuses))
    return 0


def resume(sweep: Sweep, settings: Sequence[str]) -> int:
    """`resume`"""
    from topr_exp.config.schema import plain
    from topr_exp.runs.plan import recompose
    from topr_exp.sweeps import slurm
    from topr_exp.sweeps.launch import run_unfinished

    owners = {path.stat().st_uid for path in (sweep.folder, sweep.folder / FILE)} - {os.getuid()}
    if owners:
        names = ", ".join(map(user_name, sorted(owners)))
        warn(f"{sweep.folder} belongs to {names}, whose settings now run as yours, with the code that they name")
    cluster, launcher = recompose(sweep.arguments, settings)
    if isinstance(cluster, SlurmCluster):
        slurm.require()
    with lock_sweep(sweep.folder):
        sweep = Sweep.read(sweep.folder)
        for run in sweep.runs:
            run.settings["cluster"] = plain(cluster)
        return run_unfinished(sweep, sweep.runs, cluster, launcher)


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def cancel(sweep: Sweep, names: Sequence[str]) -> int:
    """`cancel`: Slurm's jobs by scancel; local runs, and the launcher when all are meant, by SIGTERM."""
    from topr_exp.sweeps.slurm import cancel as scancel

    chosen = [sweep.find(name) for name in names] or sweep.runs
    statuses, queue = read_statuses(sweep, chosen)
    active = [each for each in statuses if each.state in ACTIVE]
    # A sweep of Slurm's may have been resumed here: then its runs have ids of jobs that are long over.
    in_slurm = [each.slurm for each in active if each.slurm and queue.holds(each.slurm)]
    here = [sweep.path(each.run) / attempt.CLAIM for each in active if each.slurm not in in_slurm]
    if in_slurm:
        scancel(in_slurm)
    # The launcher of a local sweep first, or it would start the next run.
    for claim in [*([] if names or in_slurm else [sweep.folder / CLAIM]), *here]:
        terminate(claim)
    say(f"cancelled: {', '.join(describe(each) for each in active) or 'nothing, no run is active'}")
    return 0


def describe(each: Status) -> str:
    return f"run {each.run.number}" + (f" ({each.slurm})" if each.slurm else "")


def terminate(claim: Path) -> None:
    """SIGTERM to the process that holds a claim; TOPRError for one on another machine, or one that is only named."""
    process = locks.living_owner(claim)
    if process is None:
        return
    if not process.is_here():
        raise TOPRError(f"process {process} is on another machine; cancel there")
    if not locks.PROC.is_dir():
        raise TOPRError(f"nothing tells what process {process} does; end it by `kill {process.pid}` if it is the run's")
    try:
        if not process.has_open(claim):
            raise TOPRError(f"{claim} names process {process}, which is at work on something else: it is left alone")
        os.kill(process.pid, signal.SIGTERM)
    except (ProcessLookupError, FileNotFoundError):  # over by now
        return
    except PermissionError:
        raise TOPRError(f"process {process} belongs to another user") from None


def logs(sweep: Sweep, name: str, lines: int, follow: bool) -> int:
    """`logs`"""
    run = sweep.find(name)
    path, error = log_of(sweep, run), sweep.path(run) / attempt.ERROR
    printed = path.read_bytes()
    say(f"==> {path}")
    say("\n".join(printed.decode(errors="replace").rstrip("\n").split("\n")[-lines:]))
    while follow and read_statuses(sweep, [run])[0][0].state == RUNNING:
        time.sleep(1.0)
        with path.open("rb") as file:
            file.seek(len(printed))
            new = file.read()
        printed += new
        print(new.decode(errors="replace"), end="", flush=True)
    if error.exists():
        say(f"\n==> {error}\n{error.read_text(encoding='utf-8', errors='replace').rstrip()}")
    return 0


def log_of(sweep: Sweep, run: Run) -> Path:
    """Find a run's output; before it printed any, what Submitit or Slurm said of its job."""
    slurm = sweep.slurm_ids().get(run.number)
    of_job = sorted((sweep.folder / SUBMITIT).glob(f"*/{slurm}_*log.*")) if slurm else []
    for path in (sweep.path(run) / LOG, *of_job):
        if path.exists() and path.stat().st_size:
            return path
    raise TOPRError(f"run {run.number} ({run.folder}) has printed nothing yet")


if __name__ == "__main__":
    sys.exit(main())
