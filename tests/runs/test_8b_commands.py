"""Commands for 8B models in documents and YAMLs ask for what such a model needs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import ROOT
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import plan

SUBMITTED = re.compile(r"model=llama3_8b.*cluster=slurm\w*")


def submitted() -> list[tuple[str, str]]:
    """The place and the text of each line that has an 8B model run on a cluster."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "conf").rglob("*.yaml"))]
    return [(path.name, line) for path in pages for line in path.read_text(encoding="utf-8").splitlines()
            if SUBMITTED.search(line)]  # fmt: skip


@pytest.mark.parametrize(("place", "line"), submitted())
def test_a_cluster_is_asked_for_a_gpu(place: str, line: str) -> None:
    assert "cluster=slurm_8b" in line or "cluster.gpus_per_node=" in line, place


def test_lines_are_found() -> None:
    assert {"parallel.md", "verifier.md", "table2.yaml"} <= {place for place, _ in submitted()}


def test_table_2_of_an_8b_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for place, line in submitted() if place == "verifier.md"]
    words = shlex.split(line.replace("FOLDER", "tiny"), comments=True)
    jobs = plan(parse_arguments(words[words.index("topr_exp") + 1 :])).jobs
    assert [job.config.cluster.gpus_per_node for job in jobs] == [1, 1, 1]
    assert {job.config.sampler.name for job in jobs} == {"vllm"}
