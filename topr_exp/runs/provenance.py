"""Provenance of a result: versions, commit, hardware and seeds."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_exp.config.settings import Config
from topr_exp.runs import attempt
from topr_exp.runtime import distributed
from topr_exp.runtime.jsonfiles import read_object

PACKAGES = ("topr-exp", "torch", "transformers", "numpy", "pyarrow", "hydra-core", "math-verify", "sympy")
ROOT = Path(__file__).resolve().parents[2]
CODE = ("topr_exp", "conf", "pyproject.toml")  # below ROOT, what a result depends on


def environment(config: Config) -> dict[str, Any]:
    """Versions, commit, hardware and seeds, so that a result can be traced."""
    import torch

    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "command": sys.argv,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        "sampler_seed": config.sampler.seed,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain", "--", *CODE)),
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def overrides(folder: Path) -> list[str]:
    """Overrides of the user: as the sweep noted them for this run, else from the command line."""
    noted = read_object(folder / attempt.LAUNCH)[0].get("overrides")
    return list(map(str, noted)) if isinstance(noted, list) else [word for word in sys.argv[1:] if "=" in word]


def command_of(folder: Path, environment: dict[str, Any]) -> list[str]:
    """The words of a command that makes this run alone, after `python -m topr_exp`."""
    given = list(map(str, environment.get("command", [])))[1:]
    at = given.index("--config-dir") if "--config-dir" in given else len(given)
    return [*given[at : at + 2], *overrides(folder)]


def git(*arguments: str) -> str | None:
    """Ask git about the source's repository; None where there is none, as for an installed package."""
    if not (ROOT / ".git").exists():
        return None
    try:
        answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
