"""What many tests use: a small random model, a policy around it, and runs with few problems."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# The same cases every time: chance must not decide whether a change passes. New ones:
# python -m pytest --hypothesis-profile=default tests/grading/test_fuzz.py
hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.load_profile("same")

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = Path(os.environ.get("TOPR_SHARED_DATA", ROOT.parent / "shared" / "data"))

# It needs packages that are built from source, one of them with a C compiler: no part of the extra [dev].
needs_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="reasoning-gym is not installed (pip install -e '.[tasks]'; it needs a C compiler)",
)

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is not installed (pip install -e '.[lora]')"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first, so that no process waits for it at the end."""
    items.sort(key=lambda item: "test_io_faults" not in item.nodeid)


@pytest.fixture(scope="session")
def small_model() -> Any:
    """A Llama of two layers with random weights, float32, in evaluation mode."""
    return make_model(vocabulary=11)


def make_model(vocabulary: int, seed: int = 0, **changes: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        # Wide weights, so that the distributions are far from uniform.
        "initializer_range": 0.6,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    return LlamaForCausalLM(LlamaConfig(**(settings | changes))).eval()


@pytest.fixture
def make_policy() -> Any:
    """A function that wraps a copy of a model as a policy."""
    import copy

    import torch

    from topr_exp.models.policy import Policy

    def wrap(model: Any) -> Policy:
        return Policy(copy.deepcopy(model), None, "test", torch.float32)

    return wrap


def overrides(folder: Path, *more: str) -> list[str]:
    """A run of a few seconds in `folder`."""
    return ["experiment=smoke", f"output_dir={folder}", "cluster.threads=1", *more]


def config_of(*arguments: str) -> Any:
    """The checked settings of one run."""
    from topr_exp.config.compose_overrides import parse_arguments
    from topr_exp.runs.plan import plan

    (job,) = plan(parse_arguments(list(arguments))).jobs
    return job.config


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A folder of root's, seen by a user who may only read it (for whoever isn't root: a folder without w)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield folder
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)


def become_ordinary(folder: Path, mode: int = 0o555) -> None:
    folder.chmod(mode)
    if os.getuid() == 0:
        os.seteuid(65534)
