"""Several processes that are one run, as torchrun would start them, on this machine's CPU."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from topr_exp.sweeps.processes import rendezvous


def together(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)` returns in each of `size` processes, by rank."""
    context = multiprocessing.get_context("forkserver")
    pairs = [context.Pipe(duplex=False) for _ in range(size)]
    with rendezvous() as place:
        workers = [
            context.Process(target=work, args=(rank, size, place, theirs, function, arguments), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for worker in workers:
            worker.start()
        for _, theirs in pairs:
            theirs.close()
        try:
            answers = [pickle.loads(ours.recv_bytes()) for ours, _ in pairs]
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    for answer in answers:
        assert not isinstance(answer, str) or not answer.startswith("Traceback"), answer
    return answers


def work(
    rank: int, size: int, place: dict[str, str], answer: Any, function: Callable[..., Any], arguments: Any
) -> None:
    import torch

    from topr_exp.runtime import distributed

    torch.set_num_threads(1)
    os.environ.update({**place, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    try:
        with distributed.process_group("cpu"):
            result = function(*arguments)
            distributed.barrier()
        answer.send_bytes(pickle.dumps(result))  # by pickle, since torch would share memory with a process that ends
    except BaseException:
        answer.send_bytes(pickle.dumps(traceback.format_exc()))
