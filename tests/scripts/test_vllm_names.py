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
from tests.conftest import ROOT, config_of
from topr_exp.sampling.vllm_requirements import untested


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build that has every name, and nothing else."""
    for (path, owner), names in used_names().items():
        file = tmp_path / "vllm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"    {name}: int = 0" for name in sorted(names)] if owner else [repr(sorted(names))]
        file.write_text("\n".join([f"class {owner}:", *lines] if owner else lines))
    return tmp_path


def test_a_name_that_is_gone_is_a_line(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(build) == 0
    for path, name in (("engine/arg_utils.py", "logprobs_mode"), ("envs.py", "VLLM_USE_FLASHINFER_SAMPLER"),
                       ("entrypoints/llm.py", "reset_prefix_cache"), ("v1/worker/gpu_worker.py", "reload_weights"),
                       ("sampling_params.py", "stop_token_ids")):  # fmt: skip
        file = build / "vllm" / path
        text = file.read_text()
        file.write_text(text.replace(name, "another"))
        assert main(build) == 1
        assert f"vllm/{path}" in (line := capsys.readouterr().out)
        assert name in line
        file.write_text(text)


@pytest.mark.vllm
@pytest.mark.extended
def test_the_installed_build_has_every_name() -> None:
    environment = Path(os.environ.get("TOPR_VLLM", ROOT / ".venv-vllm"))
    if not (environment / ".installed").exists():
        pytest.skip(f"no vLLM in {environment}; run `make vllm`")
    (packages,) = environment.glob("lib/python3.*/site-packages")
    assert main(packages) == 0


# ---- pins


PINS = "constraints-gpu.txt"


def pinned(python: str) -> dict[str, str]:
    """The version of each package on Linux with this Python."""
    place = {"python_full_version": f"{python}.0", "sys_platform": "linux", "platform_machine": "x86_64"}
    lines = [Requirement(line) for line in (ROOT / PINS).read_text().splitlines() if not line.startswith("#")]
    found = [each for each in lines if each.marker is None or each.marker.evaluate(place)]
    assert len({each.name for each in found}) == len(found)
    return {each.name: str(each.specifier).removeprefix("==") for each in found}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_pins_satisfy_the_ranges_of_the_package(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = pinned(python)
    for text in (*project["dependencies"], *extras["vllm"], *extras["dev"]):
        asked = Requirement(text)
        assert pins[asked.name] in asked.specifier, text


@pytest.mark.parametrize("file", [PINS, "constraints-vllm.txt"])
def test_pinned_versions_are_tested_ones(file: str) -> None:
    """Of the environments that a document names none warns that it was not tested."""
    found = dict(re.findall(r"^(vllm|torch)(?:-cpu)?==(\S+)", (ROOT / file).read_text(), re.MULTILINE))
    assert untested(found["vllm"], found["torch"]) is None


def test_documents_that_install_vllm_name_the_pins() -> None:
    installs = [
        (path.name, line)
        for path in (*(ROOT / "docs").glob("*.md"), ROOT / "docs" / "skypilot.yaml", ROOT / "README.md")
        for line in path.read_text().splitlines()
        if re.search(r"pip install\b.*\bvllm|INSTALL=.*vllm", line)
    ]
    assert {name for name, _ in installs} == {"gpu.md", "skypilot.yaml"}
    assert [line for _, line in installs if PINS not in line] == []


def test_skypilot_starts_the_readmes_command() -> None:
    """Nobody rents a GPU here, so only what it would start is checked."""
    text = (ROOT / "docs" / "skypilot.yaml").read_text()
    task = yaml.safe_load(text)
    arguments = task["envs"]["ARGUMENTS"]
    assert f"python -m topr_exp {arguments} " in (ROOT / "README.md").read_text()
    assert task["run"].splitlines()[-1] == "python -m topr_exp $ARGUMENTS cluster.device=cuda"
    assert config_of(*shlex.split(arguments), "cluster.device=cuda").cluster.device == "cuda"
    assert "NOT RUN" in text
    assert (ROOT / "constraints.txt").exists()
