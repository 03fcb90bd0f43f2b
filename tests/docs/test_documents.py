"""The documents name what is there, and print what the commands that they show would print today."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.settings_reference import README, REFERENCE, readme, reference_page
from tests.conftest import ROOT, config_of
from tests.extending import list_items
from topr_exp.config.compose_overrides import parse_arguments
from topr_exp.grading.grader import GRADER_VERSION
from topr_exp.losses import load_losses
from topr_exp.runs.plan import plan

DOCS = ROOT / "docs"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of a page's table rows, without the headings, which have this word."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and heading not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# ---- losses.md, names.md, reference.md: names

METHOD = re.compile(r"(\[[^\]]+\]\(https://arxiv\.org/abs/\d{4}\.\d{5}\)|[^\[\]`]+): `(algo=[^`]+)`(?:; .+)?")
METHODS = [match.groups() for item in list_items(TEXTS["losses.md"]) if (match := METHOD.fullmatch(item))]


@pytest.mark.parametrize("settings", [row[1] for row in METHODS], ids=[row[0] for row in METHODS])
def test_every_method_composes(settings: str) -> None:
    assert f"algo={config_of(*settings.split(), 'dry_run=true').algo.name}" in settings.split()


def test_methods_are_named_once_and_use_every_loss() -> None:
    named = {settings.split()[0] for _, settings in METHODS}
    assert named == {f"algo={path.stem}" for path in (ROOT / "conf" / "algo").glob("*.yaml")}
    assert len({name for name, _ in METHODS}) == len(METHODS) > 50


def test_trl_has_the_settings_that_are_named_as_its_own_and_conf_those_of_ours() -> None:
    table = rows(TEXTS["names.md"].partition("## Words")[0], "`GRPO")
    theirs, ours = ({name.partition("=")[0] for row in table for name in re.findall(r"`([\w.=]+)`", row[column])}
                    for column in (0, 2))  # fmt: skip
    keys = {key for path in (ROOT / "conf").rglob("*.yaml")
            for key in re.findall(r"^ *(?:- )?/?(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE)}  # fmt: skip
    keys |= {name for loss in load_losses([]).values() for name in vars(loss)}
    assert min(len(theirs), len(ours)) > 20
    assert not {name.rpartition(".")[2] for name in ours} - keys
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    assert not theirs - {*fields, "reward_funcs"}  # of its trainer


def test_the_number_of_losses_is_that_of_the_classes() -> None:
    assert README.read_text(encoding="utf-8") == readme(), "run python -m scripts.settings_reference"


@pytest.mark.extended
def test_the_reference_is_written_anew_when_a_setting_changes_and_says_what_each_is() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference_page(), "run python -m scripts.settings_reference"
    table = [line.split(" | ") for line in reference_page().splitlines() if line.startswith("| `")]
    assert len(table) > 150
    assert not [row[0] for row in table if len(row) != 4 or not row[1].strip() or row[3].strip(" |") == ""]
    names = {re.sub(r"[|` ]", "", row[0]) for row in table}
    assert {"algo.b_neg", "data.turns", "sampler.python", "cluster.partition", "optim.lr", "baseline"} <= names
    assert all(f"\n## {key}" in reference_page() for key in ("data", "model", "sampler", "tracking"))


def test_the_code_that_is_named_is_there() -> None:
    pattern = re.compile(r"(?<![\w./-])(?:topr_exp|tests|scripts|reproduce|benchmarks)/[\w/]+\.py\b")
    named = {name for text in TEXTS.values() for name in pattern.findall(text)}
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_tests_that_are_named_are_there() -> None:
    named = {each for text in TEXTS.values() for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)}
    assert len(named) > 10
    assert not [each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text(encoding="utf-8")]


def test_the_readme_fits_two_screens() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 90


# ---- what commands print

FOLDER = re.compile(r"\b[a-z][\w.-]*_s\d_[0-9a-f]{10}\b")  # of a run
# The overrides of a sweep: of the command itself, or in the remark behind one that shows a sweep.
SWEEP = re.compile(r"(?:topr_exp -m |sweeps status \S+ +# )((?:.*\\\n)*.*)")


def test_the_filled_in_cluster_composes(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(# @package _global_.*?)```", (DOCS / "slurm.md").read_text(), re.DOTALL)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "mine.yaml").write_text(text)
    cluster = config_of("--config-dir", str(tmp_path), "cluster=mine").cluster
    assert (cluster.name, cluster.partition, cluster.jobs, cluster.nodes) == ("slurm", "gpu", 16, 1)


def test_the_folders_of_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for name, text in TEXTS.items():
        for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
            command, folders = SWEEP.search(block), {*FOLDER.findall(block)}
            if command and folders:
                jobs = plan(parse_arguments(["-m", *shlex.split(command[1].replace("\\\n", " "))])).jobs
                assert folders <= {job.config.folder.name for job in jobs}, name
                found.append(name)
    assert found.count("slurm.md") >= 3


def test_the_version_of_the_verdicts() -> None:
    assert {*re.findall(r"grader=\S+ rollouts=\S+ version=(\d+)", TEXTS["guarantees.md"])} == {GRADER_VERSION}


# ---- whole: the notebook and the site


@pytest.mark.extended
def test_the_notebook_runs_and_topr_ends_above_ppo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    notebook = DOCS / "first_steps.ipynb"
    assert notebook.stat().st_size < 150_000
    names: dict[str, Any] = {}
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] or "run(ppo)" not in cell["source"]
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    final = names["runs"].set_index("algo.name")["final_pass@1"]
    assert final["topr"] > final["ppo"] + 0.1
    assert len(names["drawn"]) == names["summary"]["n_train"] == 3200


@pytest.mark.extended
def test_the_site_builds_and_a_fault_of_a_link_the_menu_or_an_address_ends_the_build(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="the extra `docs`")
    site = tmp_path / "site"

    def build(root: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
        env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)

    done = build(ROOT)
    assert done.returncode == 0, done.stderr
    parts = {"": "Tapered Off-Policy REINFORCE", ".": 'href="running/"', "api": "Run an experiment in this process"}
    parts |= {"reference": "algo.b_neg", "weights": "wrong answers of 100 tokens", "running": "Settings, evaluation"}
    for folder, text in {**parts, "results": "Figure 1", "index.html": "<math"}.items():
        page = site / folder
        assert text in (page / "index.html" if page.is_dir() else page).read_text()
    for page in site.glob("*/index.html"):
        assert not re.search(
            r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//(?![^"]*canonical)', page.read_text()
        ), page
        assert "md-footer__link--prev" in page.read_text(), page

    for name in ("scripts", "topr_exp", "mkdocs.yml", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "gpu.md").open("a") as file:
        file.write("\n[nowhere](running.md#no-such-place)\n")
    (tmp_path / "docs" / "hidden.md").write_text("# Not in the menu\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "no-such-place" in done.stderr
    assert "hidden.md" in done.stderr
    (tmp_path / "docs" / "results.md").write_text("# Results\n")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "results.md and results/README.md both build to results/index.html" in done.stderr
