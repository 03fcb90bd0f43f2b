"""`python -m topr_exp.sweeps`: show a sweep's state, resume it, cancel it, read its runs' output.

Reads the sweep's folder, and Slurm if it has jobs there: works on any machine that sees the folder, at any time.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from topr_exp.runs import attempt
from topr_exp.runtime import locks
from topr_exp.runtime.exit_status import CommandParser, exit_status, say, warn
from topr_exp.runtime.files import disk_errors, read_file
from topr_exp.sweeps import slurm, sweep
from topr_exp.sweeps.clusters import SlurmCluster
from topr_exp.sweeps.sweep import Run, find, missing_runs, open_sweep, read_statuses
from topr_exp.types import TOPRError

LINES = 40  # that `logs` shows
RESUME_SETTINGS = (
    "changed cluster settings, such as cluster.jobs=4; and those of the sweep that name code which is not installed, "
    "such as algo._target_=my.Loss, to say that you trust it"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    top = CommandParser(prog="python -m topr_exp.sweeps", description=str(__doc__).split("\n\n")[0])
    commands = top.add_subparsers(dest="command", required=True)
    for name, (function, text) in COMMANDS.items():
        each = commands.add_parser(name, help=text, description=text)
        each.set_defaults(function=function)
        each.add_argument("folder", type=Path, help="the sweep's folder, output_dir/name")
        if name == "resume":
            each.add_argument("settings", nargs="*", help=RESUME_SETTINGS)
        if name in ("cancel", "logs"):
            several = "*" if name == "cancel" else None
            each.add_argument("run", nargs=several, help="a run's number or folder name")
    given = vars(top.parse_args(arguments))
    del given["command"]
    return exit_status(partial(given.pop("function"), **given))


def status(folder: Path) -> int:
    runs = open_sweep(folder)
    statuses, queue = read_statuses(runs)
    if queue.note:
        warn(queue.note)
    say(sweep.status_table([*statuses, *missing_runs(folder, runs)]))
    return 0


def resume(folder: Path, settings: Sequence[str]) -> int:
    from topr_exp.runs.plan import recompose
    from topr_exp.runs.preflight import check_machine
    from topr_exp.schema import plain
    from topr_exp.sweeps.launch import run_unfinished
    from topr_exp.sweeps.named_code import KEYS, confirm_code, refuse_strange_place

    runs = open_sweep(folder)
    for owner in {path.stat().st_uid for path in (folder, *(run.folder / sweep.FILE for run in runs))} - {os.getuid()}:
        warn(f"{folder} belongs to user {owner}, whose settings now run as yours, with the code that they name")
    newest, here = max(runs, key=lambda run: run.launched), folder.resolve()
    todo = [each.run for each in read_statuses(runs)[0] if each.state not in (sweep.DONE, *sweep.ACTIVE)]
    of_cluster = [text for text in settings if not text.startswith(tuple(f"{key}=" for key in KEYS))]
    for run in (newest, *todo):
        refuse_strange_place(run)
    with disk_errors(f"enter {newest.cwd}, where the sweep was launched"), contextlib.chdir(newest.cwd):
        cluster = recompose(newest.arguments, of_cluster)
        code = confirm_code(folder, todo, cluster, settings)  # before the settings are loaded, which imports it
        for run in todo:
            run.settings["cluster"] = plain(cluster)
        configs = [run.config() for run in todo]
        places = {Path(run.cwd, one.folder.parent).resolve() for run, one in zip(todo, configs, strict=True)}
        if moved := places - {here}:
            raise TOPRError(f"{folder} was launched as {moved.pop()}, where its runs would go on: move it back")
        check_machine(configs)
    say(f"launched in {newest.cwd}; code beyond topr_exp: {', '.join(code) or 'none'}")
    if isinstance(cluster, SlurmCluster):
        slurm.require()
    with attempt.lock_run_folder(folder, sweep.CLAIM, "launched"):
        runs = open_sweep(folder)
        unfinished = [each.run for each in read_statuses(runs)[0] if each.state not in (sweep.DONE, *sweep.ACTIVE)]
        confirm_code(folder, unfinished, cluster, settings)  # the files may be others by now
        for run in runs:
            run.settings["cluster"] = plain(cluster)
        missing = missing_runs(folder, runs)
        sweep.record_runs(folder, runs)
        return run_unfinished(runs, cluster, missing=missing)


def cancel(folder: Path, run: Sequence[str]) -> int:
    """Cancel Slurm's jobs by scancel; local runs, and the launcher when all are meant, by SIGTERM."""
    runs = open_sweep(folder)
    statuses, queue = read_statuses([find(runs, name) for name in run] or runs)
    active = [each for each in statuses if each.state in sweep.ACTIVE]
    jobs = [each.slurm for each in active if each.slurm]
    if jobs and (problem := sweep.run_slurm("scancel", *jobs)[1]):
        raise TOPRError(f"scancel: {problem}")
    # The launcher of a local sweep first, or it would start the next run.
    launcher = [] if run else [folder / sweep.CLAIM]
    claims = [*launcher, *(each.run.folder / attempt.CLAIM for each in active if not each.slurm)]
    left = [text for claim in claims if (text := terminate(claim))]
    told = [f"run {each.run.number}" + (f" ({each.slurm})" if each.slurm else "") for each in active]
    say(f"cancelled: {', '.join(told) or 'nothing, no run is active'}")
    if queue.note:
        left.append(f"{queue.note}; jobs may be queued: try again when it answers")
    if left:
        raise TOPRError("; ".join(left))
    return 0


def terminate(claim: Path) -> str:
    """SIGTERM to the process that holds a claim; returns why one is left alone that can't be seen to hold it."""
    process = locks.living_owner(claim)
    with contextlib.suppress(OSError):  # over by now, another user's, or no /proc
        if process is not None and process.is_on_this_host() and process.has_open(claim):
            os.kill(process.pid, signal.SIGTERM)
            return ""
    if process is None or locks.living_owner(claim) is None:
        return ""
    return f"{claim}: process {process} is left alone; it is not here, not yours, or at other work"


def logs(folder: Path, run: str) -> int:
    found = find(open_sweep(folder), run)
    path, error = log_of(found), found.folder / attempt.ERROR
    say(f"==> {path}")
    with disk_errors(f"read {path}"):
        text = read_file(path).decode(errors="replace")
    say("\n".join(text.rstrip("\n").split("\n")[-LINES:]))
    if error.exists():
        with disk_errors(f"read {error}"):
            text = read_file(error).decode(errors="replace")
        say(f"\n==> {error}\n{text.rstrip()}")
    return 0


def log_of(run: Run) -> Path:
    """Find a run's output; before it printed any, what its job printed."""
    for path in (run.folder / sweep.LOG, slurm.log_of_job(run.folder.parent, run.job or "")):
        if path is not None and path.exists() and path.stat().st_size:
            return path
    raise TOPRError(f"run {run.number} ({run.folder.name}) has printed nothing yet")


COMMANDS = {
    "status": (status, "print one line per run: state, stage, time left, pass@1, Slurm id, last error"),
    "resume": (resume, "restart runs that are unfinished or failed and not active anywhere"),
    "cancel": (cancel, "stop runs with a checkpoint; all if none is named"),
    "logs": (logs, f"print a run's last {LINES} lines, the file with all of them, and its error"),
}

if __name__ == "__main__":
    sys.exit(main())
