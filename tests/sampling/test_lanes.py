"""Which engine draws and when one is started anew, without vLLM: the engines answer, and the GPUs are numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import config_of, make_model
from topr_exp.sampling import vllm as vllm_module
from topr_exp.sampling.vllm import VLLM

GIB = 2**30


class Machine:
    """Two GPUs of 80 GiB with a policy of 30 on each, and engines that take what they are told to."""

    def __init__(self) -> None:
        self.policy, self.taken = 30 * GIB, dict.fromkeys(("0", "1"), 0)
        self.asked: list[tuple[str, str]] = []  # GPU, what

    def memory_of(self, gpus: list[str]) -> list[tuple[int, int]]:
        return [(80 * GIB - self.policy - self.taken[gpu], 80 * GIB) for gpu in gpus]

    def engine(self, python: str, log: Path, threads: int, gpus: list[str], minutes: float) -> Any:
        (gpu,), machine, size = gpus, self, [0]

        class Engine:
            def ask(self, do: str, **values: Any) -> dict[str, Any]:
                machine.asked.append((gpu, do))
                if do == "start":
                    size[0] = int(values["gpu_memory_utilization"] * 80 * GIB)
                if do in ("start", "wake"):
                    machine.taken[gpu] = size[0]
                if do == "sleep":
                    machine.taken[gpu] = 1 * GIB
                assert machine.policy + machine.taken[gpu] <= 80 * GIB, "out of memory"
                return {"completions": []} if do == "generate" else {}

            def close(self) -> None:
                machine.asked.append((gpu, "close"))
                machine.taken[gpu] = 0

        return Engine()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    for name, value in {
        "check_python": lambda python: sys.executable,
        "visible_gpus": lambda: ["0", "1"],
        "memory_of": made.memory_of,
        "Engine": made.engine,
        "check_weights": lambda *given: None,
        "check_log_probabilities": lambda *given: None,
    }.items():
        monkeypatch.setattr(vllm_module, name, value)
    return made


def sampler_of(policy: Any, scratch: Path, *settings: str) -> VLLM:
    config: Any = config_of("sampler=vllm", *settings).sampler
    made = VLLM(config, scratch, trust_remote_code=False, beside_training=True)
    made.weights, made.held, made.folder, made.length = policy.fingerprint, policy.fingerprint, scratch, 1024
    return made


class Tokens:
    eos_token_id = 1


@pytest.fixture
def policy(make_policy: Any) -> Any:
    made = make_policy(make_model(11))
    made.tokenizer = Tokens()
    return made


def test_one_shard_after_the_other_goes_to_one_engine(machine: Machine, policy: Any, tmp_path: Path) -> None:
    sampler = sampler_of(policy, tmp_path, "sampler.sleep=true")
    for i in range(3):
        sampler.sample(policy, [[0, 3]], 1, (i,), [])
    assert machine.asked == [("0", "start"), *[("0", "generate")] * 3]


def test_an_engine_that_no_longer_fits_is_started_anew_and_one_that_fits_wakes(
    machine: Machine, policy: Any, tmp_path: Path
) -> None:
    sampler = sampler_of(policy, tmp_path, "sampler.sleep=true")
    for grown in (0, 10 * GIB):  # by AdamW's state, say
        sampler.sample(policy, [[0, 3]], 1, (0,), [])
        sampler.rest()
        machine.policy += grown
    machine.asked.clear()
    sampler.sample(policy, [[0, 3]], 1, (0,), [])
    assert machine.asked == [("0", "close"), ("0", "start"), ("0", "generate")]
    sampler.rest()
    machine.asked.clear()
    sampler.sample(policy, [[0, 3]], 1, (0,), [])
    assert machine.asked == [("0", "wake"), ("0", "generate")]
    assert machine.taken["0"] > 30 * GIB  # all that is free but a margin
