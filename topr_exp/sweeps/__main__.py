"""`python -m topr_exp.sweeps`: how a sweep stands, go on with it, cancel it, read what its runs print.

Everything is read from the sweep's folder, and Slurm is asked where it has a part in it: so this works in another
terminal or on another machine that sees the folder, and while runs are at work.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from topr_exp import attempt
from topr_exp.console import say, warn
from topr_exp.exit_status import exit_status
from topr_exp.store import claims
from topr_exp.sweeps.config import SlurmCluster
from topr_exp.sweeps.status import ACTIVE, RUNNING, Status, look, table
from topr_exp.sweeps.sweep import CLAIM, LOG, SUBMITIT, Run, Sweep, hold
from topr_exp.types import TOPRError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return exit_status(partial(work, parser().parse_args(arguments)))


def work(options: argparse.Namespace) -> int:
    sweep = Sweep.read(options.folder)
    if options.command == "status":
        return show(sweep)
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
    for each in parsers.values():
        each.add_argument("folder", type=Path, help="the sweep's folder: output_dir/name")
    parsers["resume"].add_argument("settings", nargs="*", help="other settings of the cluster, as in cluster.jobs=4")
    run_help = "number, Slurm id or folder's name of a run"
    parsers["cancel"].add_argument("run", nargs="*", help=run_help)
    parsers["logs"].add_argument("run", help=run_help)
    parsers["logs"].add_argument("--lines", type=count, default=40, help="from the end (default: 40)")
    parsers["logs"].add_argument("--follow", action="store_true", help="go on until the run ends")
    return top


def count(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more; got {text}")
    return int(text)


def show(sweep: Sweep) -> int:
    """`status`"""
    statuses, queue = look(sweep, sweep.runs)
    for note in queue.notes:
        warn(note)
    say(table(statuses))
    return 0


def resume(sweep: Sweep, settings: Sequence[str]) -> int:
    """`resume`"""
    from topr_exp.jobs import recompose
    from topr_exp.schema import plain
    from topr_exp.sweeps import slurm
    from topr_exp.sweeps.launch import drive

    cluster, launcher = recompose(sweep.arguments, settings)
    if isinstance(cluster, SlurmCluster):
        slurm.require()
    with hold(sweep.folder):
        sweep = Sweep.read(sweep.folder)
        for run in sweep.runs:
            run.settings["cluster"] = plain(cluster)
        return drive(sweep, sweep.runs, cluster, launcher)


def cancel(sweep: Sweep, names: Sequence[str]) -> int:
    """`cancel`: Slurm's jobs by scancel; local runs, and the launcher when all are meant, by SIGTERM."""
    from topr_exp.sweeps.slurm import cancel as scancel

    chosen = [sweep.find(name) for name in names] or sweep.runs
    statuses, queue = look(sweep, chosen)
    active = [each for each in statuses if each.state in ACTIVE]
    launcher = owner(sweep.folder / CLAIM, sweep.folder)
    # A sweep of Slurm's may have been resumed here: then its runs have ids of jobs that are long over.
    in_slurm = [each.slurm for each in active if each.slurm and queue.holds(each.slurm)]
    here = [owner(sweep.path(each.run) / attempt.CLAIM, sweep.folder) for each in active if each.slurm not in in_slurm]
    if in_slurm:
        scancel(in_slurm)
    # The launcher of a local sweep first, or it would start the next run.
    for process in [*([] if names or launcher is None or in_slurm else [launcher]), *here]:
        terminate(process)
    say(f"cancelled: {', '.join(describe(each) for each in active) or 'nothing, no run is active'}")
    return 0


def describe(each: Status) -> str:
    return f"run {each.run.number}" + (f" ({each.slurm})" if each.slurm else "")


def owner(path: Path, folder: Path) -> claims.Owner | None:
    """The living process that holds a claim."""
    seen = claims.look(path) if path.exists() else None
    return seen.owner if seen is not None and claims.is_alive(seen, folder) else None


def terminate(process: claims.Owner | None) -> None:
    """SIGTERM to a process of this machine; TOPRError for another machine's."""
    if process is None:
        return
    if not claims.is_here(process):
        raise TOPRError(f"process {process} is on another machine; cancel there")
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:
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
    while follow and look(sweep, [run])[0][0].state == RUNNING:
        time.sleep(1.0)
        with path.open("rb") as file:
            file.seek(len(printed))
            new = file.read()
        printed += new
        print(new.decode(errors="replace"), end="", flush=True)
    if error.exists():
        say(f"\n==> {error}\n{error.read_text(encoding='utf-8').rstrip()}")
    return 0


def log_of(sweep: Sweep, run: Run) -> Path:
    """What a run printed; before it came so far as to print, what Submitit or Slurm said of its job."""
    slurm = sweep.slurm_ids().get(run.number)
    of_job = sorted((sweep.folder / SUBMITIT).glob(f"*/{slurm}_*log.*")) if slurm else []
    for path in (sweep.path(run) / LOG, *of_job):
        if path.exists() and path.stat().st_size:
            return path
    raise TOPRError(f"run {run.number} ({run.folder}) has printed nothing yet")


if __name__ == "__main__":
    sys.exit(main())
