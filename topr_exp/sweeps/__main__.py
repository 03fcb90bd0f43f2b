"""`python -m topr_exp.sweeps`: show a sweep's state, resume it, cancel it, read its runs' output.

Reads the sweep's folder, and Slurm if it has jobs there: works on any machine that sees the folder, at any time.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from topr_exp.runs import attempt
from topr_exp.runs.run_lock import find_owner
from topr_exp.runtime.exit_status import CommandParser, exit_status, user_path
from topr_exp.runtime.files import disk_errors, read_file
from topr_exp.runtime.terminal import say, warn
from topr_exp.sweeps.registry import SCHEDULERS, read_statuses
from topr_exp.sweeps.run_status import missing_status
from topr_exp.sweeps.status_table import status_table
from topr_exp.sweeps.sweep import CLAIM, SCRIPTS, Run, find_run, missing_runs, open_sweep
from topr_exp.types import TOPRError

LOG_LINES = 40  # that `logs` shows
RESUME_SETTINGS = (
    "changed cluster settings, such as cluster.jobs=4; and those of the sweep that name code which is not installed, "
    "such as algo._target_=my.Loss, to say that you trust it"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = CommandParser(prog="python -m topr_exp.sweeps", description=str(__doc__).split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (function, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(function=function)
        command.add_argument("folder", type=user_path, help="the sweep's folder, output_dir/name")
        if name == "resume":
            command.add_argument("settings", nargs="*", help=RESUME_SETTINGS)
        if name == "cancel":
            command.add_argument("run", nargs="*", help="a run's number or folder name")
        if name == "logs":
            command.add_argument("run", help="a run's number or folder name")
    options = vars(parser.parse_args(arguments))
    del options["command"]
    function = options.pop("function")
    return exit_status(partial(function, **options))


def status(folder: Path) -> int:
    runs = open_sweep(folder)
    statuses, problem = read_statuses(runs)
    if problem:
        warn(problem)
    missing = list(map(missing_status, missing_runs(folder, runs)))
    say(status_table([*statuses, *missing]))
    launcher = find_owner(folder / CLAIM)
    if launcher is not None:
        say(f"being launched by process {launcher}: new runs are still to start")
    return 0


def resume(folder: Path, settings: Sequence[str]) -> int:
    from topr_exp.sweeps.resume import resume_sweep  # imports Hydra

    return resume_sweep(folder, settings)


def cancel(folder: Path, run: Sequence[str]) -> int:
    """Stop active runs, and the launcher if all are meant."""
    runs = open_sweep(folder)
    named_runs = [find_run(runs, name) for name in run]
    statuses, problem = read_statuses(named_runs or runs)
    active = [status for status in statuses if status.is_active]
    launcher_claim = None if run else folder / CLAIM
    is_launching = launcher_claim is not None and find_owner(launcher_claim) is not None
    failures = []
    for scheduler in SCHEDULERS.values():
        failures += scheduler.cancel(active, launcher_claim)
    cancelled = []
    for status in active:
        job = f" ({status.job_id})" if status.job_id else ""
        cancelled.append(f"run {status.run.number}{job}")
    if is_launching and not cancelled:
        cancelled.append("the launch, no run was active")
    say(f"cancelled: {', '.join(cancelled) or 'nothing, no run is active'}")
    if problem:
        failures.append(f"{problem}; jobs may be queued: try again when it answers")
    if failures:
        raise TOPRError("; ".join(failures))
    return 0


def logs(folder: Path, run: str) -> int:
    """Print the end of a run's output, and its error."""
    logged_run = find_run(open_sweep(folder), run)
    log = find_log(logged_run)
    say(f"==> {log}")
    log_lines = read_text(log).rstrip("\n").split("\n")
    say("\n".join(log_lines[-LOG_LINES:]))
    error = logged_run.folder / attempt.ERROR
    if error.exists():
        say(f"\n==> {error}\n{read_text(error).rstrip()}")
    return 0


def read_text(path: Path) -> str:
    with disk_errors(f"read {path}"):
        return read_file(path).decode(errors="replace")


def find_log(run: Run) -> Path:
    """Return the file with a run's output, or with its job's if the run has printed nothing yet."""
    job_logs = [scheduler.logs(run) for scheduler in SCHEDULERS.values()]
    for path in filter(None, [run.log, *job_logs]):
        if path.exists() and path.stat().st_size:
            return path
    text = f"run {run.number} ({run.folder.name}) has printed nothing yet"
    scripts = run.folder.parent / SCRIPTS
    if run.job and scripts.is_dir():
        text += f"; if its job is over, Slurm refused it or it ended before Python began: its script is in {scripts}"
    raise TOPRError(text)


COMMANDS = {
    "status": (status, "print one line per run: state, stage, time left, pass@1, Slurm id, last error"),
    "resume": (resume, "restart runs that are unfinished or failed and not active anywhere"),
    "cancel": (cancel, "stop runs with a checkpoint; all if none is named"),
    "logs": (logs, f"print a run's last {LOG_LINES} lines, the file with all of them, and its error"),
}

if __name__ == "__main__":
    sys.exit(main())
