"""Processes of a run: the GPU that each takes, and the error of a process whose peer is gone."""

import os

import pytest
import torch

from topr_exp.runtime import distributed
from topr_exp.types import ConfigError, TOPRError


@pytest.mark.parametrize(
    ("visible", "job", "rank", "taken"),
    [
        (None, None, 2, "2"),
        ("5,7", None, 1, "7"),
        ("3", "17_0", 1, "3"),  # the scheduler's choice for each process
        ("3", None, 1, "process 2 of this machine has no GPU to itself: torch sees 1"),
    ],
)
def test_each_process_sees_the_gpu_of_its_local_rank(monkeypatch, visible, job, rank, taken):
    count = lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(","))
    monkeypatch.setattr(torch.cuda, "device_count", count)
    for name, value in (("CUDA_VISIBLE_DEVICES", visible), (distributed.JOB_ID, job)):
        monkeypatch.setenv(name, value or "")  # so that it is set back
        if value is None:
            monkeypatch.delenv(name)
    if taken.isdecimal():
        distributed.take_gpu(rank)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == taken
    else:
        with pytest.raises(ConfigError, match=taken):
            distributed.take_gpu(rank)


def test_a_process_that_still_sees_all_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every process would compute on the first one."""
    monkeypatch.delenv(distributed.JOB_ID, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(TOPRError, match="process 2 of this machine can't leave the other GPUs alone: NVML is missing"):
        distributed.take_gpu(1)


def test_the_end_of_another_process_is_a_line_also_after_the_run_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234")
    assert distributed.root_cause(closed) is closed  # of a run of one process it is an error like any other
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert str(distributed.root_cause(closed)) == "process 2 of 4 stopped because another one of the run ended"
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert distributed.root_cause(other) is other
