"""One attempt at a run: which process has the run's folder, and what ended it.

A run may take several attempts (kills, time limits, errors that were mended). `run.claim` keeps a second process out
and shows others that the run is alive; `error.txt` holds the error that ended the last attempt, its message first.
"""

import dataclasses
import io
import itertools
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_exp import __version__
from topr_exp.runtime import distributed, locks
from topr_exp.runtime.exit_status import Lasting, say, warn
from topr_exp.runtime.files import TEMPORARY, disk_errors, open_own_file, read_file, sync_folder, write_text
from topr_exp.runtime.small_files import read_small_file
from topr_exp.types import TOPRError

CLAIM = "run.claim"
ERROR = "error.txt"
LOG = "log.txt"  # what a run printed, over all attempts
REPLACED = "replaced"  # beside runs: what `overwrite` moved aside
LOST_NODE_SECONDS = 120.0  # NFS servers keep the locks of a silent client for 90
LAUNCH = "launch.json"  # of a sweep's run: the launcher writes it, whatever the run does
PACKAGES = ("torch", "transformers", "numpy", "pyarrow", "hydra-core", "latex2sympy2-extended", "sympy")
ROOT = Path(__file__).resolve().parents[2]
CODE = ("topr_exp", "conf", "pyproject.toml")  # below ROOT, what a result depends on


def lock_run_folder(path: Path, name: str = CLAIM, doing: str = "run") -> locks.Lock:
    """Keep other processes out of a folder, which is made if need be; TOPRError when another process has it.

    Waits for an owner on another machine as long as file servers keep a lost node's locks: Slurm requeues at once.
    """
    began, told = time.monotonic(), False
    with disk_errors(f"write in {path}"):
        path.mkdir(parents=True, exist_ok=True)
        while not isinstance(lock := locks.acquire(path / name), locks.Lock):
            if lock.is_here() or time.monotonic() > began + LOST_NODE_SECONDS:
                raise TOPRError(f"{path} is being {doing} by process {lock}; wait for it, or stop it and start again")
            if not told:
                warn(f"waiting for process {lock}, which has {path}")
            told = True
            time.sleep(1.0)
    return lock


def clear(path: Path) -> None:
    """Remove the error of the last attempt, and what it wrote by half when it was killed (checkpoints are large)."""
    with disk_errors(f"write in {path}"):
        (path / ERROR).unlink(missing_ok=True)
        for leftover in list(path.rglob(f"*{TEMPORARY}")):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            elif not leftover.name.startswith(LAUNCH):
                leftover.unlink(missing_ok=True)


def keep_log(folder: Path) -> None:
    """Keep what a command prints from now on in the run's folder, too, where that is not where it goes."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, Lasting):
        try:
            log = io.FileIO(folder / LOG, "a", opener=open_own_file)
            if not os.path.samestat(os.fstat(log.fileno()), os.fstat(raw.fileno())):
                log.write(f"==== {now()}, process {os.getpid()}\n".encode())
                Lasting.log = log
        except OSError as error:
            warn(f"{folder / LOG} can't be written ({error.strerror}): what this run prints is not kept")


def start_anew(config: Any) -> Any:
    """Move a run's folder to `replaced/` beside it where `overwrite` asks for it; returns settings that go on."""
    if config.overwrite:
        move_aside(config.folder)
    return dataclasses.replace(config, overwrite=False)


@distributed.main_process_only
def move_aside(folder: Path) -> None:
    if not folder.exists():
        return
    names = (f"{folder.name}-{number}" for number in itertools.count(1))
    target = next(path for name in names if not (path := folder.parent / REPLACED / name).exists())
    with lock_run_folder(folder), disk_errors(f"move {folder} to {target}"):
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        for changed in (target.parent, folder.parent):
            sync_folder(changed)
        (target / CLAIM).unlink(missing_ok=True)
    say(f"overwrite=true: what was in {folder} is now in {target}; without overwrite=true the command goes on")


def description(number: int) -> dict[str, str | int | None]:
    """Which attempt this is, where it runs, and since when."""
    job, array = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_ARRAY_JOB_ID")
    slurm = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else job
    return {"number": number, "host": socket.gethostname(), "pid": os.getpid(), "slurm": slurm, "began": now()}


def record_error(path: Path, error: BaseException) -> None:
    """Write the error that ends an attempt, its message first and then the traceback."""
    tb = "".join(traceback.format_exception(error))
    with suppress(TOPRError):  # the disk is full, say: the error itself is what the user must see
        write_text(path / ERROR, f"{message(error)}\n\n{now()}, process {os.getpid()} on {socket.gethostname()}\n{tb}")


def last_error(path: Path) -> str:
    """The message of the error that ended the last attempt; "" where none did."""
    with suppress(OSError):
        return read_file(path / ERROR).decode(errors="replace").partition("\n")[0]
    return ""


def message(error: BaseException) -> str:
    """An error in one line; those that are no user's mistake with the name of their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, TOPRError) else f"{type(error).__name__}: {text}".rstrip(": ")


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


# ---- provenance


def environment(seed: int, sampler_seed: int) -> dict[str, Any]:
    """Versions, commit, hardware and seeds, so that a result can be traced."""
    import torch

    return {
        "command": sys.argv,
        "time": now(),
        "seed": seed,
        "sampler_seed": sampler_seed,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain", "--", *CODE)),
        "python": platform.python_version(),
        "versions": {"topr-exp": __version__, **{package: metadata.version(package) for package in PACKAGES}},
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def overrides(folder: Path) -> list[str]:
    """Overrides of the user: as the sweep noted them for this run, else from the command line."""
    noted: list[str] | None = read_small_file(folder / LAUNCH)[0].get("overrides")
    return [word for word in sys.argv[1:] if "=" in word] if noted is None else noted


def command_of(folder: Path, environment: dict[str, Any]) -> str:
    """A command that makes this run alone."""
    program, *given = map(str, environment.get("command") or [""])
    if not (folder / LAUNCH).exists() and not program.endswith(("topr_exp/__main__.py", "topr-exp")):
        return "topr_exp.run(...)  # from Python; the run's config.yaml has its settings"
    at = next((i for i, word in enumerate(given) if word in ("-cd", "--config-dir")), len(given))
    return shlex.join(["python", "-m", "topr_exp", *given[at : at + 2], *overrides(folder)])


def git(*arguments: str) -> str | None:
    """Ask git about the source's repository; None where there is none, as for an installed package."""
    if not (ROOT / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
