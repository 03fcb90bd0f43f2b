"""Layers are computed again where a GPU has no room for what they keep; the estimate is what the simulation counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import config_of, make_model, overrides
from topr_exp import pipeline
from topr_exp.config.optim import Optimizer
from topr_exp.models.policy import Policy
from topr_exp.runs import checkpointing
from topr_exp.runs.checkpointing import choose, peak, room_of, settle
from topr_exp.types import Problem, TOPRError

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


def policy_on_gpu() -> OnGPU:
    return OnGPU(make_model(11), None, "test", torch.float32)


TRAIN: Any = SimpleNamespace(
    prompts=[np.array([0, 3, 5, 6]), np.array([0, 3, 4])], problems=[Problem("p", "", "")], stop=()
)


def chosen(monkeypatch: pytest.MonkeyPatch, free: float, *settings: str) -> tuple[bool, str]:
    monkeypatch.setattr(checkpointing, "free_gib", lambda device: free)
    config = config_of("optim=paper", *settings)
    assert config.optim.gradient_checkpointing is None
    return choose(config, policy_on_gpu(), TRAIN, 1)


def test_layers_are_kept_where_the_gpu_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "peak", lambda **given: 104.2)
    assert chosen(monkeypatch, 140) == (
        False, "layers are kept for the backward pass: kept they need at most 104 GiB by estimate, 140 are there"
    )  # fmt: skip
    assert chosen(monkeypatch, 116)[0] is False  # of which nine tenths are 104.4
    assert chosen(monkeypatch, 115)[0]
    again, why = chosen(monkeypatch, 79)
    assert again
    assert why.startswith("layers are computed again in the backward pass: kept they need at most 104 GiB")
    assert chosen(monkeypatch, 140, "algo=agro", "optim.batch_size=16")[0]
    assert chosen(monkeypatch, 140, "schedule=on_policy", "optim.batch_size=32")[0]


def test_what_is_there_is_what_is_free_and_what_the_weights_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has 50 of 140 GiB; torch has 40 reserved, 35 of them in use, 32 by the policy's weights."""
    gib, cuda = 2**30, torch.cuda
    values = {"is_available": True, "mem_get_info": (50 * gib, 140 * gib)}
    values |= {"memory_reserved": 40 * gib, "memory_allocated": 35 * gib}
    for name, value in values.items():
        monkeypatch.setattr(cuda, name, lambda value=value: value)
    weight = SimpleNamespace(numel=lambda: 8 * gib, element_size=lambda: 4)
    model = SimpleNamespace(parameters=lambda: [weight])
    assert room_of(config_of(), OnGPU(model, None, "test", torch.float32)) == 50 + 5 + 32


def test_only_what_the_settings_leave_open_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "choose", lambda config, policy, train, processes: (False, f"of {processes}"))
    config, why = settle(config_of("optim=paper"), policy_on_gpu(), TRAIN)
    assert (config.optim.gradient_checkpointing, why) == (False, "of 1")
    given = config_of("optim=paper", "optim.gradient_checkpointing=true")
    assert settle(given, policy_on_gpu(), TRAIN) == (given, "")


@pytest.mark.parametrize("again", [True, False])
def test_a_run_trains_as_was_chosen_and_says_so(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[Any] = []

    def trainer(*given: Any) -> None:
        taken.append(given[3].gradient_checkpointing)
        raise TOPRError("far enough")

    monkeypatch.setattr(checkpointing, "choose", lambda *given: (again, "as there is room"))
    monkeypatch.setattr(pipeline, "Trainer", trainer)
    with pytest.raises(TOPRError, match="far enough"):
        pipeline.run(config_of(*overrides(tmp_path, "optim.gradient_checkpointing=null")))
    assert taken == [again]
    assert "\nmemory      as there is room\n" in capsys.readouterr().out


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
