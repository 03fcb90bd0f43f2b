""".github: actions by commit, no credentials left behind, and a release that is built by tools pinned by hash alone."""

import re

import pytest
import yaml

from tests.conftest import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
ACTION = re.compile(r"\s*(?:- )?uses: (?:\./\S+|[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(?:\.\d+)*\b.*)")
PINNED = ".github/build-requirements.txt"
every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def steps_by_job(path):
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return {name: job.get("steps", []) for name, job in jobs.items()}


@every_workflow
def test_an_action_is_named_by_its_commit_with_the_version_beside_it(path):
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]

    assert lines
    for line in lines:
        assert ACTION.fullmatch(line), line


@every_workflow
def test_a_checkout_leaves_no_credentials(path):
    checkouts = []
    for steps in steps_by_job(path).values():
        checkouts += [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]

    assert checkouts
    for checkout in checkouts:
        assert checkout["with"]["persist-credentials"] is False


def test_a_release_is_built_by_tools_pinned_by_hash_alone():
    steps = steps_by_job(ROOT / ".github/workflows/release.yml")

    uploading = [name for name in steps if "upload-artifact@" in str(steps[name])]
    assert uploading == ["build"], "another job's installed packages could change what is published"
    commands = [step["run"] for step in steps["build"] if "run" in step]
    installs = [command for command in commands if "install" in command]
    assert installs == [f"pip install --require-hashes --only-binary=:all: --requirement {PINNED}"]
    assert "python -m build --no-isolation" in commands, "an isolated build downloads its backend without a hash"
    assert not any("run" in step for step in steps["publish"])
