"""Commands for 8B models in documents and YAMLs ask for what such a model needs."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT

SUBMITTED = re.compile(r"model=llama3_8b.*cluster=slurm\w*")


def submitted() -> list[tuple[str, str]]:
    """The place and the text of each line that has an 8B model run on a cluster."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf").rglob("*.yaml"))]
    return [(path.name, line) for path in pages for line in path.read_text(encoding="utf-8").splitlines()
            if SUBMITTED.search(line)]  # fmt: skip


@pytest.mark.parametrize(("place", "line"), submitted())
def test_a_cluster_is_asked_for_a_gpu(place: str, line: str) -> None:
    assert "cluster=slurm_8b" in line or "cluster.gpus_per_node=" in line, place
