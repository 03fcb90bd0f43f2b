"""docs/extending.md, its first part: the loss printed there is added in a folder of its own, built and called."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.algorithms.tabular_policies import random_case
from topr_exp.algorithms.base import NEEDS, Loss
from topr_exp.config.load import build_section

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "extending.md").read_text().partition("\n# A source of problems\n")[0]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The two files of the document, and nothing else."""
    for name, language in (("soft_topr.py", "python"), ("conf/algo/soft_topr.yaml", "yaml")):
        match = re.search(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)```", DOC, re.DOTALL)
        assert match, name
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(match[1])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("soft_topr", None)


def command(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topr_exp", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_the_commands_find_it(project):
    lines = [line for line in DOC.splitlines() if line.startswith("python -m topr_exp")]
    assert len(lines) == 3
    for line in lines:
        done = command(project, *line.split()[3:], "dry_run=true")
        assert done.returncode == 0, done.stderr
        *runs, count = done.stdout.rpartition("\n\n")[2].splitlines()
        assert count.endswith("nothing started")
        assert len(runs) == (6 if "seed=0,1,2" in line else 1)
        assert "soft-topr" in runs[-1]


def test_a_value_out_of_range_is_refused_as_printed(project):
    done = command(project, "--config-dir", "conf", "algo=soft_topr", "algo.ceiling=0.5", "dry_run=true")
    assert done.returncode == 2
    message = done.stderr.strip().removeprefix("error: ")
    assert message in DOC


def test_the_table_of_needs_is_complete():
    assert set(re.findall(r"^\| `(\w+)` \|", DOC, re.MULTILINE)) - {"needs"} == NEEDS.keys()


def test_the_packages_checks_hold_for_the_printed_loss(project):
    (line,) = [line for line in DOC.splitlines() if line.startswith("TOPR_LOSS=")]
    variable, python, *arguments = line.replace("../topr-exp", str(ROOT)).split()
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *arguments, "-p", "no:cacheprovider"],
        cwd=project,
        env={**os.environ, **dict([variable.split("=")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 20


@pytest.mark.parametrize("by_token", [False, True])
def test_gradient_of_the_printed_losses(project, by_token):
    """Of the example, and of that with the printed method for a weight of each token in the place of its own."""
    if by_token:
        path = project / "soft_topr.py"
        (method,) = re.findall(r"```python\n(    def __call__.*?)```", DOC, re.DOTALL)
        before = path.read_text().partition("    def __call__")[0]
        path.write_text(before.replace("log_ratio, reduce", "lengths, masked, token_log_ratio, reduce") + method)
    loss = build_section("algo", OmegaConf.to_container(OmegaConf.load(project / "conf/algo/soft_topr.yaml")))
    assert isinstance(loss, Loss)
    case = random_case(0, baseline=0.2)
    r = np.exp(case.delta_t if by_token else case.delta[:, None])
    w = np.where(case.positive[:, None], 1.0, 2 * r / (1 + r))
    expected = -((case.R / case.length)[:, None] * (w[:, :, None] * case.score_t).sum(1)).mean(0)
    np.testing.assert_allclose(case.gradient(loss), expected, atol=1e-10)


def test_a_whole_run_with_the_printed_loss(project):
    done = command(project, "--config-dir", "conf", "algo=soft_topr", "experiment=smoke", "output_dir=out")
    assert done.returncode == 0, done.stderr
    (folder,) = (project / "out" / "runs").iterdir()
    assert folder.name.startswith("soft-topr_")
    assert (folder / "DONE").exists()
