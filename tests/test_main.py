"""The command: mistakes, help, a dry run. (Nothing heavy is imported for them: tests/test_architecture.py.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

GROUPS = sorted(group.name for group in (ROOT / "conf").iterdir() if group.is_dir())


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "topr_exp", *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=300)


@pytest.mark.parametrize(
    "arguments",
    [["basline=-0.3"], ["-m", "seed=0,1", "optim.lr=-1"], ["--cfg", "job", "-m"], ["--cfg", "job", "data.id=1"]],
)
def test_the_command_answers_a_mistake_in_one_line(arguments: list[str]) -> None:
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_help_names_groups_and_examples_and_the_shell_can_ask_for_completions() -> None:
    done = command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for group in GROUPS:
        assert f"\n{group}: " in done.stdout
    assert done.stdout.count("  python -m topr_exp") == 5
    assert "hydra_bash_completion" in command("--shell-completion", "install=bash").stdout


def test_a_dry_run_of_fifty_runs(tmp_path: Path) -> None:
    sweep = ["-m", "algo=topr,tis,naive,sft,ppo", "seed=range(0,10)", f"output_dir={tmp_path}", "dry_run=true"]
    done = command(*sweep)
    assert done.returncode == 0
    assert sum(" new " in line for line in done.stdout.splitlines()) == 50
    assert "nothing started" in done.stdout
    assert not list(tmp_path.iterdir())
