"""The command answers at once: mistakes, help, a dry run."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GROUPS = sorted(group.name for group in (ROOT / "conf").iterdir() if group.is_dir())


def run_child(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The outcome of a Python process and the seconds of processor that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


DRY_RUN_SECONDS = 3.0
HYDRA = "import hydra._internal.config_loader_impl, hydra._internal.core_plugins.basic_sweeper"
HYDRA_SECONDS = 0.2  # of processor to import this on 2 cores that nobody else uses; more is another's work beside


def command(*arguments: str, bound: float) -> tuple[subprocess.CompletedProcess[str], float]:
    """The outcome and its seconds of processor, as on an idle machine; the first of ten tries that keeps the bound.

    A machine at work on other things charges a process several times the idle seconds, so what it charges beside this
    for a fixed piece of work is taken for its slowness.
    """
    for _ in range(10):
        _, fixed = run_child("-c", HYDRA)
        done, seconds = run_child("-m", "topr_exp", *arguments)
        seconds /= max(1.0, fixed / HYDRA_SECONDS)
        if seconds < bound:
            break
    return done, seconds


@pytest.mark.parametrize(
    "arguments",
    [
        ["basline=-0.3"],
        ["algo=toper"],
        ["-m", "seed=0,1", "optim.lr=-1"],
        ["--cfg", "job", "-m"],
        ["--cfg", "job", "data.id=1"],
    ],
)
def test_the_command_answers_a_mistake_quickly(arguments: list[str]) -> None:
    done, seconds = command(*arguments, bound=1.5)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert seconds < 1.5


def test_help_answers_quickly_and_names_groups_and_examples() -> None:
    done, seconds = command("--help", bound=1.0)
    assert done.returncode == 0
    assert seconds < 1.0
    for group in GROUPS:
        assert f"\n{group}: " in done.stdout
    assert done.stdout.count("  python -m topr_exp") == 5


def test_the_shell_can_ask_for_completions() -> None:
    done, _ = run_child("-m", "topr_exp", "--shell-completion", "install=bash")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hydra_bash_completion" in done.stdout


def test_a_dry_run_of_fifty_runs_answers_quickly(tmp_path: Path) -> None:
    sweep = ["-m", "algo=topr,tis,naive,sft,ppo", "seed=range(0,10)", f"output_dir={tmp_path}", "dry_run=true"]
    done, seconds = command(*sweep, bound=DRY_RUN_SECONDS)
    assert done.returncode == 0
    assert sum(" new " in line for line in done.stdout.splitlines()) == 50
    assert "nothing started" in done.stdout
    assert seconds < DRY_RUN_SECONDS
    assert not list(tmp_path.iterdir())
