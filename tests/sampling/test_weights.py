"""Weights on their way to engines: written once a run in the engines' precision, and compared bit by bit."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.conftest import config_of, make_model
from tests.processes import together
from topr_exp.models.policy import Policy
from topr_exp.runtime import distributed
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.vllm import VLLM, EngineSlot, check_weights, compared_tensors, weight_shapes
from topr_exp.sampling.vllm_worker import MODULUS, Worker, bit_sum, bit_sums
from topr_exp.types import TOPRError


class Tokenizer:
    eos_token_id = 1

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


def policy(dtype: torch.dtype = torch.bfloat16, hidden: int = 16) -> Policy:
    return Policy(make_model(11, hidden_size=hidden), Tokenizer(), "now", dtype)


def written(folder: Path) -> tuple[int, set[torch.dtype], list[str]]:
    """How often this process writes the weights, what it then finds, and what is left once it has closed."""
    calls, save = [0], vllm_module.save_policy

    def counted(*given: Any) -> None:
        calls[0] += 1
        save(*given)

    vllm_module.save_policy = counted
    vllm_module.check_python = lambda python: "python"  # in a process that ends with this
    sampler = VLLM(config_of("sampler=vllm").sampler, folder / "sampler", False)
    sampler.prepare(policy(), 20)
    sampler.prepare(policy(), 20)  # the same
    found = load_file(sampler.folder / "model.safetensors")
    distributed.barrier()
    sampler.close()
    distributed.barrier()
    return calls[0], {tensor.dtype for tensor in found.values()}, [path.name for path in (folder / "sampler").iterdir()]


def test_one_process_writes_the_weights_in_the_engines_precision_and_all_read_them(tmp_path: Path) -> None:
    assert together(2, written, tmp_path) == [(1, {torch.bfloat16}, []), (0, {torch.bfloat16}, [])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_bit_sum_sees_an_update_at_the_papers_learning_rate(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn((512, 256), generator=generator)
    step = 5e-7 * torch.randn((512, 256), generator=generator).sign()
    assert bit_sum(weight.to(dtype)) != bit_sum((weight + step).to(dtype))


def test_bit_sums_of_parts_and_of_padded_rows_are_those_of_the_whole() -> None:
    weight = torch.randn((64, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = bit_sum(weight)
    assert whole == sum(bit_sum(part) for part in weight.split(20, dim=1)) % MODULUS
    assert whole == bit_sum(torch.cat([weight, torch.zeros((8, 32), dtype=torch.bfloat16)]))


class FakeLLM:
    """Applies what it is given to the model of each of two GPUs."""

    def __init__(self, *models: Any) -> None:
        self.models = models

    def apply_model(self, function: Any) -> list[Any]:
        return [function(model) for model in self.models]


class FakeEngine:
    def __init__(self, *models: Any) -> None:
        self.worker = Worker(Any)
        self.worker.llm = FakeLLM(*models)

    def ask(self, do: str, **values: Any) -> Any:
        return getattr(self.worker, do)(values)


def test_an_engine_that_kept_the_old_weights_is_told_by_their_bits() -> None:
    now = policy(hidden=64)
    held = policy(hidden=64).model.bfloat16()
    check_weights(FakeEngine(held), now)
    with torch.no_grad():
        for weight in now.model.parameters():
            weight += 5e-7 * weight.sign()
    with pytest.raises(TOPRError, match=r"^vLLM did not take the new weights: model\.\S+ has another checksum; take"):
        check_weights(FakeEngine(held), now)


def test_the_weights_of_an_engine_on_two_gpus_are_added_up_and_packed_ones_left_out() -> None:
    now, name = policy(), "model.layers.0.self_attn.o_proj.weight"
    parts = [policy().model.bfloat16() for _ in range(2)]
    for part, half in zip(parts, (slice(0, 8), slice(8, 16)), strict=True):
        for key in compared_tensors([key for key, _ in now.model.named_parameters()]):
            module, _, leaf = key.rpartition(".")
            whole = now.model.get_parameter(key).detach().bfloat16()
            mine = whole[:, half] if whole.shape[1] == 16 else whole[:, slice(2 * half.start, 2 * half.stop)]
            setattr(part.get_submodule(module), leaf, nn.Parameter(mine.contiguous()))
    check_weights(FakeEngine(*parts), now)
    assert name in bit_sums(parts[0], [name])
    for part in parts:
        part.get_submodule("model.layers.0.self_attn.o_proj").weight = nn.Parameter(torch.empty(0))
    assert name not in bit_sums(parts[0], [name])
    check_weights(FakeEngine(*parts), now)


def test_compared_are_tensors_that_an_engine_does_not_fuse() -> None:
    names = [f"model.layers.{i}.{part}.weight" for i in range(5) for part in ("self_attn.o_proj", "mlp.down_proj")]
    found = compared_tensors(["model.embed_tokens.weight", *names, "lm_head.weight"])
    assert [name.split(".")[2] for name in found[1:]] == ["0", "2", "4"] * 2
    assert found[0] == "model.embed_tokens.weight"


# ---- which engine draws, and when one is started anew


class Slots:
    """A sampler on two GPUs, and what its engines are asked: GPU, what."""

    def __init__(self, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policy, self.asked, self.full = policy(), list[tuple[str, str]](), False
        for name, value in {
            "check_python": lambda python: sys.executable,
            "visible_gpus": lambda: ["0", "1"],
            "memory_of": lambda gpus: [(50 << 30, 80 << 30)],
            "Engine": self.engine,
            "check_weights": lambda *given: None,
            "check_log_probabilities": lambda *given: None,
        }.items():
            monkeypatch.setattr(vllm_module, name, value)
        self.sampler = VLLM(config_of("sampler=vllm", "sampler.sleep=true").sampler, scratch, False, True)
        self.sampler.weights = self.sampler.held = self.policy.fingerprint

    def engine(self, python: str, log: Path, threads: int, gpus: list[str], minutes: float) -> Any:
        def ask(do: str, **values: Any) -> dict[str, Any]:
            self.asked.append((gpus[0], do))
            if do == "wake" and self.full:
                raise TOPRError("vLLM could not wake: out of memory")
            return {"completions": []}

        return SimpleNamespace(ask=ask, close=lambda: self.asked.append((gpus[0], "close")))

    def sample(self) -> list[tuple[str, str]]:
        """What a shard asks of engines."""
        self.asked.clear()
        self.sampler.sample(self.policy, [[0, 3]], 1, (0,), [])
        return self.asked[:]


def test_one_shard_after_the_other_goes_to_one_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = Slots(tmp_path, monkeypatch)
    found = [slots.sample() for _ in range(3)]
    assert found == [[("0", "start"), ("0", "generate")], [("0", "generate")], [("0", "generate")]]


def test_an_engine_that_no_longer_fits_is_started_anew_and_one_that_fits_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots(tmp_path, monkeypatch)
    slots.sample()
    slots.sampler.rest()
    assert slots.sample() == [("0", "wake"), ("0", "generate")]
    slots.sampler.rest()
    slots.full = True  # AdamW's state came meanwhile
    assert slots.sample() == [("0", "wake"), ("0", "close"), ("0", "start"), ("0", "generate")]
    slots.sampler.length = 2048
    assert slots.sample() == [("0", "close"), ("0", "start"), ("0", "generate")]


def test_engines_are_checked_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = [0], [0]

    def check(*given: Any) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        time.sleep(0.1)
        at_once[0] -= 1

    made, now = Slots(tmp_path, monkeypatch), policy()
    sampler = made.sampler
    monkeypatch.setattr(vllm_module, "check_log_probabilities", check)
    slots = [EngineSlot(i, [], FakeEngine(), serves=(weight_shapes(now), 0)) for i in range(2)]
    monkeypatch.setattr(Worker, "reload", lambda self, asked: {})
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda slot: sampler.ensure(slot, now, [[0]]), slots))
    assert [slot.weights for slot in slots] == ["now", "now"]
    assert most == [1]
