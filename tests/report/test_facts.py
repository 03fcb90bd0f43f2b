"""Facts that stand beside the numbers."""

from __future__ import annotations

import pytest

from tests.report.made_up import evaluation, made_run
from topr_exp.report.groups import group_runs
from topr_exp.report.page import facts, module


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/me/topr_exp/topr_exp/__main__.py", "topr_exp"),
        ("/home/me/topr_exp/report/__main__.py", "topr_exp.report"),
        ("/env/lib/site-packages/topr_exp/evaluate.py", "topr_exp.evaluate"),
        ("/env/bin/topr-exp", "topr_exp"),
        ("-c", "topr_exp"),
        ("", "topr_exp"),
    ],
)
def test_the_module_that_was_run(path: str, name: str) -> None:
    assert module(path) == name


def test_what_was_held_fixed_is_named() -> None:
    base = evaluation(30, 40, 20)
    runs = [made_run(f"{p}{seed}", base, base, seed=seed, optim__lr=0.001, effective_positive=p)
            for p in (0.1, 0.2) for seed in (0, 1)]  # fmt: skip
    for run in runs:
        run.environment = {"git_commit": "0123456789abcdef", "git_dirty": False, "command": ["x.py", "experiment=fig5"]}
        run.evaluations = [{"problems": 200, "samples": 8}]
    expected = {
        "held fixed": "algo.name topr, optim.lr 0.001",
        "tested on": "200 problems, 8 completions each",
        "commit": "0123456789",
        "command": "python -m topr_exp experiment=fig5",
    }
    assert facts(runs, group_runs(runs)) == expected
    runs[0].environment["git_dirty"], runs[1].evaluations = True, [{"problems": 50, "samples": 8}]
    assert facts(runs, group_runs(runs)) == expected | {
        "commit": "0123456789, 0123456789 with uncommitted changes",
        "tested on": "200 problems, 8 completions each; 50 problems, 8 completions each",
    }
