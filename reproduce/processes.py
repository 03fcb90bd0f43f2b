"""Analyses of finished runs on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def map_on_cores(function: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
    """Call a function on one argument of each list at a time; returns the results in order.

    One process a core, with one thread of torch: two threads of a tiny model only wait for one another.
    """
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, use_one_thread) as pool:
        return list(pool.map(function, *arguments))


def use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)
