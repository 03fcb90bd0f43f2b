"""Provenance of a run: versions, commit, hardware, and the command that makes it."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from topr_exp import __version__
from topr_exp.runs.attempt import timestamp
from topr_exp.runs.run_files import LAUNCH, read_run_file
from topr_exp.runtime import distributed

PACKAGES = ("torch", "transformers", "numpy", "pyarrow", "hydra-core", "latex2sympy2-extended", "sympy")
REPOSITORY = Path(__file__).resolve().parents[2]
CODE = ("topr_exp", "conf", "pyproject.toml")  # in the repository; results depend on it
PROGRAMS = ("topr_exp/__main__.py", "topr-exp")
CONFIG_DIR_OPTIONS = ("-cd", "--config-dir")
COMMAND_LINE_KEYS = ("model.trust_remote_code", "sampler.python")  # an evaluation takes them from nowhere else


def describe_environment(seed: int, sampler_seed: int) -> dict[str, Any]:
    """Return versions, commit, hardware and seeds, so that a result can be traced."""
    import torch

    return {
        "command": sys.argv,
        "time": timestamp(),
        "seed": seed,
        "sampler_seed": sampler_seed,
        "git_commit": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain", "--", *CODE)),
        "python": platform.python_version(),
        "versions": package_versions(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.world_size(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def package_versions() -> dict[str, str]:
    """Return the versions of this package and of those on which results depend."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    return {"topr-exp": __version__, **versions}


def describe_code_changes(environment: Mapping[str, Any]) -> str:
    """Describe how the code differs from that of an environment.json; "" for no difference that is known."""
    noted_commit = environment.get("git_commit")
    versions = {**package_versions(), "commit": commit_of_code(noted_commit)}
    noted_versions = {**environment.get("versions", {}), "commit": noted_commit}
    changes = []
    for name, version in versions.items():
        noted_version = noted_versions.get(name)
        if noted_version and version and noted_version != version:
            changes.append(f"{name} {noted_version}, now {version}")
    return "; ".join(changes)


def commit_of_code(noted_commit: str | None) -> str | None:
    """Return the repository's commit, or the noted one where the code is the same in both."""
    if noted_commit and git("diff", "--name-only", "--end-of-options", noted_commit, "HEAD", "--", *CODE) == "":
        return noted_commit
    return git("rev-parse", "HEAD")


def user_overrides(folder: Path) -> list[str]:
    """Return the user's overrides: as the sweep's launcher noted them for this run, else of the command line."""
    launch, _ = read_run_file(folder / LAUNCH)
    if launch:
        return list(launch["overrides"])
    return [word for word in sys.argv[1:] if "=" in word]


def command_of(folder: Path, environment: dict[str, Any]) -> str:
    """Return a command that makes this run alone."""
    program, *words = environment.get("command") or [""]
    if not (folder / LAUNCH).exists() and not program.endswith(PROGRAMS):
        return "topr_exp.run(...)  # from Python; the run's config.yaml has its settings"
    config_dir: list[str] = []
    for index, word in enumerate(words):
        if word in CONFIG_DIR_OPTIONS:
            config_dir = words[index : index + 2]  # the option and its value
            break
    return shlex.join(["python", "-m", "topr_exp", *config_dir, *user_overrides(folder)])


def git(*arguments: str) -> str | None:
    """Return git's answer about the source's repository; None without one, as for an installed package."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode != 0:
        return None
    return process.stdout.strip()
