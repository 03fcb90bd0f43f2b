"""Layers are computed again where a GPU has no room for what they keep; the estimate is what the simulation counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import config_of, make_model
from topr_exp.config.optim import Optimizer
from topr_exp.models.policy import Policy
from topr_exp.runs import checkpointing
from topr_exp.runs.checkpointing import choose, peak
from topr_exp.types import Problem

LLAMA = {"weights": 6_979_584_000, "layers": 32, "hidden": 4096, "mlp": 14_336, "vocabulary": 128_256, "pairs": 0}


@pytest.mark.parametrize(("micro", "simulated"), [(8, 74.7), (4, 95.0), (1, 87.9)])
def test_the_estimate_is_what_the_simulation_counts(micro: int, simulated: float) -> None:
    """benchmarks/simulated_memory.py, which counts on the CPU, where keys are not copied for each head."""
    tokens = 900 + micro * 300
    found = peak(**LLAMA, tokens=tokens, in_one=micro == 8, adamw=False, shards=1)
    assert found == pytest.approx(simulated, abs=1)


def test_what_lowers_and_raises_the_estimate() -> None:
    base: dict[str, Any] = {**LLAMA, "tokens": 3300, "in_one": True, "adamw": False, "shards": 1}
    whole = peak(**base)
    assert peak(**base | {"shards": 8}) < whole - 20
    assert peak(**base | {"adamw": True}) == pytest.approx(whole + 59.8, abs=0.1)
    assert 4 < peak(**base | {"pairs": 8 * 1200}) - whole < 6


class OnGPU(Policy):
    device = SimpleNamespace(type="cuda")  # type: ignore[assignment]


def chosen(monkeypatch: pytest.MonkeyPatch, total: float, *settings: str) -> tuple[bool, str]:
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, int(total * 2**30)))
    config = config_of("optim=paper", *settings)
    assert config.optim.gradient_checkpointing is None
    policy = OnGPU(make_model(11), None, "test", torch.float32)
    train = SimpleNamespace(prompts=[np.array([0, 3, 5, 6]), np.array([0, 3, 4])], problems=[Problem("p", "", "")])
    return choose(config, policy, train, 1)  # type: ignore[arg-type]


def test_layers_are_kept_where_the_gpu_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "peak", lambda **given: 104.2)
    assert chosen(monkeypatch, 140) == (
        False, "layers are kept for the backward pass: kept they need at most 104 GiB by estimate, the GPU has 140"
    )  # fmt: skip
    again, why = chosen(monkeypatch, 79)
    assert again
    assert why.startswith("layers are computed again in the backward pass: kept they need at most 104 GiB")
    assert chosen(monkeypatch, 140, "algo=agro", "optim.batch_size=16")[0]
    assert chosen(monkeypatch, 140, "schedule=on_policy", "optim.batch_size=32")[0]


def test_a_batch_of_the_longest_completions_is_what_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(checkpointing, "peak", lambda **given: asked.append(given) or 0.0)
    chosen(monkeypatch, 140, "sampler.max_new_tokens=10", "optim.micro_batch_size=4")
    (given,) = asked
    assert (given["tokens"], given["pairs"], given["in_one"]) == (2 + 4 * 12, 4 * 14, False)
    assert config_of("optim=paper").optim.name is Optimizer.adafactor


def test_a_model_that_does_not_say_how_wide_its_layers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    def narrow(seed: int) -> Any:
        return GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=8, n_layer=1, n_head=1, n_positions=64))

    monkeypatch.setitem(globals(), "make_model", narrow)
    assert chosen(monkeypatch, 140) == (
        True, "layers are computed again in the backward pass: what they keep of this model is not estimated"
    )  # fmt: skip
