"""docs/skypilot.yaml: nobody rents a GPU here, so only what it would start is checked."""

from __future__ import annotations

import shlex

import yaml

from tests.conftest import ROOT, config_of


def test_it_starts_the_readmes_command() -> None:
    text = (ROOT / "docs" / "skypilot.yaml").read_text()
    task = yaml.safe_load(text)
    arguments = task["envs"]["ARGUMENTS"]
    assert f"python -m topr_exp {arguments}\n" in (ROOT / "README.md").read_text()
    assert task["run"].splitlines()[-1] == "python -m topr_exp $ARGUMENTS cluster.device=cuda"
    assert config_of(*shlex.split(arguments), "cluster.device=cuda").cluster.device.name == "cuda"
    assert "NOT RUN" in text
    assert (ROOT / "constraints.txt").exists()
