"""Processes of a run: the GPU that each takes, and the error of a process whose peer is gone."""

import os
from unittest.mock import patch

import pytest
import torch

from tests.conftest import refused
from topr_exp.runtime import distributed


@pytest.fixture
def machine(monkeypatch):
    """A machine of four GPUs, and a function that sets variables of this process, none of them for good."""
    with patch.dict(os.environ):
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ.pop(distributed.JOB_ID, None)
        count = lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(","))
        monkeypatch.setattr(torch.cuda, "device_count", count)
        yield os.environ.update


@pytest.mark.parametrize(
    ("variables", "rank", "gpu"),
    [
        ({}, 2, "2"),
        ({"CUDA_VISIBLE_DEVICES": "5,7"}, 1, "7"),
        ({"CUDA_VISIBLE_DEVICES": "3", distributed.JOB_ID: "17_0"}, 1, "3"),  # the scheduler's choice for each process
    ],
)
def test_each_process_sees_the_gpu_of_its_local_rank(variables, rank, gpu, machine):
    machine(variables)

    distributed.take_gpu(rank)

    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_process_without_a_gpu_to_itself_is_refused(machine, monkeypatch):
    """Else every process would compute on the first one."""
    machine({"CUDA_VISIBLE_DEVICES": "3"})
    with refused("process 2 of this machine has no GPU to itself: torch sees 1"):
        distributed.take_gpu(1)

    machine({"CUDA_VISIBLE_DEVICES": "0,1"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)  # whatever is visible
    with refused("process 2 of this machine can't leave the other GPUs alone: NVML is missing"):
        distributed.take_gpu(1)


def test_the_end_of_another_process_is_a_line_also_after_the_run_was_left(machine):
    closed = RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234")
    own_error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert distributed.root_cause(closed) is closed  # of a run of one process it is an error like any other

    machine({"WORLD_SIZE": "4", "RANK": "2"})

    assert str(distributed.root_cause(closed)) == "process 2 of 4 stopped because another one of the run ended"
    assert distributed.root_cause(own_error) is own_error
