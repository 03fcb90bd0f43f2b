"""The site builds strictly: every page is in its navigation, and every link and anchor leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.extended


def build(folder: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocstrings", reason="the extra `docs`")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=root, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "index.html").read_text()
    assert "Tapered Off-Policy REINFORCE" in first
    assert 'href="settings/"' in first
    assert "Run an experiment in this process" in (tmp_path / "api" / "index.html").read_text()
    assert "algo.b_neg" in (tmp_path / "reference" / "index.html").read_text()


def test_a_link_that_leads_nowhere_ends_it(tmp_path: Path) -> None:
    for name in ("docs", "scripts", "topr_exp", "mkdocs.yml", "README.md"):
        if name != "docs":
            (tmp_path / name).symlink_to(ROOT / name)
    subprocess.run(["cp", "-r", ROOT / "docs", tmp_path / "docs"], check=True)
    page = tmp_path / "docs" / "vllm.md"
    page.write_text(page.read_text() + "\n[nowhere](settings.md#no-such-place)\n")
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "no-such-place" in done.stderr
