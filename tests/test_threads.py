"""CPU threads: they don't spin on cores that others need, and a run goes on with as many as it was begun with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import ROOT, config_of
from topr_exp import pipeline
from topr_exp.runs.plan import Job
from topr_exp.sweeps import processes
from topr_exp.sweeps.sweep import runs_of


@pytest.mark.parametrize("given", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_the_package_says_so_before_torch_is_loaded_unless_the_user_did(given: dict[str, str]) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    code = f"import os, sys, topr_exp; print('torch' in sys.modules, [os.environ.get(name) for name in {names}])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=kept | given, check=True)
    expected = [given.get(name) for name in names] if given else ["PASSIVE", "1000"]
    assert done.stdout.strip() == f"False {expected}"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Those that each run computed with; the runs end where their work would begin."""
    seen, before, ended = list[int](), torch.get_num_threads(), SimpleNamespace(run=dict)
    monkeypatch.setattr(pipeline, "Experiment", lambda *_: seen.append(torch.get_num_threads()) or ended)
    yield seen
    torch.set_num_threads(before)


def test_a_run_goes_on_with_the_threads_that_it_was_begun_with(
    tmp_path: Path, threads: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the machine's default is meanwhile; what is asked for is followed, with a warning."""
    config = config_of(*(smoke := ["experiment=smoke", f"output_dir={tmp_path}"]))
    for number in (3, 2):
        torch.set_num_threads(number)
        pipeline.run(config)
        assert json.loads((config.folder / "environment.json").read_text())["threads"] == 3
    assert capsys.readouterr().err == ""
    pipeline.run(config_of(*smoke, "cluster.threads=1"))
    warning = "warning: the run was begun with cluster.threads=3; with 1 its last digits may differ"
    assert warning in capsys.readouterr().err
    assert threads == [3, 3, 1]


def test_the_share_of_a_sweeps_run_is_a_default(
    tmp_path: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was begun alone with more threads keeps them when a sweep with several jobs goes on with it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.chdir(tmp_path)
    configs = [config_of("experiment=smoke", f"output_dir={tmp_path}", f"seed={seed}") for seed in (0, 1)]
    torch.set_num_threads(5)
    pipeline.run(configs[0])
    begun, new = runs_of([Job([], config) for config in configs], [], [])
    for run, asked in ((begun, None), (new, None), (new, 1)):
        run.settings["cluster"]["threads"] = asked
        processes.run_one(run, tmp_path / "log.txt", 2, 0)
    assert threads == [5, 5, 2, 1]
