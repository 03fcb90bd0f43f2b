"""The Python of engines, and the sampler with which a run folder is evaluated."""

import importlib.util
import re
import sys

import pytest
from omegaconf import OmegaConf

from tests.conftest import ROOT, config_of, refused
from topr_exp.evaluate import copy_question
from topr_exp.sampling.generation import open_sampler
from topr_exp.sampling.vllm_requirements import TESTED, check_python
from topr_exp.schema import plain
from topr_exp.types import ConfigError

TAIL = ", or take sampler=hf, which samples an 8B model many times more slowly (docs/gpu.md)"


@pytest.mark.parametrize(
    "python, message",
    [
        ("/not/there", "sampler.python=/not/there: can't be started (No such file or directory)"),
        ("/bin/false", "sampler.python=/bin/false: no Python (it ended with status 1)"),
        (sys.executable, f"no vLLM in that environment; {sys.executable} -m pip install vllm{TAIL}"),
        (
            "null",
            f"sampler=vllm with {sys.executable}: no vLLM in that environment; in the checkout pip install "
            "-e '.[vllm]' -c constraints-gpu.txt (on a GPU), set sampler.python=PYTHON of an environment that has it"
            f"{TAIL}",
        ),
    ],
)
def test_a_missing_vllm_is_one_line_before_anything_loads(tmp_path, python, message):
    if importlib.util.find_spec("vllm") is not None and python in ("null", sys.executable):
        pytest.skip("this environment has vLLM")
    config = config_of("sampler=vllm", f"sampler.python={python}")

    with refused(re.escape(message), ConfigError), open_sampler(config.sampler, tmp_path, False):
        pass

    assert not list(tmp_path.iterdir())


def test_an_old_vllm_is_refused_by_its_version(make_environment):
    assert check_python(make_environment({"vllm": "0.30.0rc1+cpu"}))

    old = make_environment({"vllm": "0.29.3"})
    with refused(f"vLLM 0.29.3 is too old, 0.30 or newer is needed; {old} -m", ConfigError):
        check_python(old)


def test_the_oldest_vllm_is_that_of_the_package():
    assert f'vllm = ["vllm>={TESTED["vllm"][0]}"]' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "choices, name, has_engine",
    [({}, "vllm", True), ({"sampler": "hf"}, "hf", False)],
)
def test_a_run_folder_is_evaluated_with_its_own_sampler_unless_another_is_asked_for(choices, name, has_engine):
    run = plain(config_of("data=ledger", "sampler=vllm", "data.choices=4", "sampler.top_k=7"))
    composed = OmegaConf.create(plain(config_of("data=ledger")))

    copy_question(run, composed, choices)

    assert composed.data.choices == 4
    assert composed.sampler.name == name
    assert composed.sampler.top_k == 7
    assert ("sleep" in composed.sampler) == has_engine
