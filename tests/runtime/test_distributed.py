"""Which GPU a process of a run takes, and what an engine of its own must not inherit."""

from __future__ import annotations

import os

import pytest
import torch

from topr_exp.runtime import distributed
from topr_exp.sampling.engine import DISTRIBUTED
from topr_exp.types import ConfigError, TOPRError


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "device_count", lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(","))
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("SLURM_LOCALID", raising=False)


def test_each_process_sees_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")  # so that it is set back
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    distributed.take_gpu(2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    distributed.take_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("SLURM_LOCALID", "0")
    with pytest.raises(ConfigError, match="process 2 of this machine has no GPU to itself: torch sees 1"):
        distributed.take_gpu(1)  # two processes started in a shell of one GPU


def test_a_process_that_still_sees_all_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every process would compute on the first one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(TOPRError, match="process 2 of this machine can't leave the other GPUs alone: NVML is missing"):
        distributed.take_gpu(1)


def test_slurm_s_choice_for_a_task_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    distributed.take_gpu(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT",
                                  "TORCHELASTIC_USE_AGENT_STORE", "WORLD_SIZE"])  # fmt: skip
def test_an_engine_does_not_take_itself_for_a_process_of_the_run(name: str) -> None:
    assert name.startswith(DISTRIBUTED)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "PATH", "HF_HOME", "LD_LIBRARY_PATH"])
def test_an_engine_keeps_the_rest(name: str) -> None:
    assert not name.startswith(DISTRIBUTED)


def test_the_end_of_another_process_is_a_line_also_after_the_run_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234")
    assert distributed.root_cause(closed) is closed  # of a run of one process it is an error like any other
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert str(distributed.root_cause(closed)) == "process 2 of 4 stopped because another one of the run ended"
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert distributed.root_cause(other) is other
