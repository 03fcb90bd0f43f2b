"""docs/algorithms.md: every line of its tables composes, and every algorithm has one."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.runs.plan import plan

DOC = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
LINES = [line for line in DOC.splitlines() if line.startswith("| ") and not line.startswith("| Name")]
TABLES = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES]
ROWS = [(name, paper, settings.strip("`")) for name, paper, settings, _ in TABLES]


@pytest.mark.parametrize(("name", "paper", "settings"), ROWS, ids=[row[0] for row in ROWS])
def test_every_line_composes(name: str, paper: str, settings: str) -> None:
    (job,) = plan(parse_arguments([*settings.split(), "dry_run=true"])).jobs
    assert f"algo={job.config.algo.name}" in settings.split()
    assert re.fullmatch(r"(\[(\d{4}\.\d{5})\]\(https://arxiv\.org/abs/\2\))?", paper)


def test_every_algorithm_has_a_line() -> None:
    named = {settings.split()[0] for _, _, settings in ROWS}
    assert named == {f"algo={path.stem}" for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    assert len({name for name, _, _ in ROWS}) == len(ROWS)
