"""Provenance of a run: versions, commit, hardware, and the command that makes it."""

import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_exp import __version__
from topr_exp.runs.attempt import timestamp
from topr_exp.runs.run_files import LAUNCH, read_run_file
from topr_exp.runtime import distributed

PACKAGES = ("torch", "transformers", "numpy", "pyarrow", "hydra-core", "latex2sympy2-extended", "sympy")
ROOT = Path(__file__).resolve().parents[2]
CODE = ("topr_exp", "conf", "pyproject.toml")  # below ROOT, what a result depends on


# ---- provenance


def environment(seed: int, sampler_seed: int) -> dict[str, Any]:
    """Versions, commit, hardware and seeds, so that a result can be traced."""
    import torch

    return {
        "command": sys.argv,
        "time": timestamp(),
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


def user_overrides(folder: Path) -> list[str]:
    """Overrides of the user: as the sweep noted them for this run, else from the command line."""
    noted: list[str] | None = read_run_file(folder / LAUNCH)[0].get("overrides")
    return [word for word in sys.argv[1:] if "=" in word] if noted is None else noted


def command_of(folder: Path, environment: dict[str, Any]) -> str:
    """A command that makes this run alone."""
    program, *given = map(str, environment.get("command") or [""])
    if not (folder / LAUNCH).exists() and not program.endswith(("topr_exp/__main__.py", "topr-exp")):
        return "topr_exp.run(...)  # from Python; the run's config.yaml has its settings"
    at = next((i for i, word in enumerate(given) if word in ("-cd", "--config-dir")), len(given))
    return shlex.join(["python", "-m", "topr_exp", *given[at : at + 2], *user_overrides(folder)])


def git(*arguments: str) -> str | None:
    """Ask git about the source's repository; None where there is none, as for an installed package."""
    if not (ROOT / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
