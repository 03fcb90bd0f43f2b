""".github: actions by commit, no credentials left behind, and a release that is built by tools pinned by hash alone."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.conftest import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTION = re.compile(r"\s*(?:- )?uses: (?:\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(?:\.\d+)*\b.*)")
PINNED = ".github/build-requirements.txt"


def jobs_of(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in jobs_of(path).values() for step in job.get("steps", [])]


def pinned_requirements() -> dict[str, list[str]]:
    """Map each requirement of the file to its hashes."""
    text = (ROOT / PINNED).read_text(encoding="utf-8")
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    return {line.split()[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}(?!\w)", line) for line in lines}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_its_commit_with_the_version_beside_it(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not ACTION.fullmatch(line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_checkout_leaves_no_credentials(path: Path) -> None:
    checkouts = [step for step in steps_of(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert [step for step in checkouts if step.get("with", {}).get("persist-credentials") is not False] == []


def test_what_is_published_is_built_by_tools_pinned_by_hash_alone() -> None:
    jobs = jobs_of(GITHUB / "workflows" / "release.yml")
    uploading = [
        name
        for name, job in jobs.items()
        if any("upload-artifact@" in step.get("uses", "") for step in job.get("steps", []))
    ]
    assert uploading == ["build"], "another job's installed packages could change what is published"
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    installs = [command for command in commands if "install" in command]
    assert installs == [f"pip install --require-hashes --only-binary=:all: --requirement {PINNED}"]
    assert "python -m build --no-isolation" in commands, "an isolated build downloads its backend without a hash"
    assert [step for step in jobs["publish"]["steps"] if "run" in step] == []


def test_each_build_tool_has_one_version_and_its_hashes() -> None:
    requirements = pinned_requirements()
    assert [name for name, hashes in requirements.items() if "==" not in name or not hashes] == []
    versions = dict(name.split("==") for name in requirements)
    assert {"build", "twine", "hatchling"} <= versions.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for backend in map(Requirement, project["build-system"]["requires"]):
        assert backend.specifier.contains(versions[backend.name])
