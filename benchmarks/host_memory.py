"""Main memory that a model on a GPU takes while it is loaded and written, without a GPU.

    python benchmarks/host_memory.py [--processes 1 2 8]

A random Llama of 105 million weights, loaded as for a GPU (tensor by tensor, from bfloat16 to float32) but to the CPU,
which stands for the GPU: what lies there is taken off, and what libraries copy from a GPU before they write it is
copied here too. Counted is memory of a process's own (RssAnon, every millisecond, summed over the processes of a
machine), not the files' pages in the system's cache, which it frees when it needs them. In multiples of the float32
weights' bytes, which are 30 GiB of 8 billion.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure
import safetensors.torch
import torch
from training import LLAMAS
from transformers import LlamaConfig, LlamaForCausalLM

from topr_exp.models.loading import SHIPPED, load_model
from topr_exp.models.policy import Policy, save_policy
from topr_exp.runtime import distributed
from topr_exp.training import checkpoint, parallel
from topr_exp.training.optimizers import Adafactor

STEPS = ("loading", "a checkpoint", "the trained model", "weights for engines")


class Peak:
    """The most memory of its own that this process holds in a block beyond what it holds before."""

    def __enter__(self) -> Peak:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        self.before = self.most = measure.status("RssAnon")
        self.done = False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.done:
            self.most = max(self.most, measure.status("RssAnon"))
            time.sleep(0.001)

    def __exit__(self, *error: Any) -> None:
        self.most = max(self.most, measure.status("RssAnon"))
        self.done = True
        self.thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self.before


@contextlib.contextmanager
def weights_on_a_gpu() -> Iterator[None]:
    """Whatever would have to be copied from a GPU is copied, once."""
    write, cpu, to = safetensors.torch._to_ndarray, torch.Tensor.cpu, torch.Tensor.to
    library: Any = safetensors.torch
    tensor: Any = torch.Tensor
    copied = set()  # addresses of what was brought to main memory

    def brought(one: torch.Tensor) -> torch.Tensor:
        copied.add(one.data_ptr())
        return one

    def moved(one: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        if options.get("device") != "cpu":
            return to(one, *args, **options)
        return brought(to(one, *args, **options, copy=True))

    library._to_ndarray = lambda one: write(one if one.data_ptr() in copied else one.clone())
    tensor.cpu, tensor.to = lambda one: brought(one.clone()), moved
    try:
        yield
    finally:
        library._to_ndarray, tensor.cpu, tensor.to = write, cpu, to


def measured(rank: int, size: int, port: int, folder: Path, answer: Any) -> None:
    """The bytes of each step in one of `size` processes."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
    with distributed.process_group("cpu"):
        answer.send(steps(folder))
        distributed.barrier()


def steps(folder: Path) -> list[int]:
    load_model("tiny")  # what libraries take once
    with Peak() as loading:
        model, tokenizer = load_model(str(folder), torch.float32, "cpu:0")
    whole = sum(weight.nbytes for weight in model.parameters())
    found = [loading.bytes - whole]
    policy = Policy(model, tokenizer, "random", torch.bfloat16)
    layout = parallel.parallelize(policy, "fsdp")
    optimizer = Adafactor(list(policy.model.parameters()), 5e-7, 0.0)
    with weights_on_a_gpu():
        with Peak() as saving:
            checkpoint.save(folder / "checkpoints", 1, policy.model, optimizer, {}, {})
        found.append(saving.bytes)
        for name, dtype in (("trained", None), ("engine", torch.bfloat16)):
            with layout.gathered_weights(), Peak() as saving:
                if distributed.is_main_process():
                    save_policy(policy, folder / name, dtype)
                distributed.barrier()
            found.append(saving.bytes)
    return found


def random_model(folder: Path) -> int:
    """Write a random model in bfloat16; returns its bytes in float32."""
    model = LlamaForCausalLM(LlamaConfig(**LLAMAS["100m"])).to(torch.bfloat16)
    model.save_pretrained(folder)
    for path in SHIPPED.joinpath("tiny").glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return 4 * sum(weight.numel() for weight in model.parameters())


def together(size: int, folder: Path) -> list[list[int]]:
    """What each of `size` processes finds."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pairs = [context.Pipe(duplex=False) for _ in range(size)]
    workers = [context.Process(target=measured, args=(rank, size, port, folder, theirs))
               for rank, (_, theirs) in enumerate(pairs)]  # fmt: skip
    for worker in workers:
        worker.start()
    for _, theirs in pairs:
        theirs.close()  # so that a process that ended is noticed
    try:
        return [ours.recv() for ours, _ in pairs]
    finally:
        for worker in workers:
            worker.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 8])
    rows = []
    for size in parser.parse_args().processes:
        with tempfile.TemporaryDirectory() as place:
            whole = random_model(Path(place))
            found = together(size, Path(place))
        sums = [sum(column) / whole for column in zip(*found, strict=True)]
        rows.append({"processes": size, **dict(zip(STEPS, sums, strict=True))})
        print(f"{size} processes: " + ", ".join(f"{step} {each:.2f}" for step, each in zip(STEPS, sums, strict=True)))
    measure.write("host-memory", {"rows": rows})


if __name__ == "__main__":
    main()
