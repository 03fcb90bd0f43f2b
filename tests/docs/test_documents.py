"""The documents name what is there, and print what the commands that they show would print today."""

import json
import os
import re
import shlex
import shutil

import pytest

from scripts.settings_reference import README, REFERENCE, readme, reference_page
from tests.conftest import ROOT, config_of, parted, plan_of, run_python, write_file
from tests.extending import list_items
from topr_exp.grading.grader import GRADER_VERSION
from topr_exp.losses import load_losses

DOCS = ROOT / "docs"
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}


def table_rows(text, heading):
    """The cells of a text's table rows, without the headings, which have this word."""
    rows = []
    for line in text.splitlines():
        if line.startswith("| ") and heading not in line:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


# ---- names


METHOD = re.compile(r"(\[[^\]]+\]\(https://arxiv\.org/abs/\d{4}\.\d{5}\)|[^\[\]`]+): `(algo=[^`]+)`(?:; .+)?")


def test_methods_compose_are_named_once_and_use_every_loss():
    methods = list(filter(None, map(METHOD.fullmatch, list_items(TEXTS["losses.md"]))))

    names = set()
    losses = set()
    for method in methods:
        name, command = method.groups()
        choice, *_ = words = command.split()
        names.add(name)
        losses.add(config_of(*words).algo.name)
        assert choice.removeprefix("algo=") in losses, name
    assert losses == {path.stem for path in ROOT.glob("conf/algo/*.yaml")}
    assert len(names) == len(methods) > 50


def settings_of_yamls_and_losses():
    """The last part of each key."""
    keys = set()
    for loss in load_losses([]).values():
        keys |= vars(loss).keys()
    for path in (ROOT / "conf").rglob("*.yaml"):
        keys |= set(re.findall(r"^ *(?:- )?/?(\w+):", path.read_text(encoding="utf-8"), re.MULTILINE))
    return keys


def test_settings_that_are_compared_with_trls_are_there_on_both_sides():
    trl_keys = set()
    our_keys = set()
    for trl_cell, _, our_cell, *_ in table_rows(TEXTS["names.md"].partition("## Words")[0], "`GRPO"):
        trl_keys |= set(re.findall(r"`(\w+)[=\w.]*`", trl_cell))
        our_keys |= set(re.findall(r"`(?:\w+\.)*(\w+)[=\w.]*`", our_cell))

    assert len(our_keys) > 20
    assert our_keys <= settings_of_yamls_and_losses()
    fields = pytest.importorskip("trl").GRPOConfig.__dataclass_fields__
    assert len(trl_keys) > 20
    assert trl_keys <= {*fields, "reward_funcs"}  # of its trainer


def test_the_number_of_losses_is_that_of_the_classes():
    assert README.read_text(encoding="utf-8") == readme(), "run python -m scripts.settings_reference"


@pytest.mark.extended
def test_the_reference_has_every_setting_with_what_it_is():
    page = reference_page()

    assert REFERENCE.read_text(encoding="utf-8") == page, "run python -m scripts.settings_reference"
    rows = re.findall(r"^\| (`(?!algo=).*) \|$", page, re.MULTILINE)
    assert len(rows) > 150
    for row in rows:
        _, default, _, description = row.split(" | ")
        assert default.strip(), row
        assert description.strip(), row


def test_the_code_that_is_named_is_there():
    for name, text in TEXTS.items():
        for file in re.findall(r"(?<![\w./-])((?:topr_exp|tests|scripts|reproduce|benchmarks)/[\w/]+\.py)\b", text):
            assert (ROOT / file).exists(), name


def test_the_tests_that_are_named_are_there():
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "\n".join(TEXTS.values()))

    assert len(tests) > 10
    for file, test in tests:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8")


def test_the_readme_fits_two_screens():
    assert len(TEXTS["README.md"].splitlines()) <= 90


@pytest.mark.parametrize("name", TEXTS)
def test_rows_are_rows_of_a_table(name):
    heads = re.findall(r"(?<!\|)\n(\|.*\n.*)", "\n" + TEXTS[name])

    for head in heads:
        assert re.search(r"\n\|[-:| ]+\|$", head), head


# ---- what commands print

RUN_FOLDER = re.compile(r"\b[a-z][\w.-]*_s\d_[0-9a-f]{10}\b")
# The overrides of a sweep: of the command itself, or in the remark behind one that shows a sweep.
SWEEP = re.compile(r"(?:topr_exp -m |sweeps status \S+ +# )((?:.*\\\n)*.*)")


def test_the_filled_in_cluster_composes(tmp_path):
    (text,) = re.findall(r"```yaml\n(# @package _global_.*?)```", TEXTS["slurm.md"], re.DOTALL)
    write_file(tmp_path / "cluster/mine.yaml", text)

    cluster = config_of("--config-dir", str(tmp_path), "cluster=mine").cluster

    assert cluster.name == "slurm"
    assert cluster.jobs == 16
    assert cluster.nodes == 1


def sweeps_in(text):
    """The words of each sweep's command, and the run folders that are shown with it."""
    sweeps = []
    for block in re.findall(r"```\n(.*?)```", text, re.DOTALL):
        command = SWEEP.search(block)
        folders = set(RUN_FOLDER.findall(block))
        if command and folders:
            sweeps.append((shlex.split(command[1].replace("\\\n", " ")), folders))
    return sweeps


def test_folders_on_the_pages_are_those_of_their_sweeps():
    assert len(sweeps_in(TEXTS["slurm.md"])) >= 3
    for name, text in TEXTS.items():
        for words, folders in sweeps_in(text):
            names = {job.config.folder.name for job in plan_of("-m", *words).jobs}
            assert folders <= names, name


def test_the_page_shows_the_graders_version():
    versions = re.findall(r"grader=\S+ rollouts=\S+ version=(\d+)", TEXTS["guarantees.md"])

    assert set(versions) == {GRADER_VERSION}


# ---- whole: the notebook and the site


@pytest.mark.extended
def test_the_notebook_runs_and_topr_ends_above_ppo(working_folder):
    notebook = DOCS / "first_steps.ipynb"
    cells = [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]

    names = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), notebook.name, "exec"), names)

    final = names["runs"].set_index("algo.name")["final_pass@1"]
    assert final["topr"] > final["ppo"] + 0.1
    assert len(names["drawn"]) == names["summary"]["n_train"] == 3200
    assert notebook.stat().st_size < 150_000
    assert any(cell["outputs"] for cell in cells)


def build_site(root, site):
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return run_python("-m", "mkdocs", "build", "--strict", "--site-dir", site, cwd=root, env=environment)


# A page of the site | what stands there
ON_PAGES = """
api | Run an experiment in this process
api | Score completions by a policy
reference | algo.b_neg
weights | incorrect completions of 100 tokens
results | Figure 1
"""


@pytest.mark.extended
def test_the_site_builds_without_scripts_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the extra `docs`")

    process = build_site(ROOT, tmp_path)

    assert process.returncode == 0, process.stderr
    assert "<math" in (tmp_path / "index.html").read_text(encoding="utf-8")
    for page, text in parted(ON_PAGES):
        assert text in (tmp_path / page / "index.html").read_text(encoding="utf-8")
    foreign = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//(?![^"]*canonical)')
    for path in tmp_path.glob("*/index.html"):
        assert not foreign.search(path.read_text(encoding="utf-8")), path
        assert "md-footer__link--prev" in path.read_text(encoding="utf-8"), path


@pytest.mark.extended
def test_a_fault_of_a_link_or_the_menu_ends_the_build_of_the_site(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the extra `docs`")
    for name in ("scripts", "topr_exp", "mkdocs.yml", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    docs = shutil.copytree(DOCS, tmp_path / "docs")
    (docs / "gpu.md").write_text(TEXTS["gpu.md"] + "\n[nowhere](running.md#no-such-place)\n")
    (docs / "hidden.md").write_text("# Not in the menu\n")

    process = build_site(tmp_path, tmp_path / "site")

    assert process.returncode != 0
    assert "no-such-place" in process.stderr
    assert "hidden.md" in process.stderr
