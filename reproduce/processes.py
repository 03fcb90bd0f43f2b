"""Analyses of finished runs on all cores."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def map_on_cores(function: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
    """Call a function on one argument of each list at a time; returns the results in order.

    One process a core, with one thread of torch: two threads of a tiny model only wait for one another.
    """
    cores = os.cpu_count() or 1
    if sys.platform == "linux":  # which alone tells of fewer that this process may use
        cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, prepare_process) as pool:
        return list(pool.map(function, *arguments))


def prepare_process() -> None:
    """Use one thread, and end with the parent: Python's processes would go on, and then wait for ever."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
