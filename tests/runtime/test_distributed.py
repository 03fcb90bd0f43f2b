"""Processes of a run: the GPU that each takes, and the error of a process whose peer is gone."""

import pytest
import torch

from tests.conftest import each_row, refused
from topr_exp.runtime import distributed


@pytest.fixture
def machine(variables, monkeypatch):
    """A machine of four GPUs; a function that sets variables, and how many GPUs torch sees whatever they are."""
    for name in ("CUDA_VISIBLE_DEVICES", distributed.JOB_ID):
        variables.pop(name, None)
    seen_gpus = []
    count = lambda: len(seen_gpus or variables.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(","))
    monkeypatch.setattr(torch.cuda, "device_count", count)

    def change(values, gpus=0):
        variables.update(values)
        seen_gpus[:] = range(gpus)

    return change


# Variables | local rank | its GPU
GPUS = """
{} | 2 | "2"
{"CUDA_VISIBLE_DEVICES": "5,7"} | 1 | "7"
"""


@each_row("values rank gpu", GPUS, literals=True)
def test_each_process_sees_the_gpu_of_its_local_rank(values, rank, gpu, machine, variables):
    machine(values)

    distributed.take_gpu(rank)

    assert variables["CUDA_VISIBLE_DEVICES"] == gpu


def test_a_process_keeps_the_gpu_that_a_scheduler_chose_for_it(machine, variables):
    machine({"CUDA_VISIBLE_DEVICES": "3", distributed.JOB_ID: "17_0"})

    distributed.take_gpu(1)

    assert variables["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_process_without_a_gpu_to_itself_is_refused(machine):
    """Else every process would compute on the first one."""
    machine({"CUDA_VISIBLE_DEVICES": "3"})
    with refused("process 2 of this machine has no GPU to itself: torch sees 1"):
        distributed.take_gpu(1)

    machine({"CUDA_VISIBLE_DEVICES": "0,1"}, gpus=2)
    with refused("process 2 of this machine can't leave the other GPUs alone: NVML is missing"):
        distributed.take_gpu(1)


# What gloo, torch's store and NCCL say.
GONE = [
    "[gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1234",
    "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    "NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited or there was a network error, NCCL version 2.30.7",
]


@pytest.mark.parametrize("message", GONE)
def test_the_end_of_another_process_is_a_line_also_after_the_run_was_left(message, machine):
    closed = RuntimeError(message)
    own_error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert distributed.recognize_gone_peer(closed) is closed  # of a run of one process it is an error like any other

    machine({"WORLD_SIZE": "4", "RANK": "2"})

    peer_error = distributed.recognize_gone_peer(closed)
    assert str(peer_error) == "process 2 of 4 stopped because another one of the run ended"
    assert peer_error.__cause__ is closed
    assert distributed.recognize_gone_peer(own_error) is own_error
