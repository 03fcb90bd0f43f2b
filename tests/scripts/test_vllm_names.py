"""Names of vLLM that the package takes, and the pins of the GPU's environment."""

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from scripts.vllm_names import main, used_names
from tests.conftest import ROOT, append_text, config_of, each_row
from topr_exp.sampling.vllm_requirements import describe_untested

PINS = "constraints-gpu.txt"


@pytest.fixture
def build(tmp_path):
    """A build that has every name, and nothing else."""
    for owner, names in used_names().items():
        lines = [repr(name) for name in names]
        if owner.name:
            lines = [f"class {owner.name}:", *(f"    {name}: int = 0" for name in names)]
        path = tmp_path / "vllm" / owner.path
        path.parent.mkdir(parents=True, exist_ok=True)
        append_text(path, "\n".join([*lines, ""]))  # a file may have several classes
    return tmp_path


def test_a_build_with_every_name_passes(build):
    assert main(build) == 0


NAMES = """
engine/arg_utils.py | logprobs_mode
envs.py | VLLM_USE_FLASHINFER_SAMPLER
entrypoints/llm.py | reset_prefix_cache
v1/worker/gpu_worker.py | reload_weights
sampling_params.py | stop_token_ids
"""


@each_row("path name", NAMES)
def test_a_missing_name_is_a_line(build, capsys, path, name):
    file = build / "vllm" / path
    file.write_text(file.read_text().replace(name, "another"))

    assert main(build) == 1

    assert re.fullmatch(rf"vllm/{path}: .* has no {name}\n", capsys.readouterr().out)


@pytest.mark.vllm
@pytest.mark.extended
def test_the_installed_build_has_every_name():
    environment = Path(os.environ.get("TOPR_VLLM", ROOT / ".venv-vllm"))
    if not (environment / ".installed").exists():
        pytest.skip(f"no vLLM in {environment}; run `make vllm`")

    (packages,) = environment.glob("lib/python3.*/site-packages")

    assert main(packages) == 0


def pinned_versions(python):
    """The version of each package that is pinned for an interpreter."""
    environment = {"python_full_version": f"{python}.0", "sys_platform": "linux", "platform_machine": "x86_64"}
    versions = {}
    for line in re.findall(r"^[^#\n].*", (ROOT / PINS).read_text(), re.MULTILINE):
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in versions
            versions[pin.name] = str(pin.specifier).removeprefix("==")
    return versions


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_pins_satisfy_the_ranges_of_the_package(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    versions = pinned_versions(python)

    for requirement in map(Requirement, (*project["dependencies"], *extras["vllm"], *extras["dev"])):
        assert versions[requirement.name] in requirement.specifier, requirement


@pytest.mark.parametrize("file", [PINS, "constraints-vllm.txt"])
def test_pinned_versions_are_tested_ones(file):
    """No environment that a document names warns that it was not tested."""
    versions = dict(re.findall(r"^(vllm|torch)(?:-cpu)?==(\S+)", (ROOT / file).read_text(), re.MULTILINE))

    assert describe_untested({"vLLM": versions["vllm"], "torch": versions["torch"]}) is None


def test_documents_that_install_vllm_name_the_pins():
    installing_files = set()
    for path in (*ROOT.glob("docs/*.md"), ROOT / "docs/skypilot.yaml", ROOT / "README.md"):
        for line in re.findall(r".*(?:pip install\b.*\bvllm|INSTALL=.*vllm).*", path.read_text()):
            installing_files.add(path.name)
            assert PINS in line

    assert installing_files == {"gpu.md", "skypilot.yaml"}


def test_skypilot_starts_the_readmes_command():
    """Nobody rents a GPU here, so only what it would start is checked."""
    text = (ROOT / "docs/skypilot.yaml").read_text()
    task = yaml.safe_load(text)
    arguments = task["envs"]["ARGUMENTS"]

    assert f"python -m topr_exp {arguments} " in (ROOT / "README.md").read_text()
    assert task["run"].splitlines()[-1] == "python -m topr_exp $ARGUMENTS cluster.device=cuda"
    assert config_of(*shlex.split(arguments), "cluster.device=cuda").cluster.device == "cuda"
    assert "NOT RUN" in text
