"""The documents print of runs and tables what the commands that they show would print today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import ROOT
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.grading.grader import GRADER_VERSION
from topr_exp.runs.plan import plan

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDER = re.compile(r"\b[a-z][\w.-]*_s\d_[0-9a-f]{10}\b")  # of a run
# The overrides of a sweep: of the command itself, or in the remark behind one that shows a sweep.
SWEEP = re.compile(r"(?:topr_exp -m |sweeps status \S+ +# )((?:.*\\\n)*.*)")


def printed() -> list[tuple[str, str, list[str]]]:
    """Document, overrides and the folders below them, of each block that starts a sweep and shows its runs."""
    found = []
    for path in DOCS:
        for block in re.findall(r"```\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            command, folders = SWEEP.search(block), sorted({*FOLDER.findall(block)})
            if command and folders:
                found.append((path.name, command[1].replace("\\\n", " "), folders))
    return found


@pytest.mark.parametrize(("document", "overrides", "folders"), printed())
def test_the_folders_of_a_sweep(
    document: str, overrides: str, folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = plan(parse_arguments(["-m", *shlex.split(overrides)])).jobs
    assert {*folders} <= {job.config.folder.name for job in jobs}, document


def test_blocks_are_found() -> None:
    assert [document for document, *_ in printed()].count("slurm.md") >= 3


def test_the_version_of_the_verdicts() -> None:
    listed = re.findall(r"grader=\S+ rollouts=\S+ version=(\d+)", (ROOT / "docs" / "store.md").read_text())
    assert listed
    assert {*listed} == {GRADER_VERSION}


def test_the_code_that_is_named_is_there() -> None:
    pattern = re.compile(r"(?<![\w./-])(?:topr_exp|tests|scripts|reproduce|benchmarks)/[\w/]+\.py\b")
    named = {name for path in DOCS for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_tests_that_are_named_are_there() -> None:
    named = {each for path in DOCS for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", path.read_text(encoding="utf-8"))}
    assert len(named) > 10
    assert not [each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text(encoding="utf-8")]


def test_pages_are_short() -> None:
    """A page that is no reference has at most 200 lines."""
    references = {"reference.md", "learnt.md"}
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in DOCS}
    assert not {name: count for name, count in lines.items() if count > 200 and name not in references}
    assert lines["README.md"] <= 90
