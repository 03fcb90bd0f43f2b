"""A GPU that is too small for what is asked is told before weights are loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import config_of
from topr_exp.models import files
from topr_exp.models.loading import SHIPPED, load_model
from topr_exp.runs import gpu_memory
from topr_exp.runs.gpu_memory import GIB, check_gpu_memory, demands, refuse_shortage
from topr_exp.types import ConfigError

LLAMA = 8_030_261_248


def needed(**changes: Any) -> dict[str, float]:
    values: dict[str, Any] = {"adamw": False, "shards": 1, "reference": None, "casts": False} | changes
    return {demand.stage: round(demand.total, 1) for demand in demands(LLAMA, **values)}


def test_what_a_model_of_8_billion_weights_needs() -> None:
    assert needed() == {"sampling": 29.9, "training": 59.8}  # as benchmarks/simulated_memory.py counts
    assert needed(casts=True)["sampling"] == 44.9
    assert needed(adamw=True)["training"] == 119.7
    assert needed(shards=8) == {"sampling": 29.9, "training": 7.5}
    assert needed(reference="scored") == {"sampling": 29.9, "scoring": 59.8, "training": 59.8}
    assert needed(reference="kept", shards=2)["training"] == 59.8


def test_what_it_needs_where_an_adapter_alone_is_trained() -> None:
    assert needed(frozen=2) == {"sampling": 15.0, "scoring": 15.0, "training": 15.0}
    assert needed(frozen=2, adamw=True, casts=True) == needed(frozen=2)
    assert needed(frozen=2, reference="kept", shards=2) == {"sampling": 15.0, "scoring": 29.9, "training": 22.4}
    with pytest.raises(ConfigError, match=r"training needs 29.9 .* or model.dtype=bfloat16$"):
        refuse_shortage(
            "llama3_8b", [demands(LLAMA, adamw=True, shards=1, reference=None, casts=True, frozen=4)[2]], 24
        )


def test_a_shortage_names_what_is_needed_what_is_free_and_what_lowers_it() -> None:
    asked = demands(LLAMA, adamw=True, shards=1, reference=None, casts=True)
    refuse_shortage("llama3_8b", asked, free=120.0)
    with pytest.raises(ConfigError) as caught:
        refuse_shortage("llama3_8b", asked, free=79.2)
    assert str(caught.value) == (
        "model=llama3_8b: training needs 119.7 GiB on a GPU and more for activations (weights 29.9, gradients 29.9, "
        "AdamW's state 59.8), and 79.2 GiB are free; optim=paper (Adafactor) or cluster.processes=2 or more with "
        "cluster.parallel=fsdp"
    )
    with pytest.raises(ConfigError, match=r"sampling needs 44.9 GiB .* and 40.0 GiB are free; take sampler=vllm$"):
        refuse_shortage("llama3_8b", demands(LLAMA, adamw=False, shards=8, reference=None, casts=True), free=40.0)


def test_a_run_is_refused_before_its_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    free = [8 * GIB]
    cuda = {"is_available": True, "mem_get_info": (free[0], 24 * GIB), "memory_reserved": 0, "memory_allocated": 0}
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(gpu_memory, "model_folder", lambda path, revision: path)
    monkeypatch.setattr(gpu_memory, "files", SimpleNamespace(weight_count=lambda folder: 2_000_000_000))
    check_gpu_memory(config_of("cluster.device=cpu"), 1)
    with pytest.raises(ConfigError, match=r"model=tiny: training needs 29.8 GiB .*, and 8.0 GiB are free; optim=paper"):
        check_gpu_memory(config_of(), 1)
    with pytest.raises(ConfigError, match=r"training needs 14.9 GiB .*; cluster.processes=2 or more with"):
        check_gpu_memory(config_of("optim=paper"), 1)
    lora = "model.lora={rank: 4, alpha: 8, targets: all-linear}"
    check_gpu_memory(config_of(lora, "algo=agro"), 1)  # 7.5 GiB, and π_ref is the same model
    with pytest.raises(ConfigError, match=r"scoring needs 14.9 GiB .*; leave model.reference out"):
        check_gpu_memory(config_of(lora, "algo=agro", "model.reference=tiny_noise"), 1)
    check_gpu_memory(config_of("optim=paper"), 2)  # by fsdp, from a billion weights on
    with pytest.raises(ConfigError, match=r"training needs 14.9 GiB"):
        check_gpu_memory(config_of("optim=paper", "cluster.parallel=ddp", "cluster.processes=2"), 2)


def test_weights_are_counted_from_headers() -> None:
    model, _ = load_model("tiny")
    assert files.weight_count(SHIPPED / "tiny") == sum(weight.numel() for weight in model.parameters())
