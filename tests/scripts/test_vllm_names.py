"""Names of vLLM: all that the engine's process uses is in the installed build, and one that goes is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scripts.vllm_names import main, used
from tests.conftest import ROOT


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build that has every name, and nothing else."""
    for (path, owner), names in used().items():
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
